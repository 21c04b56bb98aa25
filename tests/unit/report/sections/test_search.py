"""The course of a search, its early ends, what decided, what failed and what was fastest."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.drawings import Page, of_class, parsed
from tuner.cli.ending import print_end
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.statistics import PROTOCOL
from tuner.model.trial import (
    INITIAL,
    Check,
    Measurement,
    Occupancy,
    Result,
    Status,
    Trial,
)
from tuner.report import charts
from tuner.report.data import ReportData, fastest
from tuner.report.html import render_report
from tuner.report.sections.answer import next_steps
from tuner.report.sections.search import (
    DIFF_LINES,
    REASON_LENGTH,
    early_end_lines,
    fastest_configs,
    importances,
    never_worked_lines,
    occupancy_chart,
    refused_lines,
    rejections,
    search_chart,
    source_diffs,
    space_lines,
)
from tuner.report.terminal import json_of
from tuner.session.events import SearchEnded, SpacePruned

HERE = Workload.of({"T": 1, "D": 64})


def make(
    status: Status, reason: str = "", time_us: float = 1.0, early: bool = False, **values: int
):
    measurement = Measurement((time_us,), 20, 4, early) if status is Status.CORRECT else None
    return Trial("t", HERE, Config.of(values), status, reason, measurement=measurement)


def run(*trials: Trial, **fields: object) -> ReportData:
    data = ReportData("k", "GPU", False, records=tuple((trial, 0.0) for trial in trials))
    return replace(data, **fields)


def test_reasons_that_differ_in_numbers_only_are_one_kind():
    found = rejections(
        run(
            make(Status.RESOURCE_LIMIT, "72 registers, at most 64", block=32),
            make(Status.RESOURCE_LIMIT, "96 registers, at most 64", block=64),
            make(Status.COMPILE, "error: x is undefined\nline 3", block=32),
            make(Status.CORRECT, block=128),
        )
    )
    assert [(one.first.status, len(one.trials), one.configs) for one in found] == [
        (Status.RESOURCE_LIMIT, 2, 2),
        (Status.COMPILE, 1, 1),
    ]
    assert found[0].example == "72 registers, at most 64"
    assert found[0].meaning == "over a resource limit"


def test_a_config_rejected_on_two_workloads_is_one_config():
    other = Workload.of({"T": 2, "D": 64})
    first = make(Status.INCORRECT, "off by 3", block=32)
    (found,) = rejections(run(first, replace(first, workload=other)))
    assert (len(found.trials), found.configs) == (2, 1)


def test_an_absent_reason_is_named_and_a_long_one_is_cut():
    found = rejections(run(make(Status.LAUNCH), make(Status.COMPILE, "e" * 5000)))
    assert found[0].example == "no reason recorded"
    assert len(found[1].example) <= REASON_LENGTH + 2


def test_trials_stopped_early_are_never_among_the_fastest():
    slow, early = make(Status.CORRECT, time_us=3.0, a=1), make(Status.CORRECT, "", 1.0, True, a=2)
    assert fastest((slow, early, make(Status.INCORRECT, a=3))) == (slow,)


def test_a_config_measured_twice_is_listed_once_with_its_better_time():
    slow, fast = make(Status.CORRECT, time_us=3.0, a=1), make(Status.CORRECT, time_us=2.0, a=1)
    assert fastest((slow, fast)) == (fast,)


def shown(data: ReportData) -> str:
    """The table of the fastest configs as text."""
    return Page(render_report(data)).plain.partition("Fastest configs")[2].partition("By the")[0]


def test_the_fastest_configs_are_listed_with_what_differs_from_the_first():
    data = run(
        make(Status.CORRECT, time_us=3.0, a=1, b=5),
        make(Status.CORRECT, time_us=2.0, a=2, b=5),
        baselines_us={HERE.key: 4.0},
    )
    assert " a Registers" in shown(data), "only what varies has a column"
    assert "1 2.000 2.00x 2 -" in shown(data)
    assert "2 3.000 1.33x 1 -" in shown(data)
    assert re.findall(r'class="value differs"[^>]*>(\w+)<', render_report(data)) == ["1"]


def test_configs_of_two_templates_share_one_table():
    data = run(make(Status.CORRECT, time_us=1.0, a=1), make(Status.CORRECT, time_us=2.0, b=2))
    assert "1 1.000 - 1 - " in shown(data)
    assert "2 2.000 - - 2 " in shown(data)
    assert re.findall(r'class="value differs"[^>]*>(\w+)<', render_report(data)) == ["2"]


def test_equal_configs_of_two_candidates_are_two():
    first = make(Status.CORRECT, time_us=3.0, a=1)
    second = replace(first, candidate="r1", measurement=Measurement((2.0,), 20, 4))
    ((_, trials),) = fastest_configs(run(first, second))
    assert [(trial.candidate, trial.time_us) for trial in trials] == [("r1", 2.0), ("t", 3.0)]


def test_a_finalist_that_failed_does_not_hide_another_candidates_equal_config():
    first = make(Status.CORRECT, time_us=3.0, a=1)
    second = replace(first, candidate="r1")
    failed = replace(second, status=Status.INCORRECT, stage="finals")
    ((_, trials),) = fastest_configs(run(first, second, finals=(failed,)))
    assert [trial.candidate for trial in trials] == ["t"]


def test_a_rejection_names_the_candidate_of_its_example():
    one = make(Status.RESOURCE_LIMIT, "64 is too much", a=1)
    (found,) = rejections(run(one, replace(one, candidate="r1")))
    assert (found.first.candidate, len(found.trials), found.configs) == ("t", 2, 2)


def test_equal_sources_are_one_variant():
    sources = {"T=1,D=2": "a\nb\n", "T=2,D=2": "a\nb\n", "T=3,D=2": "a\nc\n"}
    found = source_diffs(run(baseline_source="a\n", tuned_sources=sources))
    assert [variant.workloads for variant in found] == [("T=1 D=2", "T=2 D=2"), ("T=3 D=2",)]
    assert [(variant.added, variant.removed) for variant in found] == [(1, 0), (1, 0)]
    assert [kind for kind, _ in found[0].blocks] == ["place", "same", "add"]


def test_lines_that_look_like_file_names_of_a_diff_are_code():
    (found,) = source_diffs(
        run(baseline_source="--x;\n", tuned_sources={"T=1": "++x;\n"}),
    )
    assert found.blocks[1:] == (("remove", "---x;"), ("add", "+++x;"))


def test_a_long_difference_is_cut_and_says_so():
    source = "\n".join(f"line {number}" for number in range(DIFF_LINES + 100))
    (found,) = source_diffs(run(baseline_source="old\n", tuned_sources={"T=1": source}))
    assert found.added == DIFF_LINES + 100
    assert found.omitted == 102
    assert sum(text.count("\n") + 1 for _, text in found.blocks) == DIFF_LINES


def test_an_unchanged_source_has_no_blocks():
    (found,) = source_diffs(run(baseline_source="a\n", tuned_sources={"T=1": "a\n"}))
    assert (found.blocks, found.added, found.removed, found.omitted) == ((), 0, 0, 0)
    assert source_diffs(run(tuned_sources={"T=1": "a\n"})) == ()


def timed(*times_us: float | None, early: frozenset[int] = frozenset()) -> tuple:
    made = []
    for index, us in enumerate(times_us):
        measured = None if us is None else Measurement((us,), 20, 4, index in early)
        status = Status.COMPILE if us is None else Status.CORRECT
        made.append((Trial("t", HERE, Config.of({"b": index}), status, measurement=measured), 0.0))
    return tuple(made)


def test_the_best_so_far_only_falls_and_skips_trials_stopped_early():
    early = timed(9.0, None, 5.0, 4.0, 7.0, early=frozenset({3}))
    root = parsed(search_chart(replace(run(), records=early)))
    (course,) = of_class(root, "course")
    heights = [float(p.split()[1]) for p in course.get("d", "")[1:].split("L")]
    assert heights == sorted(heights)
    assert (heights[0], heights[-1]) == (min(heights), 226.0)
    assert len(of_class(root, "best")) == 1
    assert "of 1 workloads" in root.get("aria-label")


def test_thousands_of_trials_stay_small():
    times = [5.0 + (i * 7919 % 1000) / 500 for i in range(50_000)]
    assert len(charts.courses([("T=1", times)])) < 400_000


def test_without_a_time_there_is_no_chart():
    assert search_chart(run()) is None
    assert search_chart(replace(run(), records=timed(None, None))) is None
    root = parsed(search_chart(replace(run(), records=timed(None, 2.0))))
    assert "nan" not in "".join(root.itertext())


def test_occupancy_is_drawn_where_it_is_known():
    assert occupancy_chart(replace(run(), records=timed(2.0, 3.0))) is None
    known = tuple(
        (replace(trial, occupancy=Occupancy(0.25 * (1 + i), 4, "registers")), 0.0)
        for i, (trial, _) in enumerate(timed(2.0, 3.0))
    )
    root = parsed(occupancy_chart(replace(run(), records=known)))
    assert len(of_class(root, "marker")) == 1
    assert (of_class(root, "dots")[0].get("d") or "").count("M") == 2


ENOUGH = SearchEnded(0, "initial", "T=1", 31, 0.0041), SearchEnded(0, "initial", "T=2", 1012, 0.001)


@pytest.mark.parametrize(
    ("pruned", "lines"),
    [
        ((), ()),
        ((SpacePruned(0, "initial", "T=1", 50, 50),), ()),
        (
            (SpacePruned(0, "initial", "T=1", 50, 20), SpacePruned(0, "initial", "T=2", 1000, 80)),
            (
                "`prune` left out 950 of 1,050 valid configs as slow, over all searches; "
                "with --no-prune they are tried too",
            ),
        ),
        (None, ("with --no-prune, configs that `prune` leaves out as slow were searched too",)),
    ],
)
def test_how_much_of_the_space_is_left_out_is_told(pruned, lines):
    assert space_lines(ReportData("scale", "H200", recorded=False, pruned=pruned)) == lines


@pytest.mark.parametrize(
    ("environment", "known"),
    [({}, "1"), ({"protocol": "1"}, "1"), ({"protocol": str(PROTOCOL)}, None)],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_another_protocol_is_one_mark_wherever_results_are_told(
    environment: dict[str, str], known: str | None, *, recorded: bool
) -> None:
    tried = run(make(Status.CORRECT), baselines_us={HERE.key: 4.0})
    data = replace(tried, recorded=recorded, environment=environment)
    said = f"measured by protocol {known}; today's is {PROTOCOL} (CHANGELOG.md)"
    console = Console(record=True, width=140, file=StringIO())
    print_end(data, Path("session"), console, resumable=False)
    counts = console.export_text().count(said), render_report(data).lower().count(said[:24])
    assert counts == ((1, 1) if known else (0, 0))
    assert json_of(data)["protocol"] == (known or str(PROTOCOL))


@pytest.mark.parametrize(
    ("ends", "lines"),
    [
        ((), ()),
        (
            ENOUGH,
            (
                "2 searches ended early, after 1,043 trials in all: the untried configs were "
                "expected to save no more than 0.4% of the best time",
            ),
        ),
        (
            (SearchEnded(0, "initial", "T=1", 3, late=True),),
            ("1 search ended early for want of time",),
        ),
    ],
)
def test_why_searches_ended_early_is_told(ends, lines):
    data = ReportData("scale", "H200", recorded=False, early_ends=ends)
    assert early_end_lines(data) == lines


def test_values_with_which_nothing_worked_are_named_with_their_cause() -> None:
    wide = "y[3] is 0, expected 1 (9 times the tolerance)"
    trials = [
        *(make(Status.CORRECT, vec=1, block=64), make(Status.CORRECT, vec=1, block=128)),
        *(make(Status.INCORRECT, wide, vec=n, block=64) for n in (2, 4)),
        *(make(Status.INCORRECT, wide, vec=n, block=128) for n in (2, 4)),
        make(Status.LAUNCH, "too many threads", vec=1, block=2048),
    ]
    data = run(*(replace(one, seconds=1.5, candidate=INITIAL) for one in trials))
    (line,) = never_worked_lines(data)
    assert line == f"nothing worked with vec 2, 4, in 4 trials of 6 s: wrong result: {wide}"
    assert never_worked_lines(replace(data, recorded=True)) == ()


def test_importance_is_each_candidates_own_the_winners_first(with_rounds):
    found = importances(with_rounds)
    assert [one.name for one in found] == ["r3", "r1", "r5", "initial"]
    parameters = {one.name: {name for name, _ in one.average} for one in found}
    assert parameters["r3"] == {"block", "rows_per_warp"}
    assert parameters["r1"] == set(), "15 trials are too few"
    assert found[0].known == 2


def test_the_chart_of_a_search_marks_the_candidates_that_were_searched(with_rounds):
    root = parsed(search_chart(with_rounds))
    assert len(of_class(root, "course")) == 2
    assert len(of_class(root, "begin")) == 4
    alone = tuple(one for one in with_rounds.records if one[0].candidate == "r1")
    only = parsed(search_chart(replace(with_rounds, records=alone)))
    assert of_class(only, "begin") == []


def test_a_faster_config_that_was_refused_in_the_end_is_told_with_the_reason():
    serves, fast = (make(Status.CORRECT, time_us=us, block=b) for us, b in ((9.0, 64), (4.0, 32)))
    fast = replace(fast, candidate="r1")
    figures = 10.0, 9.0, 1.1, (1.0, 1.2), True, None
    result = Result(HERE, *figures, serves.config, None, None, candidate="t")
    check = Check("machine_code", HERE, fast.config, False, "early", candidate="r1")
    data = run(serves, fast, results=(result,), checks=(check,))
    (line,) = refused_lines(data)
    assert line.startswith("r1 took 4.000 us on T=1 D=64 in the search and was refused in the end")
    assert line.endswith(": machine_code: early")
    said, command = next_steps(data)[0]
    assert (said, command) == (f"Mend what is faster: {line.split(': ')[0]}, as Search says.", "")
    alike = replace(fast, measurement=Measurement((8.9,), 20, 4, False))
    for none in (
        replace(data, checks=()),
        replace(data, on_cpu=True),
        run(serves, alike, results=(result,), checks=(check,)),
    ):
        assert not [*refused_lines(none)]
