"""Extremes end where the baseline is right; what comes later on the workload gets the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from idle_runner import IdleRunner

from tuner.device.base import DeviceInfo, Program
from tuner.device.inputs import EXTREME, EXTREMES, limit_extremes, split_kind
from tuner.device.layout import Arena, Layout
from tuner.device.verify.verified_device import VerifiedDevice
from tuner.model.config import Config
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Correctness, Status

WORKLOAD = Workload.of({"T": 8})
BASELINE = Program("key", WORKLOAD, ())
CONFIG = replace(BASELINE, config=Config.of({"n": 1}))
INFO = DeviceInfo("a GPU", "sm_90a", (9, 0), 132, 1, 1.0, recorded=False)
INEXACT = "y[0] is inf, expected 3 (1e+30 times the tolerance)"


class Judge:
    """A verifier's process that finds a program wrong with extremes beyond a number."""

    def __init__(self, right_up_to: float, said: str = INEXACT) -> None:
        self.right_up_to, self.said = right_up_to, said
        self.kinds: list[str] = []

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        if method == "open_arena":
            return Arena(WORKLOAD.key, Layout((), (), 0), None, None)
        if method == "prepare":
            self.kinds.append(arguments[1])
            return True
        if method in ("poison", "require_telling"):
            return None
        kind, largest = split_kind(self.kinds[-1])
        reason = self.said if kind == EXTREME and largest > self.right_up_to else ""
        return Correctness(not reason, (self.kinds[-1],), (), reason)


class Runner(IdleRunner):
    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        return ""


Verifying = Callable[..., tuple[VerifiedDevice, Judge]]


@pytest.fixture
def verifying(make_spec: Callable[..., KernelSpec]) -> Verifying:
    def make(*judged: Any) -> tuple[VerifiedDevice, Judge]:
        judge = Judge(*judged)
        spec = make_spec(("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))
        return VerifiedDevice(INFO, spec, judge, Runner()), judge  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize("largest", EXTREMES)
def test_the_largest_are_taken_on_which_the_baseline_is_right(
    verifying: Verifying, largest: float
) -> None:
    device, judge = verifying(largest)
    outcome = device.verify(BASELINE)
    assert outcome.status is Status.CORRECT
    assert outcome.correctness is not None
    kind = limit_extremes(largest)
    assert kind in outcome.correctness.input_kinds
    assert EXTREME not in outcome.correctness.input_kinds
    judge.kinds.clear()
    assert device.verify(CONFIG).status is Status.CORRECT
    assert [one for one in judge.kinds if one.startswith(EXTREME)] == [kind]


def test_there_are_none_where_it_is_wrong_with_any(verifying: Verifying) -> None:
    device, judge = verifying(0.0)
    outcome = device.verify(BASELINE)
    assert outcome.status is Status.CORRECT
    assert outcome.correctness is not None
    assert "extreme left out" in outcome.correctness.input_kinds
    judge.kinds.clear()
    assert device.verify(CONFIG).status is Status.CORRECT
    assert not [one for one in judge.kinds if one.startswith(EXTREME)]


def test_a_baseline_that_is_right_keeps_all(verifying: Verifying) -> None:
    device, judge = verifying(float("inf"))
    device.verify(BASELINE)
    assert judge.kinds.count(EXTREME) == 1
    judge.kinds.clear()
    device.verify(CONFIG)
    assert EXTREME in judge.kinds


def test_a_config_is_given_no_smaller_ones(verifying: Verifying) -> None:
    device, judge = verifying(1e9)
    outcome = device.verify(CONFIG)
    assert outcome.status is Status.INCORRECT
    assert [one for one in judge.kinds if one.startswith(EXTREME)] == [EXTREME]


def test_a_baseline_that_writes_beside_its_buffers_is_wrong(verifying: Verifying) -> None:
    device, _ = verifying(1e9, "wrote outside its buffers (after y)")
    assert device.verify(BASELINE).status is Status.INCORRECT


def test_a_further_workload_begins_where_the_first_one_ended(verifying: Verifying) -> None:
    device, judge = verifying(1e9)
    device.verify(BASELINE)
    judge.right_up_to = float("inf")  # of few numbers none need overflow
    judge.kinds.clear()
    near = Workload.of({"T": 3})
    device.verify(replace(BASELINE, workload=near))
    device.verify(replace(CONFIG, workload=near))
    assert {one for one in judge.kinds if one.startswith(EXTREME)} == {limit_extremes(1e9)}
