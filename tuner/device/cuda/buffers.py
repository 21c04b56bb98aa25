"""Memory for timed calls: copies to rotate over, graphs of calls, and what flushes and delays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker, shared_memory
from typing import Any, Literal

from cuda.bindings import driver

from tuner.device.cuda.driver import (
    PTX,
    PTX_OF_HOPPER,
    TURNS,
    Issuer,
    LaunchArguments,
    PtxKernel,
    allocate,
    call,
)
from tuner.device.layout import Arena, Slot, fill_byte
from tuner.device.timing import Rotation
from tuner.model.errors import WorkerError

# The driver limits the pitch of a two-dimensional fill: large arrays, of few sets, go one by one.
FEW_SETS = 8
_BLOCKS_PER_MULTIPROCESSOR = 8
# Reads and keeps nothing: lines that were only read cost the kernel that evicts them no writing
# back. The memory holds zeros, so that the store, which keeps the reads alive, never happens.
_READ_ALL = f"""{PTX}
.visible .entry read_all(.param .u64 address, .param .u64 size_bytes)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<12>;
  .reg .b64 %d<6>;
  ld.param.u64 %d1, [address];
  ld.param.u64 %d2, [size_bytes];
  cvta.to.global.u64 %d1, %d1;
{TURNS}  mov.u32 %r7, 0;
more:
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 bra done;
  add.u64 %d5, %d1, %d3;
  ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%d5];
  or.b32 %r8, %r8, %r9;
  or.b32 %r10, %r10, %r11;
  or.b32 %r7, %r7, %r8;
  or.b32 %r7, %r7, %r10;
  add.u64 %d3, %d3, %d4;
  bra more;
done:
  setp.eq.u32 %p2, %r7, 0;
  @%p2 ret;
  st.global.u32 [%d1], %r7;
  ret;
}}
"""
_FILL_SHARED = f"""{PTX}
.extern .shared .align 16 .b8 pool[];
.visible .entry fill_shared(.param .u32 size_bytes, .param .u32 word)
{{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  ld.param.u32 %r1, [size_bytes];
  ld.param.u32 %r2, [word];
  mov.u32 %r3, %tid.x;
  shl.b32 %r3, %r3, 2;
  mov.u32 %r4, %ntid.x;
  shl.b32 %r4, %r4, 2;
  mov.u32 %r5, pool;
next:
  setp.ge.u32 %p1, %r3, %r1;
  @%p1 ret;
  add.u32 %r6, %r5, %r3;
  st.shared.u32 [%r6], %r2;
  add.u32 %r3, %r3, %r4;
  bra next;
}}
"""
# Larger arrays are not copied: a kernel that does not wait shows on smaller ones.
MOST_BYTES = 256 << 20
# Longer than Python takes for the launches that have to be enqueued meanwhile, on a busy CPU too.
DELAY_NS = 200_000
_STALE = 0xFF
# Lets the next launch start at once, sleeps, and copies 16 bytes at a time.
_WRITE_LATE = f"""{PTX_OF_HOPPER}
.visible .entry write_late(
  .param .u64 to, .param .u64 from, .param .u64 size_bytes, .param .u64 delay_ns)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<12>;
  .reg .b64 %d<14>;
  griddepcontrol.launch_dependents;
  ld.param.u64 %d1, [to];
  ld.param.u64 %d2, [from];
  ld.param.u64 %d5, [size_bytes];
  ld.param.u64 %d6, [delay_ns];
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d2, %d2;
  mov.u64 %d7, %globaltimer;
still:
  mov.u64 %d8, %globaltimer;
  sub.u64 %d8, %d8, %d7;
  setp.lt.u64 %p1, %d8, %d6;
  @%p1 bra still;
{TURNS}more:
  setp.ge.u64 %p2, %d3, %d5;
  @%p2 ret;
  add.u64 %d9, %d2, %d3;
  add.u64 %d10, %d1, %d3;
  ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%d9];
  st.global.v4.u32 [%d10], {{%r8, %r9, %r10, %r11}};
  add.u64 %d3, %d3, %d4;
  bra more;
}}
"""

# Without waiting for anything: 16 bytes a turn, byte by byte, for an array may end anywhere.
_OVERWRITE_EARLY = f"""{PTX_OF_HOPPER}
.visible .entry overwrite_early(.param .u64 at, .param .u64 size_bytes)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<8>;
  .reg .b64 %d<9>;
  ld.param.u64 %d1, [at];
  ld.param.u64 %d2, [size_bytes];
  cvta.to.global.u64 %d1, %d1;
  mov.u32 %r7, {_STALE};
{TURNS}more:
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 ret;
  mov.u64 %d5, %d3;
  add.u64 %d6, %d3, 16;
  min.u64 %d6, %d6, %d2;
each:
  add.u64 %d7, %d1, %d5;
  st.global.u8 [%d7], %r7;
  add.u64 %d5, %d5, 1;
  setp.lt.u64 %p2, %d5, %d6;
  @%p2 bra each;
  add.u64 %d3, %d3, %d4;
  bra more;
}}
"""


class MappedArena:
    """The verifier's memory as this process sees it."""

    def __init__(self, arena: Arena) -> None:
        self.layout = arena.layout
        self._host: shared_memory.SharedMemory | None = None
        if arena.ipc_handle is not None:
            handle = driver.CUipcMemHandle()
            ctypes.memmove(handle.getPtr(), arena.ipc_handle, len(arena.ipc_handle))
            flags = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
            self.base = int(call(driver.cuIpcOpenMemHandle, handle, flags))
        else:
            self._host = shared_memory.SharedMemory(name=arena.host_name)
            # Or the end of this process would remove what the judge made and others will map.
            resource_tracker.unregister(f"/{arena.host_name}", "shared_memory")
            self.base = allocate(arena.layout.total_bytes)

    def pull(self) -> None:
        """Fetch the verifier's inputs where memory is not shared on the GPU."""
        if self._host is not None:
            call(driver.cuMemcpyHtoD, self.base, self._address, self.layout.total_bytes)
            # It may return before the copy ends, and our stream does not wait for the default one.
            call(driver.cuCtxSynchronize)

    def push(self) -> None:
        """Hand the outputs back where memory is not shared on the GPU."""
        if self._host is not None:
            call(driver.cuMemcpyDtoH, self._address, self.base, self.layout.total_bytes)

    def close(self) -> None:
        if self._host is None:
            call(driver.cuIpcCloseMemHandle, self.base)
            return
        call(driver.cuMemFree, self.base)
        self._host.close()

    @property
    def _address(self) -> int:
        assert self._host is not None
        assert self._host.buf is not None
        return ctypes.addressof(ctypes.c_char.from_buffer(self._host.buf))


class Buffers:
    """Copies of one workload's arrays: one for each call of a replay, more than the L2 holds."""

    def __init__(self, arena: MappedArena, chosen: Rotation, stream: Any) -> None:
        self.rotation, self.sets = chosen, chosen.sets
        self._arena, self._stream = arena, stream
        self.set_bytes = arena.layout.total_bytes
        self.size_bytes = self.set_bytes * self.sets
        self.base = allocate(self.size_bytes)
        written_in_place = bool(arena.layout.with_role("inout"))
        self._pristine = allocate(self.size_bytes) if written_in_place else 0
        # How many hold what the arena does.
        self._filled = 0
        self.arguments = [
            LaunchArguments(arena.layout, self.base + index * self.set_bytes)
            for index in range(self.sets)
        ]

    @property
    def held_bytes(self) -> int:
        return 2 * self.size_bytes if self._pristine else self.size_bytes

    def renew(self) -> None:
        """Take what the sets hold for old: the arena holds something else."""
        self._filled = 0

    def fill(self, sets: int) -> None:
        """Copy what the arena holds to so many sets, unless they have it."""
        if self._filled >= sets:
            return
        first, made = self.base + self._filled * self.set_bytes, 1
        new = sets - self._filled
        call(driver.cuMemcpyDtoDAsync, first, self._arena.base, self.set_bytes, self._stream)
        while made < new:  # each copy doubles what there is: few calls for many sets
            count = min(made, new - made)
            target = first + made * self.set_bytes
            call(driver.cuMemcpyDtoDAsync, target, first, count * self.set_bytes, self._stream)
            made += count
        if self._pristine:
            kept, size_bytes = self._pristine + first - self.base, new * self.set_bytes
            call(driver.cuMemcpyDtoDAsync, kept, first, size_bytes, self._stream)
        self._filled = sets
        call(driver.cuStreamSynchronize, self._stream)

    def spoil(self, byte: int, sets: int) -> None:
        """Enqueue what makes so many look as if no call had used them; fill outputs with `byte`."""
        if self._pristine:
            size_bytes = sets * self.set_bytes
            call(driver.cuMemcpyDtoDAsync, self.base, self._pristine, size_bytes, self._stream)
        self._set(self._arena.layout.spoiled, byte, sets)

    def zero(self) -> None:
        """Enqueue what makes scratch zero that kernels have to leave so, for another program."""
        self._set(self._arena.layout.zeroed, 0, self.sets)

    def _set(self, slots: Sequence[Slot], byte: int, sets: int) -> None:
        for slot in slots:
            first, width = self.base + slot.offset, slot.size_bytes
            if sets > FEW_SETS:
                shape = (width, sets)
                call(driver.cuMemsetD2D8Async, first, self.set_bytes, byte, *shape, self._stream)
                continue
            for index in range(sets):
                place = first + index * self.set_bytes
                call(driver.cuMemsetD8Async, place, byte, width, self._stream)

    def close(self) -> None:
        call(driver.cuMemFree, self.base)
        if self._pristine:
            call(driver.cuMemFree, self._pristine)


class Graph:
    """A captured sequence of operator calls, each on arrays of its own."""

    def __init__(
        self, launcher: Issuer, everywhere: Sequence[LaunchArguments], stream: Any
    ) -> None:
        self.calls = len(everywhere)
        modes = driver.CUstreamCaptureMode
        mode = (
            modes.CU_STREAM_CAPTURE_MODE_RELAXED
            if launcher.relaxed
            else modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        )
        call(driver.cuStreamBeginCapture, stream, mode)
        try:
            for arguments in everywhere:
                launcher.issue(arguments)
        except WorkerError:
            status, *unfinished = driver.cuStreamEndCapture(stream)
            if status == driver.CUresult.CUDA_SUCCESS:
                driver.cuGraphDestroy(*unfinished)
            raise
        graph = call(driver.cuStreamEndCapture, stream)
        try:
            self._executable = call(driver.cuGraphInstantiate, graph, 0)
        finally:
            driver.cuGraphDestroy(graph)
        call(driver.cuGraphUpload, self._executable, stream)

    def launch(self, stream: Any) -> None:
        call(driver.cuGraphLaunch, self._executable, stream)

    def close(self) -> None:
        """Release the graph; a failure here would only hide the one that led here."""
        driver.cuGraphExecDestroy(self._executable)


@contextmanager
def timing_events(count: int) -> Iterator[list[Any]]:
    events: list[Any] = []
    try:
        for _ in range(count):
            events.append(call(driver.cuEventCreate, 0))
        yield events
    finally:
        for event in events:
            driver.cuEventDestroy(event)


class Scrub:
    """Zeros in the GPU's memory that are read between two replays, in place of what was there."""

    def __init__(self, size_bytes: int, multiprocessors: int) -> None:
        base = allocate(size_bytes)
        call(driver.cuMemsetD8, base, 0, size_bytes)
        self._kernel = PtxKernel(_READ_ALL, "read_all")
        self._blocks = _BLOCKS_PER_MULTIPROCESSOR * multiprocessors
        self._values = (ctypes.c_uint64(base), ctypes.c_uint64(size_bytes))

    def issue(self, stream: Any) -> None:
        self._kernel.issue(stream, self._blocks, *self._values)


class SharedSpoiler:
    """Fill the shared memory of all multiprocessors: a kernel that reads it unset is wrong then."""

    def __init__(self, shared_bytes: int, multiprocessors: int) -> None:
        self._kernel = PtxKernel(_FILL_SHARED, "fill_shared")
        self._shared_bytes, self._blocks = shared_bytes, 2 * multiprocessors
        name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute, self._kernel.function, name, shared_bytes)

    def issue(self, stream: Any) -> None:
        word = fill_byte() * 0x01010101
        values = (ctypes.c_uint32(self._shared_bytes), ctypes.c_uint32(word))
        self._kernel.issue(stream, self._blocks, *values, shared_bytes=self._shared_bytes)


Probe = Literal["none", "late writer", "eager successor"]


class LateWriter:
    """Stand for the launch that makes a kernel's inputs while the kernel may already run.

    What the next launch of the stream finds in memory is stale until this one ends, but for
    constant inputs. A programmatic launch that reads before `griddepcontrol.wait` computes on that;
    what it writes is overwritten.
    """

    def __init__(self, multiprocessors: int) -> None:
        self.multiprocessors = multiprocessors
        # On the others a block starts at once, even one that needs a multiprocessor to itself.
        self._blocks = max(1, multiprocessors // 4)
        self._kernel = PtxKernel(_WRITE_LATE, "write_late")
        self._spare = _Spare()

    def before(self, arena: MappedArena, stream: Any) -> bool:
        """Enqueue making the memory stale and writing it late; False where there is no room."""
        address, size_bytes = arena.base, arena.layout.total_bytes
        if not (copy := self._spare.of(size_bytes)):
            return False
        call(driver.cuMemcpyDtoDAsync, copy, address, size_bytes, stream)
        # What is constant was written long ago; writing it anew changes nothing.
        for start, end in arena.layout.changing:
            call(driver.cuMemsetD8Async, address + start, _STALE, end - start, stream)
        self.issue(stream, address, copy, size_bytes)
        return True

    def issue(self, stream: Any, to: int, source: int, size_bytes: int) -> None:
        """Enqueue a launch that copies late; the next one may begin with it."""
        numbers = to, source, size_bytes, DELAY_NS
        self._kernel.issue(stream, self._blocks, *map(ctypes.c_uint64, numbers))

    def after(self, stream: Any) -> None:
        """Nobody comes after the kernel."""

    def tidy(self, stream: Any) -> None:
        """All is as it was."""

    def close(self) -> None:
        self._spare.close()


class EagerSuccessor:
    """Stand for the launch after a kernel, which uses the memory of the inputs for its own.

    It is programmatic and overwrites them as soon as it may begin, without waiting: what a kernel
    leaves to the hardware begins when all its blocks have ended, and needs its inputs no more. A
    kernel that lets it begin sooner loses them: what comes before the kernel is made to last.
    """

    def __init__(self, before: LateWriter) -> None:
        self._before, self._blocks = before, before.multiprocessors
        self._kernel = PtxKernel(_OVERWRITE_EARLY, "overwrite_early")
        self._spare = _Spare()
        # From, to, and how many bytes: what brings the inputs back.
        self._inputs: list[tuple[int, int, int]] = []

    def before(self, arena: MappedArena, stream: Any) -> bool:
        """Keep the inputs and enqueue a launch that lasts; False without inputs, or room."""
        # The largest first: a kernel reads it for the longest time.
        inputs = (slot for slot in arena.layout.with_role("input") if not slot.constant)
        slots = sorted(inputs, key=lambda slot: -slot.size_bytes)
        copy = self._spare.of(arena.layout.total_bytes) if slots else 0
        if not copy:
            return False
        self._inputs = [(copy + s.offset, arena.base + s.offset, s.size_bytes) for s in slots]
        for kept, address, size_bytes in self._inputs:
            call(driver.cuMemcpyDtoDAsync, kept, address, size_bytes, stream)
        self._before.issue(stream, 0, 0, 0)
        return True

    def after(self, stream: Any) -> None:
        """Enqueue what overwrites the inputs, a launch for each."""
        for _, address, size_bytes in self._inputs:
            numbers = ctypes.c_uint64(address), ctypes.c_uint64(size_bytes)
            self._kernel.issue(stream, self._blocks, *numbers, programmatic=True)

    def tidy(self, stream: Any) -> None:
        """Bring the inputs back, which the judge compares with its own."""
        for kept, address, size_bytes in self._inputs:
            call(driver.cuMemcpyDtoDAsync, address, kept, size_bytes, stream)
        call(driver.cuStreamSynchronize, stream)

    def close(self) -> None:
        self._spare.close()


class _Spare:
    """Memory for a copy, kept for the next one; there is none for large arrays."""

    def __init__(self) -> None:
        self._address, self._held_bytes = 0, 0

    def of(self, size_bytes: int) -> int:
        """Return an address with room for so many bytes, 0 where there is no room."""
        if size_bytes > MOST_BYTES:
            return 0
        if size_bytes > self._held_bytes:
            self.close()
            try:
                self._address, self._held_bytes = allocate(size_bytes), size_bytes
            except MemoryError:  # a check less is better than a session less
                return 0
        return self._address

    def close(self) -> None:
        if self._held_bytes:
            call(driver.cuMemFree, self._address)
        self._address, self._held_bytes = 0, 0
