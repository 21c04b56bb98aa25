"""Kernels that cheat, crash or hang: each is caught, and the device works afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from adversaries import COUNTED, COUNTER, ON_CUDA, ONE_BLOCK, Adversary
from on_trial import Build, OneDevice, check_caught, check_passes, check_unusual_passes, honest
from operators import SCALE, Operator, in_scale
from unusual_kernels import UNUSUAL, Unusual

from tuner.device.base import Device, Outcome, Program
from tuner.device.cuda.device import CudaDevice
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status

(LAUNCH,) = SCALE.launches
# A search checks a kernel twice before it times it.
TIMED = COUNTED + "if (seen >= 2) "


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
def test_it_is_caught(
    devices: OneDevice, built: Build, adversary: Adversary, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert adversary.cuda is not None
    device = devices.of(adversary.operator)
    if adversary.check == "timeout":
        monkeypatch.setattr("tuner.device.cuda.device.RUN_TIMEOUT_S", 2.0)
    check_caught(device, built, adversary, adversary.cuda)


@pytest.mark.parametrize("unusual", UNUSUAL, ids=[unusual.name for unusual in UNUSUAL])
def test_it_passes(devices: OneDevice, built: Build, unusual: Unusual) -> None:
    check_unusual_passes(devices.of(unusual.operator), built, unusual)


class TestOnlyOnAGpu:
    @pytest.fixture
    def device(self, devices: OneDevice) -> Device:
        return devices.of(SCALE)

    @pytest.fixture
    def run(self, device: Device, built: Build) -> Iterator[Callable[..., Outcome]]:
        """Run a kernel; after the test an honest one must pass on the same device."""

        def run(source: str, launches: tuple[Launch, ...] = SCALE.launches) -> Outcome:
            return device.run(built(source, SCALE.workload, launches, ()))

        yield run
        check_passes(device, honest(built, SCALE))

    def test_an_illegal_address_while_timing_costs_one_trial(
        self, run: Callable[..., Outcome]
    ) -> None:
        source = in_scale(top=COUNTER, before=TIMED + "y[1ll << 42] = 1;")
        assert run(source, ONE_BLOCK).status is Status.LAUNCH

    def test_a_kernel_that_spins_only_while_it_is_timed_is_killed(
        self, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = in_scale(top=COUNTER, before=TIMED + "for (;;) __nanosleep(1000);")
        with monkeypatch.context() as patched:
            patched.setattr("tuner.device.cuda.device.TIMING_TIMEOUT_S", 3.0)
            outcome = run(source, ONE_BLOCK)
        assert outcome.status is Status.TIMEOUT

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
        self, run: Callable[..., Outcome], launch: Launch
    ) -> None:
        outcome = run(in_scale(), (launch,))
        assert outcome.status is Status.LAUNCH
        assert "CUDA_ERROR" in outcome.reason
