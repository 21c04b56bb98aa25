"""What decides about a peer: inputs as a model gives them; what it fails besides is only told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from idle_runner import IdleRunner

from tuner.device.base import DeviceInfo, Outcome, Program
from tuner.device.inputs import INPUT_KINDS, NORMAL, ORDINARY
from tuner.device.layout import Arena, Layout
from tuner.device.verify.verified_device import VerifiedDevice
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Correctness, Status

WORKLOAD = Workload.of({"T": 8})
PEER = Program("key", WORKLOAD, (), peer="pytorch")
INFO = DeviceInfo("a GPU", "sm_90a", (9, 0), 132, 1, 1.0, recorded=False)


class Judge:
    """A verifier's process that finds these kinds of input wrong, and errors of this size."""

    def __init__(self, wrong: Iterable[str], error: float) -> None:
        self.wrong, self.error = tuple(wrong), error
        self.kinds: list[str] = []
        self.as_peer: list[str] = []

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        if method == "open_arena":
            return Arena(WORKLOAD.key, Layout((), (), 0), None, None)
        if method == "prepare":
            self.kinds.append(arguments[1])
            return True
        assert method == "check"
        self.as_peer.append(arguments[2])
        kind = self.kinds[-1]
        reason = f"with inputs '{kind}' (seed 1): y[0] is 0" if kind in self.wrong else ""
        return Correctness(not reason, (kind,), (("y", self.error),), reason)


class Runner(IdleRunner):
    """Runs nothing; has something to say of it."""

    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        return "; as it said"


Verified = Callable[..., tuple[Outcome, Judge]]


@pytest.fixture
def verified(make_spec: Callable[..., KernelSpec]) -> Verified:
    def verify(wrong: Iterable[str] = (), error: float = 0.5) -> tuple[Outcome, Judge]:
        judge = Judge(wrong, error)
        spec = make_spec(("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))
        device = VerifiedDevice(INFO, spec, judge, Runner())  # type: ignore[arg-type]
        return device.verify(PEER), judge

    return verify


def test_one_that_is_always_right_has_nothing_told(verified: Verified) -> None:
    outcome, judge = verified()
    assert (outcome.status, outcome.reason) == (Status.CORRECT, "")
    assert set(judge.kinds) == set(INPUT_KINDS)
    assert judge.kinds[-1] == NORMAL, "whose inputs are timed"
    assert judge.as_peer == ["peer"] * len(INPUT_KINDS)


def test_what_it_fails_besides_is_told(verified: Verified) -> None:
    outcome, judge = verified(("zeros", "extreme"))
    assert outcome.status is Status.CORRECT
    assert outcome.reason.startswith("fails zeros, extreme: with inputs 'zeros'")
    assert NORMAL in judge.kinds
    assert outcome.correctness is not None
    assert set(outcome.correctness.input_kinds) == {*INPUT_KINDS} - {"zeros", "extreme"}


@pytest.mark.parametrize("kind", ORDINARY)
def test_one_that_fails_ordinary_inputs_is_wrong(verified: Verified, kind: str) -> None:
    outcome, _ = verified(("extreme", kind))
    assert outcome.status is Status.INCORRECT
    assert outcome.reason == f"with inputs '{kind}' (seed 1): y[0] is 0; as it said"


def test_one_that_rounds_otherwise_is_right_and_that_is_told(verified: Verified) -> None:
    outcome, _ = verified(("extreme",), error=1.084)
    assert outcome.status is Status.CORRECT
    assert outcome.reason.startswith("is off by up to 1.08 times the tolerance; fails extreme: ")
