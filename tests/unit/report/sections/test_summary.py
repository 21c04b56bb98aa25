"""What a report says first, never more than the intervals and the checks allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Check, Correctness, Result, Status, Trial
from tuner.mutation.examine import MutationScore
from tuner.report.data import Declared, ReportData
from tuner.report.sections import summary
from tuner.report.sections.summary import headline


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
            "95 % intervals exclude 1 on 2 of 2.",
        ),
        (
            (FASTER,),
            "faster",
            "2.00x faster than the baseline (on 1 tuned workload); "
            "95 % intervals exclude 1 on 1 of 1.",
        ),
        (
            (FASTER, FASTER, SLOWER),
            "faster",
            "1.47x faster than the baseline (geometric mean over 3 tuned workloads); "
            "95 % intervals exclude 1 on 2 of 3, slower on 1.",
        ),
        (
            (SAME, SAME),
            "same",
            "No difference from the baseline: no 95 % interval excludes 1 "
            "(geometric mean over 2 tuned workloads: 1.01x).",
        ),
        (
            (FASTER, SAME, SAME),
            "faster",
            "Faster on 1 of 3 tuned workloads; geometric mean over 3 tuned workloads: 1.27x.",
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


def test_a_recording_is_named_before_anything_else(data):
    text = str(headline(data))
    assert text.startswith("RECORDED on NVIDIA H200, 2026-11-20. 1.49x faster")


def test_a_live_run_says_where_it_was_measured(data):
    assert str(headline(replace(data, recorded=False))).startswith("Measured on NVIDIA H200")


def test_a_run_on_a_cpu_is_said_to_be_one_in_every_sentence_on_speed(data):
    said = headline(replace(data, recorded=False, on_cpu=True, device="host CPU"))
    assert said.origin.startswith("Run on the CPU, host CPU, 2026-11-20: no time here")
    assert said.headline.startswith("On the CPU: 1.49x faster")
    assert said.tone == "same"


def test_a_failed_check_of_a_winner_comes_before_all_else(data):
    config = data.results[0].config
    check = Check("memcheck", data.results[0].workload, config, False, "reads past\nthe end.")
    said = headline(replace(data, checks=(check, check, replace(check, kind="racecheck"))))
    assert said.tone == "failed"
    assert said.headline.startswith("NOT TO BE TRUSTED: what was tuned for T=1 D=11008")
    assert said.headline.endswith("memcheck on T=1 D=11008: reads past the end (1 more failed).")
    assert "faster" not in str(said)


@pytest.mark.parametrize("passed", [True, None])
def test_a_check_that_passed_or_could_not_be_run_changes_no_verdict(data, passed):
    check = Check("verify", data.results[0].workload, data.results[0].config, passed, "why")
    assert headline(replace(data, checks=(check,))) == headline(data)


def test_a_failed_check_of_a_config_that_won_nothing_changes_no_verdict(data):
    check = Check("edge_cases", data.results[0].workload, Config.of({"a": 1}), False, "wrong")
    assert headline(replace(data, checks=(check,))) == headline(data)


def test_held_out_workloads_are_judged_apart(data):
    assert headline(data).held_out == "Held-out: 1.19x over 3 workloads, faster on 2 of 3."


def test_held_out_workloads_that_lose_are_counted():
    results = (result(*FASTER), result(*SLOWER, tokens=2, held=True))
    said = headline(ReportData("k", "GPU", False, results=results))
    assert said.held_out == "Held-out: 0.80x over 1 workload, faster on 0 of 1, slower on 1."


def test_only_held_out_results_are_the_headline():
    said = headline(ReportData("k", "GPU", False, results=(result(*FASTER, held=True),)))
    assert "1 held-out workload" in said.headline
    assert said.held_out == ""


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


def test_a_later_verdict_replaces_an_earlier_one_of_the_same_device():
    assert summary.failures(run(check("verify", False), check("verify", True))) == ()
    assert len(summary.failures(run(check("verify", True), check("verify", False)))) == 1


def test_what_could_not_be_run_later_takes_no_verdict_back():
    assert len(summary.failures(run(check("verify", False), check("verify", None)))) == 1


def test_what_passes_on_another_device_takes_no_failure_back():
    on_cpu = check("verify", True, device="host CPU")
    assert len(summary.failures(run(check("verify", False), on_cpu))) == 1


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
    assert summary.left_out(lost) == 1
    assert summary.verification_notes(lost) == (
        "1 other finalist failed a check and was left out of the comparison.",
    )
    assert summary.open_checks(lost) == ()


def test_the_inputs_are_those_that_a_finalist_was_seen_to_pass_with():
    passed = Trial("c", HERE, WINNER, Status.CORRECT, stage="finals")
    fills = Correctness(True, ("x3", "extreme", "normal"))
    failed = Correctness(False, ("negated",))
    finals = (
        replace(passed, correctness=fills),
        replace(passed, status=Status.INCORRECT, correctness=failed),
    )
    said = dict(summary.verification_facts(run(finals=finals)))
    assert said["Inputs of finalists and baseline"] == "normal, x3, extreme"
    assert (
        dict(summary.verification_facts(LIVE))["Inputs of finalists and baseline"]
        == "no finalist was verified"
    )


def test_outputs_that_may_vary_are_named():
    said = dict(summary.verification_facts(run(declared=Declared(varying=("sum", "count")))))
    assert said["Equal bits in two runs"] == (
        "required, but for sum, count: declared `deterministic: false`"
    )
    assert (
        dict(summary.verification_facts(LIVE))["Equal bits in two runs"]
        == "required of every output"
    )


def test_a_recording_claims_neither_boundaries_nor_tools():
    recording = run(recorded=True)
    said = dict(summary.verification_facts(recording))
    assert said["Edge cases"] == "T=1 (not run)"
    assert said["Tools that watched the winners"] == "none"
    assert "a recording cannot run a kernel" in summary.verification_notes(recording)[0]


def test_an_unpaired_result_of_a_recording_was_checked_with_fewer_inputs():
    unpaired = replace(RESULT, paired=False)
    fills = "Inputs of finalists and baseline"
    assert (
        "two kinds"
        in dict(summary.verification_facts(run(recorded=True, results=(unpaired,))))[fills]
    )
    assert "two kinds" not in dict(summary.verification_facts(run(recorded=True)))[fills]


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
