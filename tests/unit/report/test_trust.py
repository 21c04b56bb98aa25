"""What the report says of the checks: never more than was checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Check, Correctness, Result, Status, Trial
from tuner.mutation.examine import MutationScore
from tuner.report.data import Declared, ReportData
from tuner.report.sections import verification

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
    assert verification.failures(run(check("verify", False), check("verify", True))) == ()
    assert len(verification.failures(run(check("verify", True), check("verify", False)))) == 1


def test_what_could_not_be_run_later_takes_no_verdict_back():
    assert len(verification.failures(run(check("verify", False), check("verify", None)))) == 1


def test_what_passes_on_another_device_takes_no_failure_back():
    on_cpu = check("verify", True, device="host CPU")
    assert len(verification.failures(run(check("verify", False), on_cpu))) == 1


def test_checks_are_counted_by_kind_and_device_in_a_fixed_order():
    rows = verification.check_rows(
        run(
            check("memcheck", True),
            check("own tool", True),
            check("boundary", True),
            check("boundary", None, workload=HERE),
            check("boundary", True, device="host CPU"),
            check("boundary", False, config=OTHER),
        )
    )
    assert [(row.kind, row.device, row.passed, row.failed, row.not_run) for row in rows] == [
        ("boundary", "NVIDIA L4", 1, 0, 1),
        ("boundary", "host CPU", 1, 0, 0),
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
    rows = verification.check_rows(run(**changes))
    assert [(row.passed, row.failed, row.not_run) for row in rows] == [(0, 0, 0)] * 2
    for row, note in zip(rows, notes, strict=True):
        assert note in row.note


def test_without_a_winner_there_is_nothing_to_check():
    assert verification.check_rows(ReportData("k", "GPU", False)) == ()


def test_failures_come_before_what_could_not_be_run_and_long_reasons_are_cut():
    checks = check("boundary", None, "too large"), check("memcheck", False, "e" * 999)
    found = verification.blames(run(*checks))
    assert [one.verdict for one in found] == ["failed", "not run"]
    assert len(found[0].reason) <= verification.REASON_LENGTH + 2


def test_finalists_that_failed_are_counted_apart():
    lost = run(check("boundary", False, config=OTHER), check("verify", False, config=OTHER))
    assert verification.left_out(lost) == 1
    assert verification.notes(lost) == (
        "1 other finalist failed a check and was left out of the comparison.",
    )
    assert verification.blames(lost) == ()


def test_the_inputs_are_those_that_a_finalist_was_seen_to_pass_with():
    passed = Trial("c", HERE, WINNER, Status.CORRECT, stage="finals")
    fills = Correctness(True, ("x3", "extreme", "normal"))
    failed = Correctness(False, ("negated",))
    finals = (
        replace(passed, correctness=fills),
        replace(passed, status=Status.INCORRECT, correctness=failed),
    )
    said = dict(verification.facts(run(finals=finals)))
    assert said["Inputs of finalists and baseline"] == "normal, x3, extreme"
    assert (
        dict(verification.facts(LIVE))["Inputs of finalists and baseline"]
        == "no finalist was verified"
    )


def test_outputs_that_may_vary_are_named():
    said = dict(verification.facts(run(declared=Declared(varying=("sum", "count")))))
    assert said["Equal bits in two runs"] == (
        "required, but for sum, count: declared `deterministic: false`"
    )
    assert dict(verification.facts(LIVE))["Equal bits in two runs"] == "required of every output"


def test_a_recording_claims_neither_boundaries_nor_tools():
    recording = run(recorded=True)
    said = dict(verification.facts(recording))
    assert said["Boundary workloads"] == "T=1 (not run)"
    assert said["Tools that watched the winners"] == "none"
    assert "a recording cannot run a kernel" in verification.notes(recording)[0]


def test_an_unpaired_result_of_a_recording_was_checked_with_fewer_inputs():
    unpaired = replace(RESULT, paired=False)
    fills = "Inputs of finalists and baseline"
    assert "two kinds" in dict(verification.facts(run(recorded=True, results=(unpaired,))))[fills]
    assert "two kinds" not in dict(verification.facts(run(recorded=True)))[fills]


def test_what_was_verified_later_is_claimed_for_a_recording_too():
    on_cpu = [check(kind, True, device="host CPU") for kind in ("sanitizers", "boundary")]
    recording = run(*on_cpu, recorded=True, environment={"watched_by": "nothing"})
    said = dict(verification.facts(recording))
    assert said["Boundary workloads"] == "T=1"
    assert said["Tools that watched the winners"].startswith("sanitizers;")
    assert verification.notes(recording) == ()
    assert [row.kind for row in verification.check_rows(recording)] == ["boundary", "sanitizers"]


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
    assert text in verification.mutation(run(mutation=SCORE.model_copy(update=changes)))


def test_a_score_that_was_not_measured_says_how_to():
    assert "run `tune mutate" in verification.mutation(LIVE)
