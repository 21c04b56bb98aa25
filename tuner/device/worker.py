"""The process that runs candidate code: it may crash or hang, and is killed then."""

from __future__ import annotations

import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import closing

from cuda.bindings import driver

from tuner.device.base import Program
from tuner.device.cuda_driver import (
    Arguments,
    Launcher,
    LoadedProgram,
    allocate,
    call,
    reset_persisting_l2,
)
from tuner.device.layout import Arena
from tuner.device.rotating import Buffers, Graph, MappedArena, timing_events
from tuner.device.timing import (
    SECOND_LOOKS,
    TimingPolicy,
    calls_per_replay,
    finished,
    hopeless,
    rotation,
    suspicious,
    wall_ratio,
)
from tuner.trial import Measurement

LOADED_PROGRAMS = 16
ISOLATED_REPLAYS = 15


class Worker:
    """Load, launch and time programs on one GPU."""

    def __init__(self, ordinal: int) -> None:
        call(driver.cuInit, 0)
        self._device = call(driver.cuDeviceGet, ordinal)
        self._context = call(driver.cuDevicePrimaryCtxRetain, self._device)
        call(driver.cuCtxSetCurrent, self._context)
        self._stream = call(driver.cuStreamCreate, 1)
        self._arena: MappedArena | None = None
        self._buffers: Buffers | None = None
        self._loaded: OrderedDict[str, LoadedProgram] = OrderedDict()
        self._scrub: tuple[int, int] | None = None

    def describe(self) -> Mapping[str, int | str]:
        """Name the GPU and its numbers."""
        names = driver.CUdevice_attribute

        def attribute(name: str) -> int:
            full = getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(call(driver.cuDeviceGetAttribute, full, self._device))

        return {
            "name": call(driver.cuDeviceGetName, 256, self._device).split(b"\0")[0].decode(),
            "major": attribute("COMPUTE_CAPABILITY_MAJOR"),
            "minor": attribute("COMPUTE_CAPABILITY_MINOR"),
            "multiprocessors": attribute("MULTIPROCESSOR_COUNT"),
            "l2_bytes": attribute("L2_CACHE_SIZE"),
            "driver": int(call(driver.cuDriverGetVersion)),
        }

    def attach(self, arena: Arena) -> None:
        """Map the judge's memory for one workload and forget the previous workload."""
        self.detach()
        self._arena = MappedArena(arena)

    def detach(self) -> None:
        """Unmap the judge's memory and free the copies of it."""
        if self._buffers is not None:
            self._buffers.close()
            self._buffers = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def run_once(self, program: Program) -> None:
        """Launch the program once on the arena and wait for it."""
        arena = self._mapped
        self._unload_oldest()
        arena.pull()
        launcher = Launcher(self._load(program), program.launches, self._stream)
        launcher.issue(Arguments(arena.layout, arena.base))
        call(driver.cuStreamSynchronize, self._stream)
        arena.push()

    def time(
        self, program: Program, policy: TimingPolicy, incumbent_us: float | None = None
    ) -> Measurement:
        """Time the program over rotating buffers; the last call's output is left in the arena."""
        buffers = self._rotating(policy)
        launcher = Launcher(self._load(program), program.launches, self._stream)
        reset_persisting_l2()
        with closing(self._graph(launcher, policy, buffers, incumbent_us)) as graph:
            self._warm_up(graph, policy)
            times, ratio = self._sample(graph, policy, buffers, incumbent_us)
            buffers.copy_to_arena(graph.last_set)
            self._mapped.push()
            slow = hopeless(policy, times, incumbent_us)
            return Measurement(tuple(times), graph.calls, buffers.sets, slow, ratio)

    def _sample(
        self, graph: Graph, policy: TimingPolicy, buffers: Buffers, incumbent_us: float | None
    ) -> tuple[list[float], float]:
        """Replay in batches until that is enough; return times and the least wall ratio."""
        times: list[float] = []
        ratios: list[float] = []
        started = time.perf_counter()
        while not finished(policy, times, time.perf_counter() - started, incumbent_us) or (
            suspicious(ratios) and len(ratios) < SECOND_LOOKS
        ):
            wanted = 3 if not times else max(2, policy.min_samples - len(times))
            # The output that is checked in the end must come from the replays that are timed.
            buffers.copy_from_arena(graph.last_set, poison=_plausible_byte())
            batch_started = time.perf_counter()
            # The first finds the stream idle, so that its events enclose the launch as well.
            first, *sample = self._replay([graph] * (1 + wanted), buffers.scrub)
            wall_s = time.perf_counter() - batch_started
            event_s = (first + sum(sample)) * 1e-6
            ratios.append(1.0 if buffers.scrub else wall_ratio(event_s, wall_s))
            times += [total / graph.calls for total in sample]
        return times, min(ratios)

    def compare(
        self, programs: Sequence[Program], policy: TimingPolicy, rounds: int, seed: int
    ) -> tuple[list[list[float]], list[float | None]]:
        """Time several programs interleaved: `rounds` rows in the order of `programs`, in us.

        Each round replays every program once, in random order. The second list holds, for
        programs with programmatic dependent launch, the median time without it.
        """
        buffers = self._rotating(policy)
        reset_persisting_l2()
        graphs = []
        for program in programs:
            launcher = Launcher(self._load(program), program.launches, self._stream)
            graphs.append(self._graph(launcher, policy, buffers, None))
        self._warm_up(graphs[0], policy)
        self._replay(graphs, buffers.scrub)
        order = list(range(len(graphs)))
        shuffle = random.Random(seed).shuffle  # noqa: S311 - an order, not a secret
        rows = []
        for _ in range(rounds):
            shuffle(order)
            # Once more in front, not counted: the stream is idle before the first.
            queue = [graphs[index] for index in (order[0], *order)]
            _, *sample = self._replay(queue, buffers.scrub)
            row = [0.0] * len(graphs)
            for index, total in zip(order, sample, strict=True):
                row[index] = total / graphs[index].calls
            rows.append(row)
        for graph in graphs:
            graph.close()
        return rows, [self._isolated_us(program, policy, buffers) for program in programs]

    @property
    def _mapped(self) -> MappedArena:
        assert self._arena is not None
        return self._arena

    def _load(self, program: Program) -> LoadedProgram:
        key = program.key
        if key in self._loaded:
            self._loaded.move_to_end(key)
            return self._loaded[key]
        loaded = LoadedProgram(program.cubin, program.lowered, program.launches)
        self._loaded[key] = loaded
        return loaded

    def _unload_oldest(self) -> None:
        # Not while loading: graphs of a comparison use all of its programs at once.
        while len(self._loaded) > LOADED_PROGRAMS:
            self._loaded.popitem(last=False)[1].unload()

    def _rotating(self, policy: TimingPolicy) -> Buffers:
        if self._buffers is None:
            layout = self._mapped.layout
            free_bytes, _ = call(driver.cuMemGetInfo)
            l2 = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
            l2_bytes = call(driver.cuDeviceGetAttribute, l2, self._device)
            chosen = rotation(policy, layout.footprint_bytes, l2_bytes, free_bytes)
            self._buffers = Buffers(self._mapped, chosen, self._stream)
            if chosen.scrub and self._scrub is None:
                size = int(policy.l2_multiple * l2_bytes)
                self._scrub = (allocate(size), size)
        return self._buffers

    def _graph(
        self, launcher: Launcher, policy: TimingPolicy, buffers: Buffers, guess_us: float | None
    ) -> Graph:
        """Capture a graph long enough to time, measuring a first one where nothing is known."""
        if guess_us is None:
            first = Graph(launcher, buffers, max(buffers.sets, policy.min_calls), self._stream)
            guess_us = self._replay([first, first], buffers.scrub)[1] / first.calls
            if first.calls == calls_per_replay(policy, buffers.sets, guess_us):
                return first
            first.close()
        calls = calls_per_replay(policy, buffers.sets, guess_us)
        return Graph(launcher, buffers, calls, self._stream)

    def _replay(self, graphs: Sequence[Graph], scrub: bool) -> list[float]:
        """Replay graphs back to back and return each one's time in microseconds."""
        with timing_events(2 * len(graphs)) as events:
            pairs = list(zip(events[::2], events[1::2], strict=True))
            for graph, (start, stop) in zip(graphs, pairs, strict=True):
                if scrub and self._scrub is not None:
                    call(driver.cuMemsetD8Async, self._scrub[0], 0, self._scrub[1], self._stream)
                call(driver.cuEventRecord, start, self._stream)
                graph.launch(self._stream)
                call(driver.cuEventRecord, stop, self._stream)
            call(driver.cuStreamSynchronize, self._stream)
            return [call(driver.cuEventElapsedTime, start, stop) * 1e3 for start, stop in pairs]

    def _warm_up(self, graph: Graph, policy: TimingPolicy) -> None:
        ends = time.perf_counter() + policy.warm_up_s
        while time.perf_counter() < ends:
            self._replay([graph], scrub=False)

    def _isolated_us(
        self, program: Program, policy: TimingPolicy, buffers: Buffers
    ) -> float | None:
        if not any(launch.programmatic for launch in program.launches):
            return None
        launcher = Launcher(self._load(program), program.launches, self._stream, isolated=True)
        graph = self._graph(launcher, policy, buffers, None)
        times = sorted(self._replay([graph] * ISOLATED_REPLAYS, buffers.scrub))
        graph.close()
        return times[len(times) // 2] / graph.calls


def _plausible_byte() -> int:
    """Choose a poison that a kernel cannot tell from an output: finite in every float format."""
    return 0x40 + secrets.randbelow(0x3B)
