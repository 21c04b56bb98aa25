"""Put kernels before a device: it must catch the adversaries and pass the honest ones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

from adversaries import PAUSE_S, Adversary
from operators import Operator
from unusual_kernels import Unusual

from tuner.device.base import Device, Program
from tuner.device.timing import SEARCH
from tuner.device.verify import verified_device
from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status

# Source, workload, launches and sanitizers to a program.
Build = Callable[[str, Workload, tuple[Launch, ...], tuple[str, ...]], Program]
CONFIG = Config.of({"variant": 1})
# What stops working in the eighth call on the same inputs is never seen to where a quiet machine
# times six.
LONGER = replace(SEARCH, min_samples=16)
# With them a kernel has run oftener on the host than `run` makes it.
ROUNDS = 400


class OneDevice:
    """Keep one device open at a time: two on one GPU are refused."""

    def __init__(self, make: Callable[[Operator, tuple[str, ...]], Device]) -> None:
        self._make = make
        self._what: tuple[Operator, tuple[str, ...]] | None = None
        self._device: Device | None = None

    def of(self, operator: Operator, sanitizers: tuple[str, ...] = ()) -> Device:
        """Return the operator's device for code with these sanitizers, closing another."""
        if self._device is None or self._what != (operator, sanitizers):
            self.close()
            self._device = self._make(operator, sanitizers)
            self._what = operator, sanitizers
        return self._device

    def close(self) -> None:
        """Close what is open."""
        if self._device is not None:
            self._device.close()
        self._device = None


def build_config(build: Build, adversary: Adversary, workload: Workload) -> Program:
    """Build it as a config's program: where a baseline is wrong with large inputs, they shrink."""
    made = build(adversary.source, workload, adversary.launched, adversary.sanitizers)
    return replace(made, config=CONFIG)


def check_caught(device: Device, build: Build, adversary: Adversary, reason: str) -> None:
    """Fail unless the device catches the kernel for this reason and works on afterwards."""
    passes_on = adversary.passes_on
    if passes_on is not None:
        check_passes(device, build_config(build, adversary, passes_on))
    program = build_config(build, adversary, adversary.where)
    if adversary.check == "phases":
        outcome = device.run(program, full_verification=True)
        said = outcome.reason
        if outcome.status is Status.CORRECT:
            # The rarest of them hands an old result over in one call of thirty.
            programs = [honest(build, adversary.operator), program]
            (right, said) = device.compare(programs, rounds=ROUNDS).faults
            assert not right
        assert re.search(reason, said, re.DOTALL), said or "nothing was wrong with it"
    elif adversary.check == "after comparing":
        _check_caught_comparing(device, build, adversary, program, reason)
    else:
        timed = adversary.check == "after timing"
        if timed:
            with patch.object(verified_device, "SEARCH", LONGER):
                outcome = device.run(program, full_verification=True)
        else:
            outcome = device.verify(program)
        assert outcome.status is adversary.status, outcome.reason or "nothing was wrong with it"
        assert re.search(reason, outcome.reason, re.DOTALL), outcome.reason
        assert outcome.measurement is None
    check_passes(device, honest(build, adversary.operator, adversary.sanitizers))


def check_passes(device: Device, program: Program) -> None:
    """Fail unless the device finds nothing wrong with the program."""
    outcome = device.verify(program)
    assert outcome.status is Status.CORRECT, outcome.reason


def check_unusual_passes(device: Device, build: Build, unusual: Unusual) -> None:
    """Fail unless the kernel is right in every respect, and timed."""
    program = build(unusual.source, unusual.operator.workload, unusual.launched, ())
    outcome = device.run(program, full_verification=True)
    assert outcome.status is Status.CORRECT, outcome.reason
    assert outcome.measurement is not None
    assert outcome.measurement.median_us > 0


def honest(build: Build, operator: Operator, sanitizers: tuple[str, ...] = ()) -> Program:
    """Build the operator's plain kernel."""
    return build(operator.plain, operator.workload, operator.launches, sanitizers)


def _check_caught_comparing(
    device: Device, build: Build, adversary: Adversary, program: Program, reason: str
) -> None:
    outcome = device.run(program, full_verification=True)
    assert outcome.status is Status.CORRECT, outcome.reason
    time.sleep(PAUSE_S)
    programs = [honest(build, adversary.operator), program]
    try:
        (right, wrong) = device.compare(programs, rounds=ROUNDS).faults
    except DeviceError as error:
        right, wrong = "", str(error)
    assert not right
    assert re.search(reason, wrong, re.DOTALL), wrong or "nothing was wrong with it"
