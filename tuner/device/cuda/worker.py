"""The process that runs candidate code: it may crash or hang, and is killed then."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import ceil, inf
from statistics import median

from cuda.bindings import driver

from tuner.device.base import Program
from tuner.device.cuda.buffers import (
    Buffers,
    EagerSuccessor,
    Graph,
    LateWriter,
    MappedArena,
    Probe,
    Scrub,
    SharedSpoiler,
)
from tuner.device.cuda.device_patch import DevicePatch
from tuner.device.cuda.driver import (
    Issuer,
    LaunchArguments,
    Launcher,
    LoadedProgram,
    call,
    gpu_uuid,
    reset_persisting_l2,
)
from tuner.device.cuda.energy import (
    IDLE_SETTLE_S,
    LOADED_SETTLE_S,
    NvmlCounter,
    QueuedReplays,
    Window,
)
from tuner.device.cuda.neighbour_memory import NeighbourMemory
from tuner.device.cuda.neighbours import Neighbours, Surrounded
from tuner.device.cuda.peers import PeerHome, PeerLaunchers
from tuner.device.cuda.replays import Captured, Replays, Results, identity
from tuner.device.layout import UNCHANGED, Arena, Layout, Patch, fill_byte
from tuner.device.timing import (
    FINALS,
    ROUNDS_OF_A_DRAW,
    Rotation,
    TimingPolicy,
    between_neighbours,
    calls_per_replay,
    chain_rotation,
    clocks_fell,
    hopeless,
    rotation,
    steady,
    take_samples,
)
from tuner.model.surroundings import Surroundings
from tuner.model.trial import EnergyWindow, Measurement

LOADED_PROGRAMS = 16
ISOLATED_REPLAYS = 15
WARM_UP_REPLAYS = 4
# Clocks stay up for longer than that after the last replay. Then one brings the graph and the
# kernel's code to the GPU; another, in front of the first batch, does not count either.
AWAKE_S = 50e-3
# Of a comparison, in front of each of which one replay does not count.
ROUNDS_AT_A_TIME = 8
# What stands for timed calls is replayed up to so many times.
RERUN_REPLAYS = 4
# What results of a comparison may take of the free memory: the judge needs most of it.
RESULTS_SHARE = 0.25
# A reference, its scale and what both are computed from, in float64: a LeakyReLU of 6.4 GB takes
# 72 GB, of a set of 13 GB.
VERIFIER_SETS = 6
# Long beside the pauses in which this process looks at the energy counter.
BATCH_US = 60e3


class CudaWorker:
    """Load, launch and time programs on one GPU, and peers where their `home` is known.

    `deterministic` names the outputs whose bits may not differ between timed calls.
    """

    def __init__(
        self,
        ordinal: int,
        home: PeerHome | None = None,
        deterministic: frozenset[str] = frozenset(),
    ) -> None:
        self._ordinal, self._deterministic = ordinal, deterministic
        call(driver.cuInit, 0)
        self._device = call(driver.cuDeviceGet, ordinal)
        self._context = call(driver.cuDevicePrimaryCtxRetain, self._device)
        call(driver.cuCtxSetCurrent, self._context)
        self._stream = call(driver.cuStreamCreate, 1)
        self._arena: MappedArena | None = None
        self._buffers: dict[Rotation, Buffers] = {}
        self._loaded: OrderedDict[str, LoadedProgram] = OrderedDict()
        self._scrub: Scrub | None = None
        self._probes: dict[Probe, LateWriter | EagerSuccessor] | None = None
        self._results: Results | None = None
        self._patch: DevicePatch | None = None
        # What was timed or compared last: it is replayed on other inputs as it is.
        self._captured: Captured | None = None
        self._counter: NvmlCounter | None = None
        self._home = home
        self._surroundings: Surroundings | None = None
        self._neighbours: Neighbours | None = None
        self._memory: NeighbourMemory | None = None
        # Chains of neighbours without the operator.
        self._empty: dict[Rotation, Graph] = {}
        self._peers = None if home is None else PeerLaunchers(ordinal, self._stream, home)
        # When the GPU last had work of ours.
        self._busy_s = -inf
        self._shared = SharedSpoiler(
            self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            self._attribute("MULTIPROCESSOR_COUNT"),
        )

    def describe(self) -> Mapping[str, int | str]:
        return {
            "name": call(driver.cuDeviceGetName, 256, self._device).split(b"\0")[0].decode(),
            "major": self._attribute("COMPUTE_CAPABILITY_MAJOR"),
            "minor": self._attribute("COMPUTE_CAPABILITY_MINOR"),
            "multiprocessors": self._attribute("MULTIPROCESSOR_COUNT"),
            "l2_bytes": self._attribute("L2_CACHE_SIZE"),
            "driver": int(call(driver.cuDriverGetVersion)),
        }

    def _attribute(self, name: str) -> int:
        full = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(driver.cuDeviceGetAttribute, full, self._device))

    def import_ahead(self, program: Program) -> None:
        """Import what a kernel in Python needs before it is run."""
        assert self._peers is not None
        self._peers.import_ahead(program)

    def attach(self, arena: Arena, surroundings: Surroundings | None = None) -> None:
        """Map the verifier's memory; `surroundings` are what is timed there is timed in."""
        self.detach()
        self._arena, self._surroundings = MappedArena(arena), surroundings

    def fit(self, layout: Layout) -> None:
        """Take another layout of what is mapped: only the size of scratch differs.

        Copies of the arrays stay as they are, for all places but the ends of scratch are the same.
        """
        self._mapped.layout = layout

    def detach(self) -> None:
        self._forget_graphs()
        for empty in self._empty.values():
            empty.close()
        self._empty.clear()
        for held in (self._results, self._patch, self._neighbours):
            if held is not None:
                held.close()
        self._results = self._patch = self._neighbours = None
        if self._peers is not None:
            self._peers.clear()
        for buffers in self._buffers.values():
            buffers.close()
        self._buffers.clear()
        for neighbour in (self._probes or {}).values():
            neighbour.close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def run_once(self, program: Program, neighbour: Probe = "none") -> bool:
        """Launch it once, beside a neighbour, and wait; tell whether there was room for that."""
        arena = self._mapped
        if self._captured is not None and len(self._captured.graphs) > 1:
            self._forget_graphs()  # a comparison has ended, and what calls allocate lives in them
        self._unload_oldest()
        arena.pull()
        launcher, arguments = self._launcher(program), LaunchArguments(arena.layout, arena.base)
        self._shared.issue(self._stream)
        beside = self._neighbour(neighbour)
        overlaps = beside is not None and beside.before(self._mapped, self._stream)
        try:
            launcher.issue(arguments)
            if beside is not None and overlaps:
                beside.after(self._stream)
            launcher.collect(arguments)
        finally:  # the neighbour has ended, whatever became of the program
            call(driver.cuStreamSynchronize, self._stream)
            if beside is not None and overlaps:
                beside.tidy(self._stream)
        arena.push()
        return overlaps

    def _neighbour(self, name: Probe) -> LateWriter | EagerSuccessor | None:
        if name == "none":
            return None
        if self._probes is None:
            multiprocessors = self._attribute("MULTIPROCESSOR_COUNT")
            late = LateWriter(multiprocessors)
            self._probes = {"late writer": late, "eager successor": EagerSuccessor(late)}
        return self._probes[name]

    def time(
        self,
        program: Program,
        policy: TimingPolicy,
        incumbent_us: float | None = None,
        patch: Patch = UNCHANGED,
    ) -> Measurement:
        """Time the program over rotating buffers; `show` then gives what its last calls left."""
        replays = self._prepare_replays(policy, patch)
        if self._surroundings is not None:
            policy = between_neighbours(policy)
        launcher = self._launcher(program)
        reset_persisting_l2()
        graph = self._graph(launcher, policy, replays, incumbent_us)
        self._keep([program], policy, replays.buffers, [launcher], [graph])
        self._warm_up(graph, policy, replays)
        empty = self._empty.get(replays.buffers.rotation)

        def take(count: int) -> tuple[list[float], float]:
            rows, event_s = replays.rounds([graph], [launcher], empty, count)
            return [us for (us,) in rows], event_s

        times, ratio = take_samples(policy, take, incumbent_us)
        self._require_clocks()
        self._busy_s = time.perf_counter()
        slow = hopeless(policy, times, incumbent_us)
        return Measurement(tuple(times), graph.calls, graph.calls, slow, ratio)

    def compare(
        self,
        programs: Sequence[Program],
        policy: TimingPolicy,
        rounds: int,
        patch: Patch,
        *,
        alone: bool = False,
    ) -> list[list[float]]:
        """Time programs interleaved: rows in us, in their order; `alone` without neighbours.

        `show` then gives what one of each program's last calls left. Programs that were compared
        just before are not captured again: only what the buffers hold is new.
        """
        replays = self._prepare_replays(policy, patch, len(programs), alone=alone)
        reset_persisting_l2()
        compared, new = self._capture_programs(programs, policy, replays)
        self._run_in(compared, policy, replays, rounds, new=new)
        empty = self._empty.get(replays.buffers.rotation)
        rows: list[list[float]] = []
        while len(rows) < rounds:
            count = min(ROUNDS_AT_A_TIME, rounds - len(rows))
            rows += replays.rounds(compared.graphs, compared.launchers, empty, count)[0]
        self._require_clocks()
        self._busy_s = time.perf_counter()
        return rows

    def replay(self, count: int, *, calls: bool) -> None:
        """Replay what was timed, or only what spoils its memory: for a clock outside."""
        captured = self._captured
        assert captured is not None
        graph = captured.graphs[0]
        for _ in range(count):
            captured.buffers.spoil(fill_byte(), graph.calls)
            if calls:
                graph.launch(self._stream)
        call(driver.cuCtxSynchronize)

    def _require_clocks(self) -> None:
        if self._peers is not None:
            self._peers.require_clocks()

    def _capture_programs(
        self, programs: Sequence[Program], policy: TimingPolicy, replays: Replays
    ) -> tuple[Captured, bool]:
        """Capture programs unless they are the last ones captured; tell whether they are new."""
        last = self._captured
        if last and last.is_of(programs, policy, replays.buffers):
            return last, False
        # All first: what a peer allocates to stay may not lie where a captured one works.
        launchers = list(map(self._launcher, programs))
        graphs = [self._graph(launcher, policy, replays, None) for launcher in launchers]
        return self._keep(programs, policy, replays.buffers, launchers, graphs), True

    def show(self, index: int, place: int) -> tuple[int, bool] | None:
        """Hand over a kept result of a program; say its variant, and whether bits repeat."""
        assert self._results is not None
        shown = self._results.show(index, place, self._mapped.base)
        self._mapped.push()
        return shown

    def isolated_us(self, programs: Sequence[Program], policy: TimingPolicy) -> list[float | None]:
        """Time those with programmatic dependent launch without it; the medians, in us."""
        replays = self._prepare_replays(policy, alone=True)
        medians_us: list[float | None] = [None] * len(programs)
        for index, program in enumerate(programs):
            if any(launch.pdl for launch in program.launches):
                loaded = self._load(program)
                launcher = Launcher(loaded, program.launches, self._stream, isolated=True)
                graph = self._graph(launcher, policy, replays, None)
                times_us, _ = replays.run([graph] * ISOLATED_REPLAYS)
                graph.close()
                medians_us[index] = median(times_us) / graph.calls
        return medians_us

    def rerun(self, program: Program, policy: TimingPolicy) -> None:
        """Replay what was timed, on what the arena holds now; one result is shown."""
        replays = self._prepare_replays(policy)
        kept = self._captured and self._captured.of(program, replays.buffers)
        if kept:
            launcher, graph = kept
        else:
            launcher = self._launcher(program)
            graph = self._graph(launcher, policy, replays, None)
            self._keep([program], policy, replays.buffers, [launcher], [graph])
        count = 1 + secrets.randbelow(RERUN_REPLAYS)
        replays.run([graph] * count, [(0, launcher)] * count)
        self.show(0, 0)

    def require_energy(self) -> None:
        self._counter = self._counter or NvmlCounter(gpu_uuid(self._ordinal))

    def idle_energy(self, seconds: float) -> EnergyWindow:
        call(driver.cuCtxSynchronize)
        window = self._window(lambda: None)
        window.settle(IDLE_SETTLE_S)
        return window.take(seconds)

    def energy(self, program: Program, policy: TimingPolicy, seconds: float) -> EnergyWindow:
        """Read the energy of replays without a pause; spoiling or scrubbing would cost some too."""
        self._unload_oldest()
        replays = self._prepare_replays(policy, alone=True)
        reset_persisting_l2()
        launcher = self._launcher(program)
        with closing(self._graph(launcher, policy, replays, None)) as graph:
            self._warm_up(graph, policy, replays)
            replay_us = replays.run([graph, graph])[0][1]
            with closing(QueuedReplays(graph, ceil(BATCH_US / replay_us), self._stream)) as load:
                window = self._window(load.keep_up)
                window.settle(LOADED_SETTLE_S)
                first = _once_past(load, 0)
                taken = window.take(seconds)
                time_us = load.time_us(first, _once_past(load, first))
        covered = graph.calls * self._mapped.layout.footprint_bytes
        cold = covered >= policy.l2_multiple * self._attribute("L2_CACHE_SIZE")
        return replace(taken, time_us=time_us, buffer_sets=graph.calls, cold=cold)

    def _window(self, keep_busy: Callable[[], None]) -> Window:
        self.require_energy()
        assert self._counter is not None
        return Window(self._counter, keep_busy)

    def _keep(
        self,
        programs: Sequence[Program],
        policy: TimingPolicy,
        buffers: Buffers,
        launchers: Sequence[Issuer],
        graphs: Sequence[Graph],
    ) -> Captured:
        self._forget_graphs()
        names = tuple(map(identity, programs))
        self._captured = Captured(names, policy, buffers, launchers, graphs)
        return self._captured

    def _forget_graphs(self) -> None:
        if self._captured is not None:
            self._captured.close()
        self._captured = None

    @property
    def _mapped(self) -> MappedArena:
        assert self._arena is not None
        return self._arena

    def _launcher(self, program: Program) -> Issuer:
        if program.peer or program.is_call:
            assert self._peers is not None
            return self._peers.launcher(program, self._mapped)
        return Launcher(self._load(program), program.launches, self._stream)

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

    def _prepare_replays(
        self,
        policy: TimingPolicy,
        patch: Patch = UNCHANGED,
        programs: int = 1,
        *,
        alone: bool = False,
    ) -> Replays:
        """Fill the buffers from the arena, and make ready to keep results of `programs`.

        Between neighbours, unless `alone`, each of a chain's calls has a place of its own.
        """
        neighbours = None if alone else self._ready_neighbours()
        if self._scrub is None:
            size_bytes = int(policy.l2_multiple * self._attribute("L2_CACHE_SIZE"))
            self._scrub = Scrub(size_bytes, self._attribute("MULTIPROCESSOR_COUNT"))
        if self._results is None or self._results.programs < programs:
            if self._results is not None:
                self._results.close()
                self._results = None
            total_bytes = self._mapped.layout.total_bytes
            places = max(1, int(self._spare_bytes(0) * RESULTS_SHARE) // total_bytes)
            asked = self._mapped.layout, programs, self._deterministic, places
            self._results = Results(*asked)
        self._results.renew(patch, programs)
        if self._patch is None or self._patch.patch != patch:
            if self._patch is not None:
                self._patch.close()
                self._patch = None
            self._patch = DevicePatch(patch, self._mapped.base)
        chosen = self._rotation(policy, chain=neighbours is not None)
        if chosen not in self._buffers:
            self._buffers[chosen] = Buffers(self._mapped, chosen, self._stream)
        self._mapped.pull()
        buffers = self._buffers[chosen]
        buffers.renew()
        self._patch.forget()
        if neighbours is not None and chosen not in self._empty:
            neighbours.check(buffers.arguments, self._mapped.base)
            alone_there = Surrounded(neighbours, None)
            with neighbours.blame_capture():
                self._empty[chosen] = Graph(alone_there, buffers.arguments, self._stream)
        return Replays(
            *(buffers, self._stream, self._scrub, self._shared),
            *(self._patch, self._results, neighbours),
        )

    def _ready_neighbours(self) -> Neighbours | None:
        """Make them ready once something is timed: what is only verified needs none."""
        if self._surroundings is not None and self._neighbours is None:
            multiprocessors = self._attribute("MULTIPROCESSOR_COUNT")
            self._memory = self._memory or NeighbourMemory(self._stream, multiprocessors)
            around = (self._surroundings, self._mapped.layout, self._memory)
            self._neighbours = Neighbours(*around, self._home, FINALS.links)
        return self._neighbours

    def _spare_bytes(self, held_bytes: int) -> int:
        """Count what is free or held, less what the verifier needs for what is timed."""
        free_bytes, _ = call(driver.cuMemGetInfo)
        verifier_bytes = VERIFIER_SETS * self._mapped.layout.total_bytes
        return max(0, int(free_bytes) + held_bytes - verifier_bytes)

    def _rotation(self, policy: TimingPolicy, *, chain: bool) -> Rotation:
        layout, l2_bytes = self._mapped.layout, self._attribute("L2_CACHE_SIZE")
        held_bytes = sum(buffers.held_bytes for buffers in self._buffers.values())
        free_bytes = self._spare_bytes(held_bytes)
        if layout.with_role("inout"):
            free_bytes //= 2  # they are kept twice
        sizes = layout.footprint_bytes, layout.set_bytes
        if chain:
            return chain_rotation(policy, *sizes, free_bytes)
        return rotation(policy, *sizes, l2_bytes, free_bytes)

    def _graph(
        self, launcher: Issuer, policy: TimingPolicy, replays: Replays, guess_us: float | None
    ) -> Graph:
        buffers = replays.buffers

        def capture(calls: int, issuer: Issuer = launcher) -> Graph:
            buffers.fill(calls)
            return Graph(issuer, buffers.arguments[:calls], self._stream)

        if buffers.rotation.chain:
            assert self._neighbours is not None
            return capture(buffers.sets, Surrounded(self._neighbours, launcher))
        if guess_us is None:
            few = min(max(buffers.rotation.fewest, policy.min_calls), buffers.sets)
            for calls in sorted({1, few}):
                first = capture(calls)
                guess_us = replays.run([first, first])[0][1] / calls
                if calls == calls_per_replay(policy, buffers.rotation, guess_us):
                    return first
                first.close()
        assert guess_us is not None
        return capture(calls_per_replay(policy, buffers.rotation, guess_us))

    def _warm_up(self, graph: Graph, policy: TimingPolicy, replays: Replays) -> None:
        """Replay until the clocks are steady: after a pause they take some milliseconds to rise."""
        started = time.perf_counter()
        if started < self._busy_s + AWAKE_S:
            replays.run([graph])
            return
        batches: list[float] = []
        while not steady(policy, batches, time.perf_counter() - started):
            batches.append(median(replays.run([graph] * WARM_UP_REPLAYS)[0]))

    def _run_in(
        self, compared: Captured, policy: TimingPolicy, replays: Replays, rounds: int, *, new: bool
    ) -> None:
        """Load the GPU until clocks are those that rounds of these programs keep."""
        graphs = compared.graphs
        if rounds > max(ROUNDS_OF_A_DRAW):
            self._warm_up(graphs[0], policy, replays)
            if new:
                replays.run(graphs)
        # The rounds of a draw are over before the clocks of a GPU at its limit of power are down:
        # whoever comes first in a row would be the faster for it. Below that limit the clocks are
        # up after a few milliseconds, and what they do until then hits all of a row.
        elif new or compared.lowers_clocks:
            fewest = 2 * len(graphs) if new else 1
            if new:
                time.sleep(policy.settle_s)  # capturing was load
            started_s, times_us = time.perf_counter(), list[float]()
            while len(times_us) < fewest or time.perf_counter() < started_s + policy.settle_s:
                times_us += replays.run([graphs[len(times_us) % len(graphs)]])[0]
            if new:
                compared.lowers_clocks = clocks_fell(policy, times_us, len(graphs))


def _once_past(load: QueuedReplays, batches: int) -> int:
    while (done := load.batches_done()) <= batches:
        load.keep_up()
        time.sleep(1e-3)
    return done
