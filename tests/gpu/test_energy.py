"""The energy counter of a real GPU: idle, loaded, repeated, and programs that fail meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from silu_kernels import LAUNCH, WORKLOAD, silu

from tuner.device.base import Outcome, Program
from tuner.device.cuda.device import CudaDevice
from tuner.model.errors import DeviceError
from tuner.model.trial import EnergyWindow, Status
from tuner.space.load import Definition

Build = Callable[..., Program]

# Shorter than for results: what is tested here is far from the resolution.
WINDOW_S = 1.5
# Additions of what is zero, which the compiler cannot know.
BUSY = """
const float nothing = static_cast<float>(T >> 31);
for (int k = 0; k < 8000; ++k) result += nothing;
"""


@pytest.fixture(scope="module")
def device(definition: Definition) -> Iterator[CudaDevice]:
    # As in a window, a kernel is timed alone.
    spec = replace(definition.spec, surroundings=())
    device = CudaDevice(0, spec, {"ACTIVATION": "silu"})
    try:
        device.require_energy()
    except DeviceError as error:
        device.close()
        pytest.skip(f"this GPU tells no energy: {error.message}")
    yield device
    device.close()


def measured(device: CudaDevice, program: Program) -> EnergyWindow:
    window = device.energy(program, seconds=WINDOW_S)
    assert isinstance(window, EnergyWindow), window
    return window


def test_a_loaded_gpu_draws_more_than_an_idle_one(device: CudaDevice, build: Build) -> None:
    program = build(silu(), WORKLOAD, LAUNCH)
    assert device.run(program).status is Status.CORRECT
    idle, loaded = device.idle_energy(seconds=WINDOW_S), measured(device, program)
    assert idle.seconds >= WINDOW_S
    assert loaded.seconds >= WINDOW_S
    assert 5.0 < idle.power_w < loaded.power_w < 2000.0
    assert idle.time_us is None
    assert loaded.temperature_c is None or 10 < loaded.temperature_c < 110
    assert loaded.clock_mhz is None or 100 < loaded.clock_mhz < 5000


def test_a_call_takes_as_long_in_a_window_as_when_it_is_timed(
    device: CudaDevice, build: Build
) -> None:
    program = build(silu(), WORKLOAD, LAUNCH)
    outcome = device.run(program, full_verification=True)
    assert outcome.measurement is not None
    window = measured(device, program)
    assert window.time_us == pytest.approx(outcome.measurement.median_us, rel=0.2)
    assert window.cold
    assert window.buffer_sets > 1


def test_windows_of_one_program_agree_and_more_work_costs_more(
    device: CudaDevice, build: Build
) -> None:
    plain, busy = build(silu(), WORKLOAD, LAUNCH), build(silu(each=BUSY), WORKLOAD, LAUNCH)
    assert device.run(busy).status is Status.CORRECT
    first, more, second = (measured(device, one) for one in (plain, busy, plain))
    assert first.power_w == pytest.approx(second.power_w, rel=0.15)

    def per_call(window: EnergyWindow) -> float:
        return window.energy_j / window.calls

    assert per_call(more) > 1.2 * max(per_call(first), per_call(second))


@pytest.mark.parametrize(
    ("spoiled", "status"),
    [
        # Right for as long as it is verified, wrong once it has run often.
        ("result = 0.0f;", Status.INCORRECT),
        ("__trap();", Status.LAUNCH),
    ],
)
def test_a_program_that_fails_meanwhile_comes_back_as_it_failed(
    device: CudaDevice, build: Build, spoiled: str, status: Status
) -> None:
    counting = "if (thread == 0) atomicAdd(&launches_so_far, 1);"
    late = f"if (*(volatile int*)&launches_so_far > 20000) {spoiled}"
    program = build(silu(after=counting, each=late), WORKLOAD, LAUNCH)
    found = device.energy(program, seconds=WINDOW_S)
    assert isinstance(found, Outcome)
    assert found.status is status, found.reason
    honest = build(silu(), WORKLOAD, LAUNCH)
    assert measured(device, honest).power_w > 0.0, "the device goes on"


def test_idle_is_measured_without_a_workload_and_after_a_replaced_worker(
    device: CudaDevice,
) -> None:
    first, second = (device.idle_energy(seconds=WINDOW_S) for _ in range(2))
    assert first.power_w == pytest.approx(second.power_w, rel=0.25)
