"""Kernels that cheat, crash or hang: each is caught, and the device works afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from statistics import median

import pytest
from adversaries import ON_CUDA, WHILE_TIMED, Adversary
from on_trial import Build, OneDevice, check_caught, check_passes, check_unusual_passes, honest
from operators import SCALE, Operator
from unusual_kernels import UNUSUAL, Unusual

from tuner.device.base import Device, Program
from tuner.device.cuda.device import CudaDevice
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status

(LAUNCH,) = SCALE.launches


@pytest.fixture(scope="module")
def devices() -> Iterator[OneDevice]:
    def make(operator: Operator, _: tuple[str, ...]) -> CudaDevice:
        return CudaDevice(0, operator.spec, {})

    devices = OneDevice(make)
    yield devices
    devices.close()


@pytest.fixture
def built(build: Callable[..., Program]) -> Build:
    """Build as the host's tests do; nothing here has sanitizers."""

    def built(
        source: str, workload: Workload, launches: tuple[Launch, ...], _: tuple[str, ...]
    ) -> Program:
        return build(source, workload, *launches)

    return built


@pytest.mark.parametrize("adversary", ON_CUDA, ids=[adversary.name for adversary in ON_CUDA])
def test_it_is_caught(devices: OneDevice, built: Build, adversary: Adversary) -> None:
    device = devices.of(adversary.operator)
    with device.limiting_runs(2.0) if adversary.check == "timeout" else nullcontext():
        check_caught(device, built, adversary, adversary.on_cuda or adversary.reason)


@pytest.mark.parametrize("unusual", UNUSUAL, ids=[unusual.name for unusual in UNUSUAL])
def test_it_passes(devices: OneDevice, built: Build, unusual: Unusual) -> None:
    check_unusual_passes(devices.of(unusual.operator), built, unusual)


class TestOnlyOnAGpu:
    @pytest.fixture
    def device(self, devices: OneDevice) -> Device:
        return devices.of(SCALE)

    @pytest.fixture(autouse=True)
    def works_afterwards(self, device: Device, built: Build) -> Iterator[None]:
        yield
        check_passes(device, honest(built, SCALE))

    @pytest.mark.parametrize("adversary", WHILE_TIMED, ids=[one.name for one in WHILE_TIMED])
    def test_what_fails_only_while_it_is_timed_costs_one_trial(
        self, device: Device, built: Build, adversary: Adversary, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = built(adversary.source, SCALE.workload, adversary.launches, ())
        with monkeypatch.context() as patched:
            patched.setattr("tuner.device.cuda.device.TIMING_TIMEOUT_S", 3.0)
            assert device.run(program).status is adversary.status

    @pytest.mark.parametrize(
        "launch",
        [
            replace(LAUNCH, grid=(0, 1, 1)),
            replace(LAUNCH, cluster=(3, 1, 1)),  # does not divide the grid
            replace(LAUNCH, grid=(1024, 1, 1), cluster=(64, 1, 1)),
        ],
        ids=["empty grid", "odd cluster", "huge cluster"],
    )
    def test_a_launch_that_the_driver_refuses_costs_one_trial(
        self, device: Device, built: Build, launch: Launch
    ) -> None:
        outcome = device.run(replace(honest(built, SCALE), launches=(launch,)))
        assert outcome.status is Status.LAUNCH
        assert "CUDA_ERROR" in outcome.reason

    def test_who_leaves_a_result_that_is_there_already_gains_nothing(
        self, device: Device, built: Build
    ) -> None:
        """It is right in every check: no timed call may find what an earlier one left."""
        workload, launches = Workload.of({"T": 1 << 22}), (replace(LAUNCH, grid=(2048, 1, 1)),)
        lazy = SCALE.kernel("leaves a result that is there already").read_text("utf-8")
        programs = [built(text, workload, launches, ()) for text in (SCALE.plain, lazy)]
        rounds = device.compare(programs, rounds=20)
        assert rounds.faults == ("", "")
        plain_us, lazy_us = (median(column) for column in zip(*rounds.times_us, strict=True))
        assert lazy_us > 0.8 * plain_us
