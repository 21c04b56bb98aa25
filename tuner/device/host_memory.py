"""Memory of the `host` device: the judge makes it, the worker maps it."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing import shared_memory
from typing import Any

import numpy as np

from tuner.device.judge import Judge
from tuner.device.layout import Arena, Layout
from tuner.device.number_formats import Array
from tuner.kernel import KernelSpec


class SharedMemory:
    """Host memory that another process can map by its name; implements `ArenaMemory`."""

    def __init__(self) -> None:
        self.xp: Any = np
        self.data: Array = None
        self._shared: shared_memory.SharedMemory | None = None

    def open(self, key: str, layout: Layout) -> Arena:
        """Allocate, releasing what was open."""
        self.close()
        try:
            self._shared = shared_memory.SharedMemory(create=True, size=layout.total_bytes)
        except OSError as error:
            raise MemoryError(f"{layout.total_bytes / 1e9:.3g} GB to share: {error}") from error
        self.data = np.ndarray((layout.total_bytes,), np.uint8, self._shared.buf)
        return Arena(key, layout, None, self._shared.name)

    def close(self) -> None:
        """Release the memory."""
        self.data = None
        if self._shared is not None:
            self._shared.close()
            self._shared.unlink()
            self._shared = None

    def push(self) -> None:
        """Nothing to do: there is one memory."""

    def pull(self) -> None:
        """Nothing to do: there is one memory."""

    def synchronize(self) -> None:
        """Nothing to do: NumPy has finished when it returns."""


def host_judge(spec: KernelSpec, operators: Mapping[str, str]) -> Judge:
    """Make a judge whose memory another process can map."""
    return Judge(SharedMemory(), spec, operators)
