"""Windows of an energy counter: from tick to tick, with a GPU that is fed; and who has none."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from tests.support.simulated_device import H200_LIKE, MeteredDevice, SimulatedDevice
from tuner.device.cuda import energy
from tuner.device.cuda.energy import LIMITS, LONGEST_TICK_S, NvmlCounter, Sampled, Window
from tuner.model.errors import DeviceError

TICK_S = 0.1


class TickingGpu:
    """A GPU of constant power whose counter ticks, with a clock that only pauses move."""

    def __init__(self, power_w: float = 400.0, tick_s: float = TICK_S) -> None:
        self.now_s, self.power_w, self.tick_s = 7.0, power_w, tick_s
        self.fed = self.samples = 0
        self.longest_pause_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.longest_pause_s = max(self.longest_pause_s, seconds)
        self.now_s += seconds

    def energy_mj(self) -> int:
        ticks = int(self.now_s / self.tick_s + 1e-9)
        return round(ticks * self.tick_s * self.power_w * 1e3)

    def sample(self) -> Sampled:
        self.samples += 1
        limits = frozenset({"power limit"} if self.samples == 5 else ())
        return Sampled(1980 if self.samples > 2 else 345, 50, limits)

    def feed(self) -> None:
        self.fed += 1

    def window(self) -> Window:
        return Window(self, self.feed)


@pytest.fixture
def ticking(monkeypatch):
    """Make a GPU whose clock is the one that windows read."""

    def make(**given) -> TickingGpu:
        gpu = TickingGpu(**given)
        monkeypatch.setattr(energy, "time", gpu)
        return gpu

    return make


@pytest.mark.parametrize("tick_s", [0.02, 0.1, 0.3])
def test_a_window_lasts_as_long_as_asked_and_its_power_is_right_whenever_it_begins(tick_s, ticking):
    gpu = ticking(tick_s=tick_s)
    gpu.now_s += 0.37 * tick_s
    span = gpu.window().take(5.0)
    assert 5.0 <= span.seconds <= 5.0 + 2 * tick_s
    assert span.energy_j / span.seconds == pytest.approx(400.0, rel=1e-3)


def test_the_gpu_is_fed_all_the_time_and_looked_at(ticking):
    gpu = ticking()
    window = gpu.window()
    window.settle(1.0)
    assert gpu.now_s == pytest.approx(8.0)
    assert gpu.fed > 0
    assert not gpu.samples, "nothing is sampled while it settles"
    taken = window.take(5.0)
    assert gpu.fed >= 5.0 / 0.05
    assert gpu.longest_pause_s <= 0.05
    assert taken.clock_mhz == 1980, "the median, not the first"
    assert (taken.temperature_c, taken.limited_by) == (50, ("power limit",))


def test_a_counter_that_stands_still_is_reported(ticking):
    gpu = ticking(power_w=0.0)
    with pytest.raises(DeviceError, match="energy counter stood still for 5 s") as caught:
        gpu.window().take(5.0)
    assert "--objective time" in str(caught.value)
    assert gpu.now_s <= 7.0 + LONGEST_TICK_S + 0.1


class NvmlError(Exception):
    pass


def raised(name: str, text: str = "", base: type[Exception] = NvmlError) -> Exception:
    """Make an error of a class that the bindings have."""
    return type(name, (base,), {})(text)


NOT_FOUND, INVALID = raised("NotFoundError", "Not Found"), raised("InvalidArgumentError")


def returned(value):
    def answer(*arguments):
        if isinstance(value, Exception):
            raise value
        return value

    return answer


@pytest.fixture
def nvml(monkeypatch):
    """Put a library in the place of NVML; keyword arguments replace what its functions return."""

    def put(**changes) -> None:
        answers = {
            "init_v2": None,
            "device_get_handle_by_uuid": 1,
            "device_get_mig_mode": (0, 0),
            "device_get_total_energy_consumption": 123456,
            "device_get_clock_info": 1980,
            "device_get_temperature_v": 42,
            "device_get_current_clocks_event_reasons": 0,
        }
        module = ModuleType("cuda.bindings.nvml")
        for error in (NvmlError, type(NOT_FOUND), type(INVALID)):
            setattr(module, error.__name__, error)
        for name, value in (answers | changes).items():
            setattr(module, name, returned(value))
        monkeypatch.setattr("cuda.bindings.nvml", module, raising=False)
        monkeypatch.setitem(sys.modules, "cuda.bindings.nvml", module)

    return put


def test_what_the_driver_tells_is_noted(nvml):
    nvml(device_get_current_clocks_event_reasons=0x1 | 0x4 | 0x20)
    counter = NvmlCounter("GPU-1")
    assert counter.energy_mj() == 123456
    assert counter.sample() == Sampled(1980, 42, frozenset({LIMITS[0x4], LIMITS[0x20]}))


def test_what_the_driver_does_not_tell_is_left_out(nvml):
    nvml(
        device_get_mig_mode=raised("NotSupportedError"),
        device_get_clock_info=raised("NotSupportedError"),
        device_get_temperature_v=RuntimeError("function not found"),
        device_get_current_clocks_event_reasons=raised("NoPermissionError"),
    )
    assert NvmlCounter("GPU-1").sample() == Sampled(None, None, frozenset())


PARTITIONED = ("the GPU is partitioned (MIG)", "on a GPU that is not partitioned")
UNREADABLE = "the GPU's energy cannot be read: "
ENERGY = "device_get_total_energy_consumption"
NO_LIBRARY = raised("DynamicLibNotFoundError", "libnvidia-ml.so.1", RuntimeError)


@pytest.mark.parametrize(
    ("function", "answer", "message", "remedy"),
    [
        ("device_get_mig_mode", (1, 1), *PARTITIONED),
        ("device_get_handle_by_uuid", NOT_FOUND, *PARTITIONED),
        (ENERGY, raised("NotSupportedError", "no"), f"{UNREADABLE}no", "capability 7.0 or later"),
        (ENERGY, raised("NoPermissionError", "no"), f"{UNREADABLE}no", "ask whoever runs this"),
        ("init_v2", NO_LIBRARY, f"{UNREADABLE}libnvidia-ml.so.1", "driver capability `utility`"),
        ("init_v2", NvmlError("Unknown"), f"{UNREADABLE}Unknown", "`nvidia-smi` tells"),
    ],
)
def test_a_counter_that_cannot_be_read_says_what_to_do(nvml, function, answer, message, remedy):
    nvml(**{function: answer})
    with pytest.raises(DeviceError) as caught:
        NvmlCounter("GPU-1")
    assert message in caught.value.message
    assert remedy in str(caught.value.remedy)
    assert str(caught.value.remedy).endswith("--objective time needs no energy")


def test_bindings_without_nvml_say_which_have_it(monkeypatch):
    monkeypatch.delattr("cuda.bindings.nvml", raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvml", None)
    with pytest.raises(DeviceError, match="no NVML") as caught:
        NvmlCounter("GPU-1")
    assert "cuda-bindings>=13.2" in str(caught.value)


def unmetered(**changes) -> SimulatedDevice:
    return SimulatedDevice(lambda program: 1.0, replace(H200_LIKE, **changes))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (unmetered(recorded=True), "a recording holds times, but no energy"),
        (unmetered(on_cpu=True), "a CPU says nothing of a GPU's energy"),
        (unmetered(), "simulated H200 has no energy meter"),
    ],
)
def test_a_device_without_energy_is_refused_in_one_line(device, message):
    with pytest.raises(DeviceError) as caught:
        device.require_energy()
    assert caught.value.message == message
    assert caught.value.remedy == "use a GPU (--device cuda), or --objective time"


def test_a_device_with_a_meter_is_its_own_unless_it_cannot_read():
    device = MeteredDevice(lambda program: 1.0, lambda program: 300.0)
    device.require_energy()

    class Unreadable(MeteredDevice):
        def require_energy(self) -> None:
            raise DeviceError("the GPU is partitioned (MIG)")

    with pytest.raises(DeviceError, match="MIG"):
        Unreadable(lambda program: 1.0, lambda program: 300.0).require_energy()
