"""Replays of graphs of calls, each of which finds memory in a state that tells it nothing."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cuda.bindings import driver

from tuner.device.base import Program
from tuner.device.cuda import difference
from tuner.device.cuda.buffers import Buffers, Graph, Scrub, SharedSpoiler, timing_events
from tuner.device.cuda.driver import POSITION, Issuer, allocate, call, load_kernel
from tuner.device.cuda.neighbours import Neighbours
from tuner.device.encoding import Array
from tuner.device.layout import UNCHANGED, Layout, Patch, Slot, fill_byte
from tuner.device.timing import TimingPolicy
from tuner.device.verify.sampling import JUDGED_ON_GPU, Judging, SampledCalls
from tuner.model.statistics import LEAST_US

_BLOCKS = 264
# Elements that are drawn for one replay, at most about so many.
MOST_DRAWN = 1 << 18
# A change's columns: where its elements go, its values, and where those without it lie.
_COLUMNS, _VALUES, _PRISTINE = 3, 1, 2
# A target is an offset, with the bytes of an element above.
WIDTH_BIT = 56
OFFSET = (1 << WIDTH_BIT) - 1
# Copies elements of up to 8 bytes into the sets, `count` into each: where to, with their size in
# the top byte, and where from.
_APPLY = f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry apply(
  .param .u64 base, .param .u64 set_bytes, .param .u64 targets, .param .u64 sources,
  .param .u32 count, .param .u32 total)
{{
  .reg .pred %p<3>;
  .reg .b16 %h<2>;
  .reg .b32 %r<12>;
  .reg .b64 %d<12>;
  ld.param.u64 %d1, [base];
  ld.param.u64 %d2, [set_bytes];
  ld.param.u64 %d3, [targets];
  ld.param.u64 %d4, [sources];
  ld.param.u32 %r7, [count];
  ld.param.u32 %r8, [total];
{POSITION}next:
  setp.ge.u32 %p1, %r5, %r8;
  @%p1 ret;
  div.u32 %r9, %r5, %r7;
  mul.wide.u32 %d5, %r5, 8;
  add.u64 %d6, %d5, %d3;
  ld.global.u64 %d7, [%d6];
  add.u64 %d6, %d5, %d4;
  ld.global.u64 %d8, [%d6];
  shr.u64 %d9, %d7, {WIDTH_BIT};
  shl.b64 %d7, %d7, {64 - WIDTH_BIT};
  shr.u64 %d7, %d7, {64 - WIDTH_BIT};
  cvt.u64.u32 %d10, %r9;
  mad.lo.u64 %d10, %d10, %d2, %d1;
  add.u64 %d10, %d10, %d7;
more:
  setp.eq.u64 %p2, %d9, 0;
  @%p2 bra done;
  ld.global.u8 %h1, [%d8];
  st.global.u8 [%d10], %h1;
  add.u64 %d8, %d8, 1;
  add.u64 %d10, %d10, 1;
  sub.u64 %d9, %d9, 1;
  bra more;
done:
  add.u32 %r5, %r5, %r6;
  bra next;
}}
"""


class DevicePatch:
    """Give each set of buffers, before each replay, other elements at places of its own.

    An element of a call that nobody judges takes the value of another one of its array: that may be
    an index. A judged call meets a change of the patch. `pristine` is where the inputs are as they
    are without any. Where a change takes so many elements that all sets of a replay would have over
    `MOST_DRAWN`, calls that nobody judges have fewer.
    """

    def __init__(self, patch: Patch, pristine: int) -> None:
        self.patch, self._pristine = patch, pristine
        self._chance = np.random.default_rng(secrets.randbits(128))
        self._drawn, self._values, self._changes = _Table(), _Table(), _Table()
        # Where sets differ from the pristine inputs: all of them, and one by a change.
        self._differing: Array | None = None
        self._judged: tuple[int, int] | None = None
        if patch.changes:
            values = b"".join(change.after for change in patch.changes)
            self._values.send(np.frombuffer(values, np.uint8))
            each = [self._of_change(number) for number in range(len(patch.changes))]
            self._changes.send(np.stack(each))

    def forget(self) -> None:
        """Take all sets for pristine: they have been filled anew."""
        self._differing = self._judged = None

    def draw(self, replays: int, sets: int, judged: Mapping[int, int], stream: Any) -> None:
        """Draw for so many replays where each set differs, and enqueue sending it.

        The sets that are `judged`, by their replays, differ by their change alone.
        """
        if not self.patch.changes:
            return
        targets, sources = self._draw_elements(replays, sets)
        for replay, chosen in judged.items():
            sources[replay, chosen] = self._pristine + (targets[replay, chosen] & OFFSET)
        before = targets[:1] if self._differing is None else self._differing
        undone = np.concatenate([before, targets[:-1]])
        self._differing = targets[-1:]
        tables = undone, self._pristine + (undone & OFFSET), targets, sources
        self._drawn.send(np.stack(tables, axis=1), stream)

    def apply(
        self, replay: int, judged: tuple[int, int] | None, buffers: Buffers, stream: Any
    ) -> None:
        """Enqueue what makes of all sets what was drawn for a replay.

        `judged` are the set that meets a change, and the number of that.
        """
        if self._differing is None:
            return
        count = self._differing.shape[-1]
        size = buffers.sets * count * 8
        first = self._drawn.base + 4 * replay * size
        everywhere = buffers.base, buffers.set_bytes, buffers.sets
        _copy_elements(*everywhere, first, first + size, count, stream)
        if self._judged is not None:
            self._apply_change(*self._judged, _PRISTINE, buffers, stream)
        _copy_elements(*everywhere, first + 2 * size, first + 3 * size, count, stream)
        if judged is not None:
            self._apply_change(*judged, _VALUES, buffers, stream)
        self._judged = judged

    def close(self) -> None:
        for table in (self._drawn, self._values, self._changes):
            table.close()

    def _draw_elements(self, replays: int, sets: int) -> tuple[Array, Array]:
        targets, sources = [], []
        most = max(1, MOST_DRAWN // (sets * len(self.patch.varied)))
        for one in self.patch.varied:
            chosen = replace(one, elements=min(one.elements, most)).draw(
                self._chance, (replays, sets)
            )
            others = self._chance.integers(0, one.size, chosen.shape)
            targets.append((one.offset + chosen * one.width_bytes) | one.width_bytes << WIDTH_BIT)
            sources.append(self._pristine + one.offset + others * one.width_bytes)
        return np.concatenate(targets, axis=-1), np.concatenate(sources, axis=-1)

    def _of_change(self, number: int) -> Array:
        """Give where the elements of a change go, where its values lie, and where pristine ones."""
        offsets = np.array(self.patch.changes[number].offsets, np.int64)
        sizes = [np.full(one.elements, one.width_bytes) for one in self.patch.varied]
        widths = np.concatenate(sizes)
        begins = np.cumsum(widths) - widths
        places = offsets[begins]
        values = self._values.base + number * len(offsets) + begins
        return np.stack([places | widths << WIDTH_BIT, values, self._pristine + places])

    def _apply_change(
        self, chosen: int, variant: int, column: int, buffers: Buffers, stream: Any
    ) -> None:
        count = sum(one.elements for one in self.patch.varied)
        targets = self._changes.base + (variant - 1) * _COLUMNS * count * 8
        base = buffers.base + chosen * buffers.set_bytes
        sources = targets + column * count * 8
        _copy_elements(base, buffers.set_bytes, 1, targets, sources, count, stream)


def _copy_elements(
    base: int, set_bytes: int, sets: int, targets: int, sources: int, count: int, stream: Any
) -> None:
    addresses, numbers = (base, set_bytes, targets, sources), (count, count * sets)
    load_kernel(_APPLY, "apply").issue(
        stream, _BLOCKS, *map(ctypes.c_uint64, addresses), *map(ctypes.c_uint32, numbers)
    )


class _Table:
    """Memory on the GPU for an array of this process, as large as the largest that was sent."""

    def __init__(self) -> None:
        self.base = self._size_bytes = 0

    def send(self, content: Array, stream: Any = None) -> None:
        """Copy an array there; with a stream behind all that is in it, and without waiting."""
        if content.nbytes > self._size_bytes:
            self.close()
            self.base, self._size_bytes = allocate(content.nbytes), content.nbytes
        content = np.ascontiguousarray(content)
        source = self.base, content.ctypes.data, content.nbytes
        if stream is None:
            call(driver.cuMemcpyHtoD, *source)
            # It may return before the copy ends, and our stream does not wait for the default one.
            call(driver.cuCtxSynchronize)
        else:  # the driver has taken memory of Python's over when it returns
            call(driver.cuMemcpyHtoDAsync, *source, stream)

    def close(self) -> None:
        if self._size_bytes:
            call(driver.cuMemFree, self.base)
        self.base = self._size_bytes = 0


class Results:
    """Some results of each program, each with its variant of the inputs, and if bits repeat."""

    def __init__(self, layout: Layout, programs: int, repeating: frozenset[str]) -> None:
        self._layout, self.programs = layout, programs
        self._base = allocate(JUDGED_ON_GPU * programs * layout.total_bytes)
        self._flags = allocate(4 * programs)
        outputs = layout.with_role("output", "inout")
        self._repeating: list[Slot] = [slot for slot in outputs if slot.name in repeating]
        self.renew(UNCHANGED)

    def renew(self, patch: Patch) -> None:
        """Forget all results; what comes is on variants of this patch."""
        self._calls = [SampledCalls[None](patch, JUDGED_ON_GPU) for _ in range(self.programs)]
        call(driver.cuMemsetD8, self._flags, 0, 4 * self.programs)

    def plan(self, index: int) -> Judging | None:
        """Choose what a program's next replay is for."""
        return self._calls[index].plan()

    def take(
        self, index: int, judging: Judging, address: int, stream: Any, *, repeats: bool = True
    ) -> None:
        """Enqueue comparing the set at `address` with what is kept of its variant; keep it."""
        calls, size_bytes = self._calls[index], self._layout.total_bytes
        known = calls.known(judging.variant)
        if repeats and known is not None:
            kept = self._address(index, known[0])
            for slot in self._repeating:
                ends = address + slot.offset, kept + slot.offset
                difference.compare(stream, *ends, slot.size_bytes, self._flags + 4 * index)
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
        differed = difference.read_flag(self._flags + 4 * index)
        call(driver.cuCtxSynchronize)
        return variant, not differed

    def close(self) -> None:
        for base in (self._base, self._flags):
            call(driver.cuMemFree, base)

    def _address(self, index: int, place: int) -> int:
        return self._base + (JUDGED_ON_GPU * index + place) * self._layout.total_bytes


def identity(program: Program) -> str:
    """Tell a program from every other one of its workload."""
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
                most = min(graphs[position].calls, self.buffers.sets)
                judged[position] = secrets.randbelow(most), planned
        changed = {at: (chosen, one.variant) for at, (chosen, one) in judged.items()}
        alone = {replay: chosen for replay, (chosen, _) in changed.items()}
        self._patch.draw(len(graphs), self.buffers.sets, alone, self._stream)
        with timing_events(1 + 2 * len(graphs)) as events:
            first, *others = events
            pairs = list(zip(others[::2], others[1::2], strict=True))
            call(driver.cuEventRecord, first, self._stream)
            for position, (graph, (start, stop)) in enumerate(zip(graphs, pairs, strict=True)):
                self.buffers.spoil(fill_byte())
                if not kept or kept[position] is not None:
                    # Between replays of one program nothing is reset: it has to leave zeros.
                    if graph is not self._last:
                        self.buffers.zero()
                    self._last = graph
                self._patch.apply(position, changed.get(position), self.buffers, self._stream)
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
        (_, *sample), event_s = self.run([one for one in chosen if one], kept)
        rows, size = [], len(competitors)
        for first in range(0, len(sample), size):
            found = list(zip(turns[1 + first :], sample[first : first + size], strict=False))
            without = [total for turn, total in found if turn is None]
            less = sum(without) / max(len(without), 1)
            totals = {turn: total - less for turn, total in found if turn is not None}
            rows.append([max(totals[k] / g.calls, LEAST_US) for k, g in enumerate(graphs)])
        return rows, event_s

    def _take(self, index: int, launcher: Issuer, chosen: int, judging: Judging) -> None:
        arguments = self.buffers.arguments[chosen]
        launcher.collect(arguments)
        # A peer need not repeat its bits.
        repeats = launcher.repeats
        self._results.take(index, judging, arguments.base, self._stream, repeats=repeats)
