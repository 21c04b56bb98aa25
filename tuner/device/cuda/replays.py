"""Replays of graphs of calls, each of which finds memory in a state that tells it nothing."""

from __future__ import annotations

import ctypes
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from tuner.device.base import Program
from tuner.device.cuda import difference
from tuner.device.cuda.buffers import Buffers, Graph, Scrub, SharedSpoiler, timing_events
from tuner.device.cuda.driver import POSITION, Issuer, allocate, call, load_kernel
from tuner.device.cuda.neighbours import Neighbours
from tuner.device.layout import Layout, Patch, Slot, fill_byte
from tuner.device.timing import MAX_CALLS, TimingPolicy
from tuner.model.statistics import LEAST_US

_BLOCKS = 264
# Writes one byte of a set's variant of the patch, in turns.
_APPLY = f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry apply(
  .param .u64 base, .param .u64 set_bytes, .param .u64 offsets, .param .u64 values,
  .param .u64 variants, .param .u32 count, .param .u32 total)
{{
  .reg .pred %p<2>;
  .reg .b16 %h<3>;
  .reg .b32 %r<12>;
  .reg .b64 %d<12>;
  ld.param.u64 %d1, [base];
  ld.param.u64 %d2, [set_bytes];
  ld.param.u64 %d3, [offsets];
  ld.param.u64 %d4, [values];
  ld.param.u64 %d9, [variants];
  ld.param.u32 %r7, [count];
  ld.param.u32 %r8, [total];
{POSITION}next:
  setp.ge.u32 %p1, %r5, %r8;
  @%p1 ret;
  div.u32 %r9, %r5, %r7;
  rem.u32 %r10, %r5, %r7;
  mul.wide.u32 %d5, %r10, 8;
  add.u64 %d5, %d5, %d3;
  ld.global.u64 %d6, [%d5];
  cvt.u64.u32 %d8, %r9;
  add.u64 %d10, %d9, %d8;
  ld.global.u8 %h2, [%d10];
  cvt.u32.u16 %r11, %h2;
  mad.lo.u32 %r11, %r11, %r7, %r10;
  cvt.u64.u32 %d7, %r11;
  add.u64 %d7, %d7, %d4;
  ld.global.u8 %h1, [%d7];
  mad.lo.u64 %d8, %d8, %d2, %d1;
  add.u64 %d8, %d8, %d6;
  st.global.u8 [%d8], %h1;
  add.u32 %r5, %r5, %r6;
  bra next;
}}
"""


class DevicePatch:
    """The two variants of a few bytes of the inputs, on the GPU, and which of them each set has."""

    def __init__(self, patch: Patch) -> None:
        self.patch, self._count = patch, len(patch.offsets)
        if not self._count:
            return
        offsets = (ctypes.c_int64 * self._count)(*patch.offsets)
        content = ctypes.create_string_buffer(bytes(offsets) + b"".join(patch.values))
        self._base, self._variants = allocate(len(content)), allocate(MAX_CALLS)
        call(driver.cuMemcpyHtoD, self._base, ctypes.addressof(content), len(content))

    def apply(self, buffers: Buffers, stream: Any) -> bytes:
        """Draw a variant for every set and enqueue writing them; return what was drawn."""
        drawn = self.patch.draw(buffers.sets)
        if not self._count:
            return drawn
        # The driver copies so few bytes before it returns.
        content = ctypes.create_string_buffer(drawn, len(drawn))
        source = ctypes.addressof(content)
        call(driver.cuMemcpyHtoDAsync, self._variants, source, len(drawn), stream)
        values = self._base + self._count * 8
        addresses = (buffers.base, buffers.set_bytes, self._base, values, self._variants)
        numbers = (self._count, self._count * buffers.sets)
        load_kernel(_APPLY, "apply").issue(
            stream, _BLOCKS, *map(ctypes.c_uint64, addresses), *map(ctypes.c_uint32, numbers)
        )
        return drawn

    def close(self) -> None:
        for base in (self._base, self._variants) if self._count else ():
            call(driver.cuMemFree, base)


class Results:
    """A result of each program on each variant of its inputs, and whether bits repeat."""

    def __init__(self, layout: Layout, programs: int, repeating: frozenset[str]) -> None:
        self._layout, self.programs = layout, programs
        self._base = allocate(2 * programs * layout.total_bytes)
        self._flags = allocate(4 * programs)
        outputs = layout.with_role("output", "inout")
        self._repeating: list[Slot] = [slot for slot in outputs if slot.name in repeating]
        self.renew()

    def renew(self) -> None:
        """Forget all results."""
        # Of how many calls of a program on a variant one result is kept.
        self._kept: Counter[tuple[int, int]] = Counter()
        call(driver.cuMemsetD8, self._flags, 0, 4 * self.programs)

    def take(
        self, index: int, variant: int, address: int, stream: Any, *, repeats: bool = True
    ) -> None:
        """Enqueue comparing the set at `address` with what is kept of this variant, or keep it.

        Each is as likely to be kept in the end as any other: nobody can foresee which is judged.
        """
        place, size_bytes = self._place(index, variant), self._layout.total_bytes
        if repeats and (index, variant) in self._kept:
            for slot in self._repeating:
                ends = address + slot.offset, place + slot.offset
                difference.compare(stream, *ends, slot.size_bytes, self._flags + 4 * index)
        self._kept[index, variant] += 1
        if secrets.randbelow(self._kept[index, variant]) == 0:
            call(driver.cuMemcpyDtoDAsync, place, address, size_bytes, stream)

    def show(self, index: int, variant: int, address: int) -> bool | None:
        """Copy a program's result on a variant to `address`, and say whether bits repeat.

        Return None where there is none.
        """
        if (index, variant) not in self._kept:
            return None
        size_bytes = self._layout.total_bytes
        call(driver.cuMemcpyDtoD, address, self._place(index, variant), size_bytes)
        differed = difference.read_flag(self._flags + 4 * index)
        call(driver.cuCtxSynchronize)
        return not differed

    def close(self) -> None:
        for base in (self._base, self._flags):
            call(driver.cuMemFree, base)

    def _place(self, index: int, variant: int) -> int:
        return self._base + (2 * index + variant) * self._layout.total_bytes


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
    distribution, what is written in place is restored, each set's inputs become one of the two
    variants of the patch, and the L2 is scrubbed of all that. So no call can tell whether it is
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

        `kept` says for each graph which program it is of, and what collects its results: one of
        those, of a set that nobody can foresee, is kept. It is None for a graph of no program.
        """
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
                variants = self._patch.apply(self.buffers, self._stream)
                if self._neighbours is not None:
                    self._neighbours.plant(self.buffers.arguments)
                self._shared.issue(self._stream)
                self._scrub.issue(self._stream)
                call(driver.cuEventRecord, start, self._stream)
                graph.launch(self._stream)
                call(driver.cuEventRecord, stop, self._stream)
                if kept and (of := kept[position]) is not None:
                    self._keep(graph, variants, *of)
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

    def _keep(self, graph: Graph, variants: bytes, index: int, launcher: Issuer) -> None:
        number = secrets.randbelow(min(graph.calls, self.buffers.sets))
        chosen, variant = self.buffers.arguments[number], variants[number]
        launcher.collect(chosen)
        # A peer need not repeat its bits.
        self._results.take(index, variant, chosen.base, self._stream, repeats=launcher.repeats)
