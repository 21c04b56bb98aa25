"""Replays of graphs of calls, each of which finds memory in a state that tells it nothing."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from cuda.bindings import driver

from tuner.device.base import Program
from tuner.device.cuda.buffers import Buffers, Graph, Scrub, SharedSpoiler, timing_events
from tuner.device.cuda.device_patch import DevicePatch
from tuner.device.cuda.driver import Issuer, allocate, call, compare_bytes, read_flag
from tuner.device.cuda.neighbours import Neighbours
from tuner.device.layout import UNCHANGED, Layout, Patch, Slot, fill_byte
from tuner.device.timing import JUDGED_ON_GPU, Judging, SampledCalls, TimingPolicy
from tuner.model.statistics import LEAST_US


class Results:
    """Some results of each program, each with its variant of the inputs, and if bits repeat.

    `places` are how many there may be in all: where that is too few, nobody foresees whose.
    """

    def __init__(
        self, layout: Layout, programs: int, repeating: frozenset[str], places: int
    ) -> None:
        self._layout, self.programs = layout, programs
        self._places = min(places, JUDGED_ON_GPU * programs)
        self._base = allocate(self._places * layout.total_bytes)
        self._flags = allocate(4 * programs)
        outputs = layout.with_role("output", "inout")
        self._repeating: list[Slot] = [slot for slot in outputs if slot.name in repeating]
        self.renew(UNCHANGED, programs)

    def renew(self, patch: Patch, programs: int) -> None:
        """Forget all results; what comes is of so many programs, on variants of this patch."""
        each, left = divmod(min(self._places, JUDGED_ON_GPU * programs), programs)
        one_more = secrets.SystemRandom().sample(range(programs), left)
        kept = [each + (index in one_more) for index in range(programs)]
        self._calls = [SampledCalls[None](patch, count) for count in kept]
        self._first = [0, *accumulate(kept)]
        call(driver.cuMemsetD8, self._flags, 0, 4 * self.programs)

    def plan(self, index: int) -> Judging | None:
        """Choose what a program's next replay is for."""
        return self._calls[index].plan()

    def take(
        self, index: int, judging: Judging, address: int, stream: Any, *, repeats: bool = True
    ) -> None:
        """Enqueue comparing the set at `address` with what is kept of its variant; keep it."""
        calls, size_bytes = self._calls[index], self._layout.total_bytes
        kept_before = calls.known(judging.variant)
        if repeats and kept_before is not None:
            kept = self._address(index, kept_before[0])
            for slot in self._repeating:
                ends = address + slot.offset, kept + slot.offset
                compare_bytes(stream, *ends, slot.size_bytes, self._flags + 4 * index)
        if judging.place is not None:
            place = self._address(index, judging.place)
            call(driver.cuMemcpyDtoDAsync, place, address, size_bytes, stream)
            calls.kept[judging.place] = judging.variant, None

    def show(self, index: int, place: int, address: int) -> tuple[int, bool] | None:
        """Copy a program's result to `address`; say its variant, and whether bits repeat.

        Return None where there is none at this place.
        """
        if place not in self._calls[index].kept:
            return None
        variant, _ = self._calls[index].kept[place]
        size_bytes = self._layout.total_bytes
        call(driver.cuMemcpyDtoD, address, self._address(index, place), size_bytes)
        differed = read_flag(self._flags + 4 * index)
        call(driver.cuCtxSynchronize)
        return variant, not differed

    def close(self) -> None:
        for base in (self._base, self._flags):
            call(driver.cuMemFree, base)

    def _address(self, index: int, place: int) -> int:
        return self._base + (self._first[index] + place) * self._layout.total_bytes


def identity(program: Program) -> str:
    return f"{program.peer} {program.key} {program.text_key}"


@dataclass(slots=True)
class Captured:
    """Graphs of programs over the same buffers, with what collects each one's results.

    `lowers_clocks` says whether replaying them brings down the clocks of a GPU that was at rest.
    """

    names: tuple[str, ...]
    policy: TimingPolicy
    buffers: Buffers
    launchers: Sequence[Issuer]
    graphs: Sequence[Graph]
    lowers_clocks: bool = False

    def is_of(self, programs: Sequence[Program], policy: TimingPolicy, buffers: Buffers) -> bool:
        """Tell whether these programs would be captured the same way."""
        mine = self.policy, self.buffers, self.names
        return mine == (policy, buffers, tuple(map(identity, programs)))

    def of(self, program: Program, buffers: Buffers) -> tuple[Issuer, Graph] | None:
        """Return what is kept of a program over these buffers."""
        name = identity(program)
        if self.buffers != buffers or name not in self.names:
            return None
        place = self.names.index(name)
        return self.launchers[place], self.graphs[place]

    def close(self) -> None:
        """Release the graphs."""
        for graph in self.graphs:
            graph.close()


class Replays:
    """Replay graphs over one set of buffers, for whatever purpose, in one and the same way.

    Before each replay all outputs, scratch and shared memory are filled with bytes of one
    distribution, what is written in place is restored, each set's inputs get other elements at
    places of their own, and the L2 is scrubbed of all that. So no call can tell whether it is
    timed, compared or verified, nor find what it left behind.
    """

    def __init__(
        self,
        buffers: Buffers,
        stream: Any,
        scrub: Scrub,
        shared: SharedSpoiler,
        patch: DevicePatch,
        results: Results,
        neighbours: Neighbours | None = None,
    ) -> None:
        self.buffers, self._stream, self._neighbours = buffers, stream, neighbours
        self._scrub, self._shared, self._patch, self._results = scrub, shared, patch, results
        # The program's graph that ran last.
        self._last: Graph | None = None

    def run(
        self, graphs: Sequence[Graph], kept: Sequence[tuple[int, Issuer] | None] = ()
    ) -> tuple[list[float], float]:
        """Replay back to back: each one's time in microseconds, and seconds for all.

        `kept` says for each graph which program it is of, and what collects its results: of some
        replays one, of a set that nobody can foresee, is kept. It is None for a graph of no
        program.
        """
        judged: dict[int, tuple[int, Judging]] = {}
        for position, of in enumerate(kept):
            planned = None if of is None else self._results.plan(of[0])
            if planned is not None:
                judged[position] = secrets.randbelow(graphs[position].calls), planned
        self.buffers.fill(max(graph.calls for graph in graphs))
        changed = {at: (chosen, judging.variant) for at, (chosen, judging) in judged.items()}
        with timing_events(1 + 2 * len(graphs)) as events:
            first, *others = events
            pairs = list(zip(others[::2], others[1::2], strict=True))
            call(driver.cuEventRecord, first, self._stream)
            for position, (graph, (start, stop)) in enumerate(zip(graphs, pairs, strict=True)):
                self.buffers.spoil(fill_byte(), graph.calls)
                if not kept or kept[position] is not None:
                    # Between replays of one program nothing is reset: it has to leave zeros.
                    if graph is not self._last:
                        self.buffers.zero()
                    self._last = graph
                self._patch.apply(changed.get(position), self.buffers, self._stream)
                if self._neighbours is not None:
                    self._neighbours.plant(self.buffers.arguments)
                self._shared.issue(self._stream)
                self._scrub.issue(self._stream)
                call(driver.cuEventRecord, start, self._stream)
                graph.launch(self._stream)
                call(driver.cuEventRecord, stop, self._stream)
                if position in judged and (of := kept[position]) is not None:
                    self._take(*of, *judged[position])
            call(driver.cuCtxSynchronize)  # work on another stream takes wall time, too
            times = [call(driver.cuEventElapsedTime, start, stop) * 1e3 for start, stop in pairs]
            return times, call(driver.cuEventElapsedTime, first, events[-1]) * 1e-3

    def rounds(
        self, graphs: Sequence[Graph], launchers: Sequence[Issuer], empty: Graph | None, count: int
    ) -> tuple[list[list[float]], float]:
        """Replay all graphs in each round, in an order drawn for it; times per call, and seconds.

        Between neighbours a time is what the chain takes longer than `empty`, that without the
        operator, which is replayed twice a round.
        """
        # What is wrong with it is wrong with all of a round: it is worth a second look.
        empties = (1 if len(graphs) == 1 else 2) if empty else 0
        # None is a chain's turn without the operator.
        competitors: list[int | None] = [*range(len(graphs)), *[None] * empties]
        turns: list[int | None] = []
        for _ in range(count):
            secrets.SystemRandom().shuffle(competitors)
            turns += competitors
        # Once more in front, not counted: events that find the stream idle enclose the launch too.
        turns.insert(0, turns[0])
        kept = [None if turn is None else (turn, launchers[turn]) for turn in turns]
        chosen = [empty if turn is None else graphs[turn] for turn in turns]
        (_, *sample), event_s = self.run([graph for graph in chosen if graph], kept)
        rows, size = [], len(competitors)
        for first in range(0, len(sample), size):
            timed_turns = list(zip(turns[1 + first :], sample[first : first + size], strict=False))
            without = [total for turn, total in timed_turns if turn is None]
            less = sum(without) / max(len(without), 1)
            totals = {turn: total - less for turn, total in timed_turns if turn is not None}
            rows.append([max(totals[k] / g.calls, LEAST_US) for k, g in enumerate(graphs)])
        return rows, event_s

    def _take(self, index: int, launcher: Issuer, chosen: int, judging: Judging) -> None:
        arguments = self.buffers.arguments[chosen]
        launcher.collect(arguments)
        # A peer need not repeat its bits.
        repeats = launcher.repeats
        self._results.take(index, judging, arguments.base, self._stream, repeats=repeats)
