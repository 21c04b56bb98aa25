"""What kernels on the CPU work on: two memory files, apart from the verifier's own."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tuner.device.encoding import Array
from tuner.device.layout import UNCHANGED, Arena, Layout, Patch, Slot
from tuner.device.verify.shared_memory import memory_file

Ranges = Sequence[tuple[int, int]]


class VariedInputs:
    """Inputs in a memory that become one variant of a patch after the other.

    Those of the places that `holds` tells lie there; all do where it is None.
    """

    def __init__(
        self, memory: Array, patch: Patch, holds: Callable[[Array], Array] | None = None
    ) -> None:
        self._memory, self._patch, self._holds = memory, patch, holds
        self._variant = 0

    def take(self, variant: int) -> None:
        """Become a variant: what the last one changed is as it was."""
        before, after = self._patch.of(self._variant), self._patch.of(variant)
        for change, values in ((before, before.before), (after, after.after)):
            places = np.array(change.offsets, np.int64)
            here = slice(None) if self._holds is None else self._holds(places)
            self._memory[places[here]] = np.frombuffer(values, np.uint8)[here]
        self._variant = variant


class RunMemory:
    """What runs of one workload find and leave: `outputs` and `inputs`, with the arena's places.

    Both may be the arena itself. Its layout is one by pages; `compared` names the outputs whose
    bits may not differ between runs.
    """

    def __init__(
        self, layout: Layout, compared: frozenset[str], arena: Array, outputs: Array, inputs: Array
    ) -> None:
        self._arena, self._outputs, self._inputs = arena, outputs, inputs
        slots = [one for one in layout.slots if one.role != "input" and one.size_bytes]
        read = [one for one in layout.slots if one.role == "input" and one.size_bytes]
        self.written: Ranges = [layout.pages(slot) for slot in slots]
        self.readable: Ranges = [layout.pages(slot) for slot in read]
        # What its pages hold before and behind an array nobody may write.
        arrays = zip(self.written, _ranges(slots), strict=True)
        self._edges = [edge for (a, b), (start, end) in arrays for edge in ((a, start), (end, b))]
        self._restored = [*self._edges, *_ranges(layout.with_role("inout"))]
        self._spoiled, self._zeroed = _ranges(layout.spoiled), _ranges(layout.zeroed)
        repeating = (slot for slot in layout.with_role("output") if slot.name in compared)
        self._compared = _ranges(repeating)
        self._contents: list[Array] = []
        self._last: object = None
        self._judged = VariedInputs(arena, UNCHANGED)
        self._found: list[VariedInputs] = []

    def renew(self, patch: Patch) -> None:
        """Take what the arena holds for what runs find, but for outputs and the patch."""
        self._last = None
        self._contents = [self._arena[start:end].copy() for start, end in self._restored]
        self._judged = VariedInputs(self._arena, patch)
        self._found = [self._judged]
        if self._outputs is self._arena:
            return
        for start, end in self.readable:
            self._inputs[start:end] = self._arena[start:end]

        restored = self._restored

        # Not a byte of it goes into a hole: a mapping that is grown would show which places vary.
        def lies_in_outputs(places: Array) -> Array:
            inside = np.zeros(len(places), bool)
            for start, end in restored:
                inside |= (start <= places) & (places < end)
            return inside

        self._found = [
            VariedInputs(self._outputs, patch, lies_in_outputs),
            VariedInputs(self._inputs, patch, lambda places: ~lies_in_outputs(places)),
        ]

    def prepare(self, program: object, fill: int, variant: int) -> None:
        """Let every run find the same: nothing of the one before is left.

        Another program than the last finds zeros, too, where that may not have left them.
        """
        for start, end in self._spoiled:
            self._outputs[start:end] = fill
        for (start, end), content in zip(self._restored, self._contents, strict=True):
            self._outputs[start:end] = content
        for start, end in self._zeroed if program != self._last else ():
            self._outputs[start:end] = 0
        self._last = program
        for one in self._found:
            one.take(variant)

    def digest(self) -> int:
        """Compute a checksum of the compared outputs."""
        digest = 0
        for start, end in self._compared:
            digest = zlib.crc32(self._outputs[start:end], digest)
        return digest

    def intact(self) -> bool:
        """Tell whether the last run left what lies around its arrays as it was."""
        pieces = zip(self._edges, self._contents, strict=False)
        return all(bool((self._outputs[start:end] == was).all()) for (start, end), was in pieces)

    def take(self) -> list[bytes]:
        """Copy all that a program can write."""
        return [self._outputs[start:end].tobytes() for start, end in self.written]

    def show(self) -> None:
        """Put all that a program can write into the arena, to be judged."""
        for start, end in self.written:
            self._arena[start:end] = self._outputs[start:end]

    def put(self, taken: Sequence[bytes], variant: int) -> None:
        """Put what was taken into the arena, and this variant of the inputs, to be judged."""
        self._judged.take(variant)
        for (start, end), content in zip(self.written, taken, strict=True):
            self._arena[start:end] = np.frombuffer(content, np.uint8)


class KernelMemory(RunMemory):
    """Hold what programs write and what they read, each in a file, with holes for all else.

    No program's process ever maps the arena: what is judged there, and what lies between its
    arrays, is in nobody's reach. Raises `MemoryError`, and `FileNotFoundError` where the verifier's
    process has ended.
    """

    def __init__(self, arena: Arena, compared: frozenset[str] = frozenset()) -> None:
        size, data = arena.layout.total_bytes, map_arena(arena)
        super().__init__(arena.layout, compared, data, None, None)
        self._files: list[int] = []
        try:
            for name, pages in (("written", self.written), ("read", self.readable)):
                self._files.append(memory_file(name, size, pages))
            self._outputs, self._inputs = (_map(file, size) for file in self._files)
        except BaseException:
            self.close()
            raise

    def open(self) -> tuple[int, int]:
        """Open the file that is written, and for reading only the other; the caller closes both."""
        written, read = (f"/proc/self/fd/{file}" for file in self._files)
        return os.open(written, os.O_RDWR | os.O_CLOEXEC), os.open(read, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the files; whoever maps them keeps what they hold."""
        for file in self._files:
            os.close(file)
        self._files = []


def map_arena(arena: Arena) -> Array:
    """Map the verifier's memory."""
    assert arena.host_name is not None
    file = os.open(arena.host_name, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _map(file, arena.layout.total_bytes)
    finally:
        os.close(file)


def _ranges(slots: Iterable[Slot]) -> Ranges:
    return [(slot.offset, slot.offset + slot.size_bytes) for slot in slots]


def _map(file: int, size: int) -> Array:
    return np.frombuffer(mmap.mmap(file, size), np.uint8)
