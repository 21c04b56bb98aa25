"""Copies of a workload's arrays on the GPU, and captured graphs of calls that rotate over them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker, shared_memory
from typing import Any, Protocol

from cuda.bindings import driver

from tuner.device.cuda.driver import Arguments, CudaError, Issuer, allocate, call
from tuner.device.layout import Arena
from tuner.device.timing import Rotation
from tuner.model.errors import WorkerError

# The driver limits the pitch of a two-dimensional fill: large arrays, of few sets, go one by one.
FEW_SETS = 8
# Two could end while this process is held up for the length of one.
BATCHES_AHEAD = 3


class MappedArena:
    """The judge's memory as this process sees it."""

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
        """Fetch the judge's inputs where memory is not shared on the GPU."""
        if self._host is not None:
            call(driver.cuMemcpyHtoD, self.base, self._address, self.layout.total_bytes)
            # It may return before the copy ends, and our stream does not wait for the default one.
            call(driver.cuCtxSynchronize)

    def push(self) -> None:
        """Hand the outputs back where memory is not shared on the GPU."""
        if self._host is not None:
            call(driver.cuMemcpyDtoH, self._address, self.base, self.layout.total_bytes)

    def close(self) -> None:
        """Unmap."""
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
    """Copies of one workload's arrays, enough of them that the L2 holds none between two uses."""

    def __init__(self, arena: MappedArena, chosen: Rotation, stream: Any) -> None:
        self.rotation, self.sets = chosen, chosen.sets
        self._arena, self._stream = arena, stream
        self._size = arena.layout.total_bytes
        self.size_bytes = self._size * self.sets
        self._base = allocate(self.size_bytes)
        written_in_place = bool(arena.layout.with_role("inout"))
        self._pristine = allocate(self.size_bytes) if written_in_place else 0
        self.arguments = [
            Arguments(arena.layout, self._base + index * self._size) for index in range(self.sets)
        ]

    @property
    def held_bytes(self) -> int:
        """All that was allocated, the copy of arrays that are written in place included."""
        return 2 * self.size_bytes if self._pristine else self.size_bytes

    def renew(self) -> None:
        """Give every set what the arena holds."""
        call(driver.cuMemcpyDtoDAsync, self._base, self._arena.base, self._size, self._stream)
        made = 1
        while made < self.sets:  # each copy doubles what there is: few calls for many sets
            count = min(made, self.sets - made)
            target = self._base + made * self._size
            call(driver.cuMemcpyDtoDAsync, target, self._base, count * self._size, self._stream)
            made += count
        if self._pristine:
            call(driver.cuMemcpyDtoDAsync, self._pristine, *self._all, self._stream)
        call(driver.cuStreamSynchronize, self._stream)

    def spoil(self, byte: int) -> None:
        """Enqueue what makes every set look as if no call had used it yet.

        Inputs that are written in place are restored, outputs and scratch filled with `byte`.
        """
        if self._pristine:
            base, size_bytes = self._all
            call(driver.cuMemcpyDtoDAsync, base, self._pristine, size_bytes, self._stream)
        for slot in self._arena.layout.with_role("output", "scratch"):
            first, width = self._base + slot.offset, slot.size_bytes
            if self.sets > FEW_SETS:
                shape = (width, self.sets)
                call(driver.cuMemsetD2D8Async, first, self._size, byte, *shape, self._stream)
                continue
            for index in range(self.sets):
                place = first + index * self._size
                call(driver.cuMemsetD8Async, place, byte, width, self._stream)

    @property
    def _all(self) -> tuple[int, int]:
        return self._base, self.size_bytes

    def copy_to_arena(self, index: int) -> None:
        """Put one set where the judge looks, with its inputs and guards."""
        base = self._base + index * self._size
        call(driver.cuMemcpyDtoDAsync, self._arena.base, base, self._size, self._stream)
        call(driver.cuStreamSynchronize, self._stream)

    def close(self) -> None:
        """Free the copies."""
        call(driver.cuMemFree, self._base)
        if self._pristine:
            call(driver.cuMemFree, self._pristine)


class Places(Protocol):
    """Where a graph's calls find their arrays, one place after the other."""

    sets: int
    arguments: list[Arguments]


class Graph:
    """A captured sequence of operator calls that rotates over the buffer sets."""

    def __init__(self, launcher: Issuer, buffers: Places, calls: int, stream: Any) -> None:
        self.calls = calls
        modes = driver.CUstreamCaptureMode
        mode = (
            modes.CU_STREAM_CAPTURE_MODE_RELAXED
            if launcher.relaxed
            else modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        )
        call(driver.cuStreamBeginCapture, stream, mode)
        try:
            for index in range(calls):
                launcher.issue(buffers.arguments[index % buffers.sets])
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
        """Enqueue one replay."""
        call(driver.cuGraphLaunch, self._executable, stream)

    def close(self) -> None:
        """Release the graph; a failure here would only hide the one that led here."""
        driver.cuGraphExecDestroy(self._executable)


class Load:
    """Replays of one graph, enqueued ahead, so that the GPU never waits for this process."""

    def __init__(self, graph: Graph, replays: int, stream: Any) -> None:
        self._graph, self._stream = graph, stream
        self._replays = replays
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
        """Count the batches that have ended."""
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


@contextmanager
def timing_events(count: int) -> Iterator[list[Any]]:
    """Make events for the time of a block."""
    events: list[Any] = []
    try:
        for _ in range(count):
            events.append(call(driver.cuEventCreate, 0))
        yield events
    finally:
        for event in events:
            driver.cuEventDestroy(event)
