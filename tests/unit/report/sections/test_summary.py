"""What a report says first, never more than the intervals and the checks allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Check, Comparison, Correctness, Result, Status, Trial
from tuner.report.data import Declared, ReportData
from tuner.report.mutation_score import MutationScore
from tuner.report.sections import summary
from tuner.report.sections.summary import headline
from tuner.report.terminal import json_of


def result(
    speedup: float, low: float, high: float, *, tokens: int = 1, held: bool = False
) -> Result:
    return Result(
        workload=Workload.of({"T": tokens}, held_out=held),
        baseline_us=speedup,
        tuned_us=1.0,
        speedup=speedup,
        interval=(low, high),
        paired=True,
        roofline_share=0.5,
        config=Config.of({"block": 64}),
        resources=None,
        occupancy=None,
    )


FASTER, SAME, SLOWER = (2.0, 1.9, 2.1), (1.01, 0.98, 1.04), (0.8, 0.78, 0.82)


def judge(*values: tuple[float, float, float]) -> tuple[str, str]:
    results = tuple(result(*value, tokens=i) for i, value in enumerate(values))
    said = headline(ReportData("k", "GPU", False, results=results))
    return said.tone, said.headline


@pytest.mark.parametrize(
    ("values", "tone", "text"),
    [
        (
            (FASTER, FASTER),
            "faster",
            "2.00x faster than the baseline (geometric mean over 2 tuned workloads); "
            "proved on 2 of 2.",
        ),
        (
            (FASTER,),
            "faster",
            "2.00x faster than the baseline (on 1 tuned workload); proved on 1 of 1.",
        ),
        (
            (FASTER, FASTER, SLOWER),
            "faster",
            "1.47x faster than the baseline (geometric mean over 3 tuned workloads); "
            "proved on 2 of 3, slower on 1.",
        ),
        (
            (SAME, SAME),
            "same",
            "No difference from the baseline is proved "
            "(geometric mean over 2 tuned workloads: 1.01x). Too noisy to say on 2 of 2: measure "
            "again on a quieter GPU.",
        ),
        (
            (FASTER, SAME, SAME),
            "faster",
            "Faster on 1 of 3 tuned workloads; geometric mean over 3 tuned workloads: 1.27x. Too "
            "noisy to say on 2 of 3: measure again on a quieter GPU.",
        ),
        (
            (SLOWER, SLOWER),
            "slower",
            "Slower on 2 of 2 tuned workloads; geometric mean over 2 tuned workloads: 0.80x.",
        ),
        (
            (FASTER, SLOWER),
            "slower",
            "Mixed: faster on 1, slower on 1 of 2 tuned workloads; "
            "geometric mean over 2 tuned workloads: 1.26x.",
        ),
    ],
)
def test_the_headline_follows_the_intervals(values, tone, text):
    assert judge(*values) == (tone, text)


def test_a_mix_is_judged_by_its_time_and_not_by_how_many_are_faster():
    long = replace(result(*SLOWER, tokens=9), baseline_us=80.0, tuned_us=100.0)
    results = (result(*FASTER), result(*FASTER, tokens=2), long)
    mix = {one.workload: 1.0 for one in results}
    data = ReportData("k", "GPU", False, results=results, mix=mix)
    said = headline(data)
    assert (said.tone, said.headline) == (
        "slower",
        "Mixed: faster on 2, slower on 1 of 3 tuned workloads; time in all of a mix of 3 tuned "
        "workloads: 0.82x.",
    )
    often = replace(data, mix=mix | {results[0].workload: 100.0})
    assert headline(often).headline == (
        "1.40x faster than the baseline (time in all of a mix of 3 tuned workloads); proved on 2 "
        "of 3, slower on 1."
    )
    found = json_of(often)["mix"]
    assert found["weights"] == {"T=1": 100.0, "T=2": 1.0, "T=9": 1.0}
    # Calls of 2, 2 and 80 us take 1, 1 and 100.
    assert (found["baseline_us"], found["tuned_us"]) == (282.0, 201.0)
    assert found["speedup"] == pytest.approx(282.0 / 201.0, abs=1e-4)
    assert "mix" not in json_of(replace(data, mix={}))


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({}, "RECORDED on NVIDIA H200, 2026-11-20. 1.49x faster"),
        ({"recorded": False}, "Measured on NVIDIA H200"),
        ({"recorded": False, "on_cpu": True}, "Run on the CPU, NVIDIA H200, 2026-11-20: no time"),
    ],
)
def test_where_a_run_was_measured_comes_before_anything_else(data, changes, start):
    assert str(headline(replace(data, **changes))).startswith(start)


def test_a_cpu_has_no_speedup_but_is_suspected_like_a_gpu(data):
    data = replace(data, recorded=False, on_cpu=True)
    said = headline(data)
    assert (said.tone, said.held_out) == ("same", "")
    assert said.headline.startswith("Verified on 10 workloads; which config is fastest, a GPU has")
    first = replace(data.results[0], speedup=12.0)
    said = headline(replace(data, results=(first, *data.results[1:])))
    assert f"LOOK TWICE at {first.workload}" in said.headline


def test_a_failed_check_of_a_winner_comes_before_all_else(data):
    config = data.results[0].config
    check = Check("memcheck", data.results[0].workload, config, False, "reads past\nthe end.")
    said = headline(replace(data, checks=(check, check, replace(check, kind="racecheck"))))
    assert said.tone == "failed"
    assert said.headline.startswith("NOT TO BE TRUSTED: what was tuned for T=1 D=11008")
    assert said.headline.endswith("memcheck on T=1 D=11008: reads past the end (1 more failed).")
    assert "faster" not in str(said)


@pytest.mark.parametrize(
    ("config", "passed"), [(None, True), (None, None), (Config.of({"a": 1}), False)]
)
def test_only_a_winner_that_failed_a_check_changes_the_verdict(data, config, passed):
    first = data.results[0]
    check = Check("verify", first.workload, config or first.config, passed, "why")
    assert headline(replace(data, checks=(check,))) == headline(data)


def test_held_out_workloads_are_judged_apart(data):
    assert headline(data).held_out == "Held-out: 1.19x over 3 workloads, faster on 2 of 3."
    lost = (result(*FASTER), result(*SLOWER, tokens=2, held=True))
    said = headline(ReportData("k", "GPU", False, results=lost))
    assert said.held_out == "Held-out: 0.80x over 1 workload, faster on 0 of 1, slower on 1."
    said = headline(ReportData("k", "GPU", False, results=(result(*FASTER, held=True),)))
    assert ("1 held-out workload" in said.headline, said.held_out) == (True, "")


def failed(status: Status) -> tuple[Trial, float]:
    return Trial("t", Workload.of({"T": 1}), Config.of({"block": 64}), status), 0.0


@pytest.mark.parametrize(
    ("records", "finished", "text"),
    [
        ((), True, "No result: no config was tried."),
        ((failed(Status.COMPILE),) * 2, True, "No result: none of 2 trials was correct."),
        (
            (failed(Status.CORRECT),),
            True,
            "No result: the finalists were not compared with the baseline.",
        ),
        (
            (failed(Status.CORRECT),),
            False,
            "No result yet: the run ended before the finalists were compared with the baseline.",
        ),
    ],
)
def test_a_run_without_a_result_says_why(records, finished, text):
    said = headline(ReportData("k", "GPU", False, records=records, finished=finished))
    assert (said.tone, said.headline) == ("none", text)


def test_a_run_whose_finalists_all_failed_says_what_the_last_was_wrong_in() -> None:
    (here, _), (there, _) = (
        (replace(failed(Status.INCORRECT)[0], config=Config.of({"block": block})), 0.0)
        for block in (64, 128)
    )
    check = Check("sanitizers", there.workload, there.config, False, "y[1] is 2, expected 3", "t")
    data = ReportData("k", "GPU", False, records=(failed(Status.CORRECT),), finished=True)
    said = headline(replace(data, finals=(replace(here, reason="y[0] is 1, expected 2"),)))
    assert said.headline == (
        "No result: the only finalist failed a check that comes after the search; the last: "
        "y[0] is 1, expected 2"
    )
    said = headline(replace(data, finals=(here,), checks=(check,)))
    assert said.headline.startswith("No result: all 2 finalists failed a check")
    assert said.headline.endswith("y[1] is 2, expected 3")
    assert "ended before" in headline(replace(data, finals=(here,), finished=False)).headline


def test_a_speedup_beyond_belief_is_told_with_a_warning() -> None:
    assert "LOOK TWICE" not in judge((10.0, 9.9, 10.1))[1]
    _, text = judge(FASTER, (10.5, 10.4, 10.6))
    assert "LOOK TWICE at T=1: over 10x" in text


HERE, EDGE = Workload.of({"T": 64}), Workload.of({"T": 1})
WINNER, OTHER = Config.of({"block": 64}), Config.of({"block": 32})
RESULT = Result(HERE, 2.0, 1.0, 2.0, (1.9, 2.1), True, 0.5, WINNER, None, None)
LIVE = ReportData("k", "NVIDIA L4", False, results=(RESULT,), declared=Declared((EDGE,)))
SCORE = MutationScore(
    kernel="k",
    subject="baseline",
    mutants=50,
    killed=39,
    survived=1,
    equivalent=4,
    stillborn=6,
    survivors=("one",),
    source_sha="00",
    date="2026-11-20",
)


def check(kind: str, passed: bool | None, reason: str = "", **changes: object) -> Check:
    return replace(Check(kind, EDGE, WINNER, passed, reason, "NVIDIA L4"), **changes)


def run(*checks: Check, data: ReportData = LIVE, **changes: object) -> ReportData:
    return replace(data, checks=checks, **changes)


@pytest.mark.parametrize(
    ("earlier", "later", "device", "failures"),
    [
        (False, True, "NVIDIA L4", 0),
        (True, False, "NVIDIA L4", 1),
        (False, None, "NVIDIA L4", 1),
        (False, True, "host CPU", 1),
    ],
)
def test_only_a_later_verdict_of_the_same_device_replaces_one(earlier, later, device, failures):
    checks = check("verify", earlier), check("verify", later, device=device)
    assert len(summary.failures(run(*checks))) == failures


def test_checks_are_counted_by_kind_and_device_in_a_fixed_order():
    rows = summary.check_rows(
        run(
            check("memcheck", True),
            check("own tool", True),
            check("edge_cases", True),
            check("edge_cases", None, workload=HERE),
            check("edge_cases", True, device="host CPU"),
            check("edge_cases", False, config=OTHER),
        )
    )
    assert [(row.kind, row.device, row.passed, row.failed, row.not_run) for row in rows] == [
        ("edge_cases", "NVIDIA L4", 1, 0, 1),
        ("edge_cases", "host CPU", 1, 0, 0),
        ("memcheck", "NVIDIA L4", 1, 0, 0),
        ("own tool", "NVIDIA L4", 1, 0, 0),
    ]
    assert [bool(row.meaning) for row in rows] == [True, True, True, False]


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({"recorded": True, "session": "s/1"}, ("tune verify s/1", "tune verify s/1")),
        ({"declared": None}, ("cannot be read any more", "not installed where this was measured")),
        ({"declared": Declared()}, ("declares none", "not installed")),
        ({"on_cpu": True}, ("did not come to them", "sanitizers are not installed")),
        ({"environment": {"watched_by": "memcheck"}}, ("did not come", "too large for them")),
    ],
)
def test_what_was_not_checked_is_named_with_the_reason(changes, notes):
    rows = summary.check_rows(run(**changes))
    assert [(row.passed, row.failed, row.not_run) for row in rows] == [(0, 0, 0)] * 2
    for row, note in zip(rows, notes, strict=True):
        assert note in row.note


def test_without_a_winner_there_is_nothing_to_check():
    assert summary.check_rows(ReportData("k", "GPU", False)) == ()


def test_failures_come_before_what_could_not_be_run_and_long_reasons_are_cut():
    checks = check("edge_cases", None, "too large"), check("memcheck", False, "e" * 999)
    found = summary.open_checks(run(*checks))
    assert [one.passed for one in found] == [False, None]
    assert len(summary.reason_of(found[0])) <= summary.REASON_LENGTH + 2


def test_finalists_that_failed_are_counted_apart():
    lost = run(check("edge_cases", False, config=OTHER), check("verify", False, config=OTHER))
    assert summary.verification_notes(lost) == (
        "1 other finalist failed a check and was left out of the comparison.",
    )
    assert summary.open_checks(lost) == ()


FILLS, BITS = "Inputs of finalists and baseline", "Equal bits in two runs"
FINAL = Trial("c", HERE, WINNER, Status.CORRECT, stage="finals")
FINALS = (
    replace(FINAL, correctness=Correctness(True, ("x3", "extreme", "normal"))),
    replace(FINAL, status=Status.INCORRECT, correctness=Correctness(False, ("negated",))),
)


@pytest.mark.parametrize(
    ("changes", "fact", "text"),
    [
        ({"finals": FINALS}, FILLS, "normal, x3, extreme"),
        ({}, FILLS, "no finalist was verified"),
        ({"recorded": True}, FILLS, "when the recording was made: every kind"),
        (
            {"recorded": True, "results": (replace(RESULT, paired=False),)},
            FILLS,
            "when the recording was made: every kind where the result is paired, two kinds where "
            "it is unpaired",
        ),
        ({}, BITS, "required of every output"),
        (
            {"declared": Declared(varying=("sum", "count"))},
            BITS,
            "required, but for sum, count: declared `deterministic: false`",
        ),
        (
            {"declared": Declared(extremes={"x": "up to 10000 (squares are summed)"})},
            "Extremes",
            "left out: x: up to 10000 (squares are summed)",
        ),
        (
            {"declared": Declared(asking=("k.cu",))},
            "Other code on the CPU",
            "k.cu: what passes on one of the two says nothing of the other's code",
        ),
        ({"recorded": True}, "Edge cases", "T=1 (not run)"),
        ({"recorded": True}, "Tools that watched the winners", "none"),
    ],
)
def test_what_was_verified_is_told_as_it_was(changes, fact, text):
    assert dict(summary.verification_facts(run(**changes)))[fact] == text


def test_a_recording_cannot_run_a_kernel():
    assert "a recording cannot run a kernel" in summary.verification_notes(run(recorded=True))[0]


def test_what_was_verified_later_is_claimed_for_a_recording_too():
    on_cpu = [check(kind, True, device="host CPU") for kind in ("sanitizers", "edge_cases")]
    recording = run(*on_cpu, recorded=True, environment={"watched_by": "nothing"})
    said = dict(summary.verification_facts(recording))
    assert said["Edge cases"] == "T=1"
    assert said["Tools that watched the winners"].startswith("sanitizers;")
    assert summary.verification_notes(recording) == ()
    assert [row.kind for row in summary.check_rows(recording)] == ["edge_cases", "sanitizers"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {},
            "97.5 % of 40 broken kernels caught, 1 not (baseline, on the host device, 2026-11-20)",
        ),
        ({"killed": 99_999}, "99.9 % of 100,000 broken kernels caught, 1 not"),
        ({"survived": 0}, "100.0 % of 39 broken kernels caught, 0 not"),
        ({"mutants": 500}, "2026-11-20, 50 of 500 mutants tried)"),
        ({"killed": 0, "survived": 0}, "no mutant of baseline could be counted (2026-11-20)"),
    ],
)
def test_the_mutation_score_is_never_rounded_up_to_all(changes, text):
    assert text in summary.mutation(run(mutation=SCORE.model_copy(update=changes)))


def test_a_score_that_was_not_measured_says_how_to():
    assert "run `tune mutate" in summary.mutation(LIVE)


def test_where_timed_calls_met_the_same_inputs_all_the_time_is_told() -> None:
    where = Workload.of({"T": 8})
    varied = Comparison(Workload.of({"T": 9}), (), ())
    data = ReportData("k", "GPU", False, comparisons=(varied, Comparison(where, (), ())))
    assert [*summary.facts(data)] == []
    data = replace(data, comparisons=(varied, Comparison(where, (), (), unvaried=True)))
    ((name, text),) = summary.facts(data)
    assert name == "timed calls"
    assert text.startswith("met the same inputs all the time on T=8, ")
    assert json_of(data)["unvaried"] == ["T=8"]
