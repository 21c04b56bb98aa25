"""The first line of a report says what the intervals allow, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Check, Result, Status, Trial
from tuner.report.data import ReportData
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
    ("values", "tone", "headline"),
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
def test_the_headline_follows_the_intervals(values, tone, headline):
    assert judge(*values) == (tone, headline)


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
    check = Check("boundary", data.results[0].workload, Config.of({"a": 1}), False, "wrong")
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
    ("records", "finished", "headline"),
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
def test_a_run_without_a_result_says_why(records, finished, headline):
    said = headline(ReportData("k", "GPU", False, records=records, finished=finished))
    assert (said.tone, said.headline) == ("none", headline)


def test_a_speedup_beyond_belief_is_told_with_a_warning() -> None:
    assert "LOOK TWICE" not in judge((10.0, 9.9, 10.1))[1]
    _, headline = judge(FASTER, (10.5, 10.4, 10.6))
    assert "LOOK TWICE at T=1: over 10x" in headline
