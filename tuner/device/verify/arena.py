"""The judge's memory, and how another process reaches it."""

from __future__ import annotations

from multiprocessing import shared_memory
from typing import Any, Protocol

import numpy as np

from tuner.device.layout import Arena, Layout
from tuner.device.number_formats import Array

# Smaller allocations share a block of this size, and an IPC handle opens the whole block.
BLOCK_BYTES = 2 << 20
# One in so many bytes of a GPU's memory holds inputs and references for use again.
STOCK_SHARE = 16


class ArenaMemory(Protocol):
    """Bytes that the judge fills and reads and that a kernel is launched on.

    `xp` is the array library of `data`, which exists between `open` and `close`; `stock_bytes`
    is what the judge may keep beside it.
    """

    xp: Any
    data: Array
    stock_bytes: int

    def open(self, key: str, layout: Layout) -> Arena:
        """Allocate for one workload, releasing what was open, and say how to reach it."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...

    def push(self) -> None:
        """Make what was written visible to the launching process."""
        ...

    def pull(self) -> None:
        """Make what was launched visible in `data`."""
        ...

    def synchronize(self) -> None:
        """Wait for the array library's work."""
        ...


class HostMemory:
    """Memory of this process, for NumPy: enough to check a reference without a GPU."""

    def __init__(self) -> None:
        self.xp: Any = np
        self.data: Array = None
        self.stock_bytes = 0

    def open(self, key: str, layout: Layout) -> Arena:
        """Allocate; no other process can reach it."""
        self.data = np.zeros(layout.total_bytes, np.uint8)
        return Arena(key, layout, None, None)

    def close(self) -> None:
        """Release the array."""
        self.data = None

    def push(self) -> None:
        """Nothing to do: there is one memory."""

    def pull(self) -> None:
        """Nothing to do: there is one memory."""

    def synchronize(self) -> None:
        """Nothing to do: NumPy has finished when it returns."""


class CudaMemory:
    """Memory of one GPU, shared by CUDA IPC, or through host memory where there is none."""

    def __init__(self, ordinal: int) -> None:
        import cupy

        cupy.cuda.Device(ordinal).use()
        self.xp: Any = cupy
        self.data: Array = None
        self.stock_bytes = cupy.cuda.Device(ordinal).mem_info[1] // STOCK_SHARE
        self._host: shared_memory.SharedMemory | None = None

    def open(self, key: str, layout: Layout) -> Arena:
        """Allocate on the GPU; the handle stays valid until `close`."""
        self.close()
        cupy = self.xp
        # Not from CuPy's pool: an IPC handle covers a whole cudaMalloc allocation.
        blocks = -(-layout.total_bytes // BLOCK_BYTES)
        try:
            memory = cupy.cuda.Memory(blocks * BLOCK_BYTES)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            wanted = f"{layout.total_bytes / 1e9:.3g} GB on the GPU"
            raise MemoryError(f"{wanted}: {error}") from error
        self.data = cupy.ndarray(
            (layout.total_bytes,), cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0)
        )
        try:
            handle = bytes(cupy.cuda.runtime.ipcGetMemHandle(memory.ptr))
            return Arena(key, layout, handle, None)
        except cupy.cuda.runtime.CUDARuntimeError:
            # Some containers and virtual machines have no CUDA IPC: go through host memory.
            self._host = shared_memory.SharedMemory(create=True, size=layout.total_bytes)
            return Arena(key, layout, None, self._host.name)

    def close(self) -> None:
        """Free the allocation and what CuPy keeps for reuse."""
        self.data = None
        if self._host is not None:
            self._host.close()
            self._host.unlink()
            self._host = None
        self.xp.get_default_memory_pool().free_all_blocks()

    def push(self) -> None:
        """Copy to host memory where the GPU's is not shared; wait for all that was enqueued."""
        if self._host is not None:
            self.data.get(out=np.ndarray(self.data.shape, np.uint8, self._host.buf))
        self.synchronize()

    def pull(self) -> None:
        """Copy back from host memory where the GPU's is not shared."""
        if self._host is not None:
            self.data.set(np.ndarray(self.data.shape, np.uint8, self._host.buf))

    def synchronize(self) -> None:
        """Wait for CuPy's stream."""
        self.xp.cuda.Stream.null.synchronize()
