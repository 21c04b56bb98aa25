"""A GPU's energy counter as NVML reads it, and windows that begin and end with its ticks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from cuda.bindings import driver

from tuner.device.cuda.buffers import Graph
from tuner.device.cuda.driver import CudaError, call
from tuner.device.timing import FINALS
from tuner.model.errors import DeviceError
from tuner.model.trial import EnergyWindow

# Longer replays than for timing: the pauses between them, of microseconds, cost power too.
ENERGY = replace(FINALS, min_replay_us=2000.0)
# The counter ticks every 20 to 100 ms (Yang, Adamek, Armour: Part-time Power Measurements,
# arXiv 2312.02741); one that stands still for so long is not there.
LONGEST_TICK_S = 5.0
# Until the clocks and what they draw are steady. Without work they take longer to come down.
LOADED_SETTLE_S, IDLE_SETTLE_S = 1.0, 3.0
WATCH_S, SAMPLE_S = 1e-3, 50e-3
# Two could end while this process is held up for the length of one.
BATCHES_AHEAD = 3
# nvml.h: NVML_CLOCK_SM, NVML_TEMPERATURE_GPU. The names in the bindings have changed.
CLOCK_SM, SENSOR_GPU = 1, 0
# nvml.h: nvmlClocksEventReason*, without those that say that nothing is held back.
LIMITS = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
_WITHOUT = "--objective time needs no energy"
# By the class of what the bindings raise.
REMEDIES = {
    "NotSupportedError": "the counter needs compute capability 7.0 or later, and no virtual GPU",
    "NoPermissionError": "ask whoever runs this machine for leave to read the GPU's counters",
    "DynamicLibNotFoundError": "install NVIDIA's driver with its management library "
    "(libnvidia-ml.so.1); a container needs the driver capability `utility`",
    "LibRmVersionMismatchError": "the driver was replaced while it ran: restart the machine",
}


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a GPU tells beside its energy, None and nothing where it does not."""

    clock_mhz: int | None
    temperature_c: int | None
    limited_by: frozenset[str]


class NvmlCounter:
    """The counter of one GPU; raise `DeviceError` with a remedy where it cannot be read."""

    def __init__(self, uuid: str) -> None:
        try:
            from cuda.bindings import nvml
        except ImportError as error:
            raise DeviceError(
                "this version of cuda-bindings has no NVML, which reads the GPU's energy",
                remedy=f"pip install --upgrade 'cuda-bindings>=13.2,<14'; {_WITHOUT}",
            ) from error
        self._nvml: Any = nvml
        with _explain_failures(nvml):
            nvml.init_v2()
            self._gpu = _gpu(nvml, uuid)
        self.energy_mj()

    def energy_mj(self) -> int:
        """Read the energy since the driver was loaded."""
        with _explain_failures(self._nvml):
            return int(self._nvml.device_get_total_energy_consumption(self._gpu))

    def sample(self) -> Sampled:
        nvml, gpu = self._nvml, self._gpu
        reasons = _ask_or_none(nvml, lambda: nvml.device_get_current_clocks_event_reasons(gpu)) or 0
        return Sampled(
            _ask_or_none(nvml, lambda: nvml.device_get_clock_info(gpu, CLOCK_SM)),
            _ask_or_none(nvml, lambda: nvml.device_get_temperature_v(gpu, SENSOR_GPU)),
            frozenset(name for bit, name in LIMITS.items() if reasons & bit),
        )


class Window:
    """Take the energy over a time in which `keep_busy`, called again and again, feeds the GPU."""

    def __init__(self, counter: NvmlCounter, keep_busy: Callable[[], None]) -> None:
        self._counter, self._keep_busy = counter, keep_busy

    def settle(self, seconds: float) -> None:
        for _ in self._until(time.perf_counter() + seconds):
            pass

    def take(self, seconds: float) -> EnergyWindow:
        """Wait for a tick, for `seconds`, and for another tick: the energy between the two."""
        started_s, before_mj = self._tick()
        seen = [self._counter.sample() for _ in self._until(started_s + seconds)]
        ended_s, after_mj = self._tick()
        clocks = [sample.clock_mhz for sample in seen if sample.clock_mhz is not None]
        temperatures = [sample.temperature_c for sample in seen if sample.temperature_c is not None]
        return EnergyWindow(
            energy_j=(after_mj - before_mj) * 1e-3,
            seconds=ended_s - started_s,
            temperature_c=temperatures[-1] if temperatures else None,
            clock_mhz=median_low(clocks) if clocks else None,
            limited_by=tuple(sorted(frozenset().union(*(sample.limited_by for sample in seen)))),
        )

    def _until(self, until_s: float) -> Iterator[None]:
        """Feed the GPU until then; the value comes between feeding it and a pause."""
        while (left_s := until_s - time.perf_counter()) > 0:
            self._keep_busy()
            yield
            time.sleep(min(left_s, SAMPLE_S))

    def _tick(self) -> tuple[float, int]:
        last_mj, until_s = self._counter.energy_mj(), time.perf_counter() + LONGEST_TICK_S
        while time.perf_counter() < until_s:
            self._keep_busy()
            now_mj = self._counter.energy_mj()
            if now_mj != last_mj:
                return time.perf_counter(), now_mj
            time.sleep(WATCH_S)
        raise DeviceError(
            f"the GPU's energy counter stood still for {LONGEST_TICK_S:g} s",
            remedy=f"`nvidia-smi -q -d POWER` tells whether it reports power at all; {_WITHOUT}",
        )


class QueuedReplays:
    """Replays of one graph, enqueued ahead, so that the GPU never waits for this process."""

    def __init__(self, graph: Graph, replays: int, stream: Any) -> None:
        self._graph, self._replays, self._stream = graph, replays, stream
        # One at the end of each batch of replays, in order.
        self._ends: list[Any] = []
        self._done = 0

    def keep_up(self) -> None:
        """Enqueue batches until enough are under way; waits for nothing."""
        while len(self._ends) - self.batches_done() < BATCHES_AHEAD:
            for _ in range(self._replays):
                self._graph.launch(self._stream)
            end = call(driver.cuEventCreate, 0)
            self._ends.append(end)
            call(driver.cuEventRecord, end, self._stream)

    def batches_done(self) -> int:
        while self._done < len(self._ends):
            (status,) = driver.cuEventQuery(self._ends[self._done])
            if status == driver.CUresult.CUDA_ERROR_NOT_READY:
                break
            if status != driver.CUresult.CUDA_SUCCESS:
                raise CudaError(f"cuEventQuery: {status.name}")
            self._done += 1
        return self._done

    def time_us(self, first: int, last: int) -> float:
        """Compute the time per call between the ends of two batches, counted from 1."""
        ends = self._ends[first - 1], self._ends[last - 1]
        calls = self._graph.calls * self._replays * (last - first)
        return float(call(driver.cuEventElapsedTime, *ends)) * 1e3 / calls

    def close(self) -> None:
        """Wait for what is under way, and release the events."""
        driver.cuStreamSynchronize(self._stream)
        for end in self._ends:
            driver.cuEventDestroy(end)


def _gpu(nvml: Any, uuid: str) -> Any:
    """Find the GPU, which must not be partitioned: the counter is that of all of it."""
    try:
        gpu = nvml.device_get_handle_by_uuid(uuid)
        current, _ = _ask_or_none(nvml, lambda: nvml.device_get_mig_mode(gpu)) or (0, 0)
    except (nvml.NotFoundError, nvml.InvalidArgumentError):
        current = 1  # CUDA calls a partition by an identity that no GPU has
    if current:
        raise DeviceError(
            "the GPU is partitioned (MIG), and its energy counter is that of all partitions",
            remedy=f"tune for energy on a GPU that is not partitioned; {_WITHOUT}",
        )
    return gpu


def _ask_or_none(nvml: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (nvml.NvmlError, RuntimeError):  # the latter where the driver is too old for it
        return None


@contextmanager
def _explain_failures(nvml: Any) -> Iterator[None]:
    try:
        yield
    except (nvml.NvmlError, RuntimeError) as error:  # the latter where there is no library
        remedy = REMEDIES.get(type(error).__name__, "`nvidia-smi` tells whether the driver works")
        raise DeviceError(
            f"the GPU's energy cannot be read: {error}", remedy=f"{remedy}; {_WITHOUT}"
        ) from error
