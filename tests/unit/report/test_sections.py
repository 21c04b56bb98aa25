"""Tables of the report: rejections by kind, fastest configs, differences to the baseline."""

from __future__ import annotations

from dataclasses import replace

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Measurement, Status, Trial
from tuner.report.data import ReportData, fastest
from tuner.report.sections.summary import (
    DIFF_LINES,
    REASON_LENGTH,
    rejections,
    source_diffs,
    top_tables,
)

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
    assert [(one.status, one.trials, one.configs) for one in found] == [
        (Status.RESOURCE_LIMIT, 2, 2),
        (Status.COMPILE, 1, 1),
    ]
    assert found[0].example == "72 registers, at most 64"
    assert found[0].meaning == "over a resource limit"


def test_a_config_rejected_on_two_workloads_is_one_config():
    other = Workload.of({"T": 2, "D": 64})
    first = make(Status.INCORRECT, "off by 3", block=32)
    (found,) = rejections(run(first, replace(first, workload=other)))
    assert (found.trials, found.configs) == (2, 1)


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


def test_the_top_table_marks_what_differs_from_the_first():
    (table,) = top_tables(
        run(
            make(Status.CORRECT, time_us=3.0, a=1, b=5),
            make(Status.CORRECT, time_us=2.0, a=2, b=5),
            baselines_us={HERE.key: 4.0},
        )
    )
    assert table.names == ("a", "b")
    assert [row.values for row in table.rows] == [("2", "5"), ("1", "5")]
    assert [row.differs for row in table.rows] == [(False, False), (True, False)]
    assert [row.ratio for row in table.rows] == [2.0, 4.0 / 3.0]


def test_configs_of_two_templates_share_one_table():
    (table,) = top_tables(
        run(make(Status.CORRECT, time_us=1.0, a=1), make(Status.CORRECT, time_us=2.0, b=2))
    )
    assert [row.values for row in table.rows] == [("1", "-"), ("-", "2")]
    assert [row.differs for row in table.rows] == [(False, False), (False, True)]


def test_equal_configs_of_two_candidates_are_two():
    first = make(Status.CORRECT, time_us=3.0, a=1)
    second = replace(first, candidate="r1", measurement=Measurement((2.0,), 20, 4))
    (table,) = top_tables(run(first, second))
    assert [(row.trial.candidate, row.trial.time_us) for row in table.rows] == [
        ("r1", 2.0),
        ("t", 3.0),
    ]


def test_a_finalist_that_failed_does_not_hide_another_candidates_equal_config():
    first = make(Status.CORRECT, time_us=3.0, a=1)
    second = replace(first, candidate="r1")
    failed = replace(second, status=Status.INCORRECT, stage="finals")
    (table,) = top_tables(run(first, second, finals=(failed,)))
    assert [row.trial.candidate for row in table.rows] == ["t"]


def test_a_rejection_names_the_candidate_of_its_example():
    one = make(Status.RESOURCE_LIMIT, "64 is too much", a=1)
    (found,) = rejections(run(one, replace(one, candidate="r1")))
    assert (found.candidate, found.trials, found.configs) == ("t", 2, 2)


def test_equal_sources_are_one_variant():
    sources = {"T=1,D=2": "a\nb\n", "T=2,D=2": "a\nb\n", "T=3,D=2": "a\nc\n"}
    found = source_diffs(run(baseline_source="a\n", tuned_sources=sources))
    assert [variant.workloads for variant in found] == [("T=1 D=2", "T=2 D=2"), ("T=3 D=2",)]
    assert [(variant.added, variant.removed) for variant in found] == [(1, 0), (1, 0)]
    assert [block.kind for block in found[0].blocks] == ["place", "same", "add"]


def test_lines_that_look_like_file_names_of_a_diff_are_code():
    (found,) = source_diffs(
        run(baseline_source="--x;\n", tuned_sources={"T=1": "++x;\n"}),
    )
    assert [(block.kind, block.text) for block in found.blocks[1:]] == [
        ("remove", "---x;"),
        ("add", "+++x;"),
    ]


def test_a_long_difference_is_cut_and_says_so():
    source = "\n".join(f"line {number}" for number in range(DIFF_LINES + 100))
    (found,) = source_diffs(run(baseline_source="old\n", tuned_sources={"T=1": source}))
    assert found.added == DIFF_LINES + 100
    assert found.omitted == 102
    assert sum(block.text.count("\n") + 1 for block in found.blocks) == DIFF_LINES


def test_an_unchanged_source_has_no_blocks():
    (found,) = source_diffs(run(baseline_source="a\n", tuned_sources={"T=1": "a\n"}))
    assert (found.blocks, found.added, found.removed, found.omitted) == ((), 0, 0, 0)
    assert source_diffs(run(tuned_sources={"T=1": "a\n"})) == ()
