"""The verifier's memory on this host, which a worker of another process maps."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from tuner.device.layout import Arena, Layout
from tuner.device.verify.telling import TellingVerifier
from tuner.device.verify.verifier import HostMemory
from tuner.model.kernel import KernelSpec

# Inputs and references that are kept for use again.
CACHE_BYTES = 256 << 20


class SharedMemory(HostMemory):
    """Memory without a place in any folder, so that none is left behind.

    Another process of the same user opens it through this one's entry in /proc.
    """

    def __init__(self) -> None:
        super().__init__(np, CACHE_BYTES)
        self._descriptor: int | None = None

    def open(self, key: str, layout: Layout) -> Arena:
        """Allocate, releasing what was open."""
        self.close()
        size = layout.total_bytes
        self._descriptor = memory_file("arena", size, [(0, size)])
        try:
            self.data = np.frombuffer(mmap.mmap(self._descriptor, size), np.uint8)
        except OSError as error:
            self.close()
            raise MemoryError(f"{size / 1e9:.3g} GB to share: {error}") from error
        return Arena(key, layout, None, f"/proc/{os.getpid()}/fd/{self._descriptor}")

    def close(self) -> None:
        """Release the memory; views of it that are still held keep it mapped."""
        self.data = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def synchronize(self) -> None:
        """Nothing to do: NumPy has finished when it returns."""


def memory_file(name: str, size: int, pieces: Iterable[tuple[int, int]]) -> int:
    """Make a file without a place in any folder, with memory for these pieces; return a descriptor.

    All of it is allocated at once, for a lack would kill later. Raises `MemoryError`.
    """
    pieces = list(pieces)
    wanted, available = sum(end - start for start, end in pieces), available_bytes()
    if available is not None and wanted > available:
        raise MemoryError(f"{wanted / 1e9:.3g} GB to share, of {available / 1e9:.3g} GB available")
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        for start, end in pieces:
            os.posix_fallocate(descriptor, start, end - start)
        # Or a kernel could cut it off under whoever maps it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as error:
        os.close(descriptor)
        raise MemoryError(f"{wanted / 1e9:.3g} GB to share: {error}") from error
    return descriptor


def available_bytes(
    system: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Read how much memory can still be taken: the system's, or what is left of a container's."""
    found = []
    with suppress(OSError):
        found.append(_numbers(system)["MemAvailable:"] << 10)
    with suppress(OSError, ValueError):  # "max" is no number, and no limit
        most = int((group / "memory.max").read_text(encoding="ascii"))
        cached = _numbers(group / "memory.stat")
        used = int((group / "memory.current").read_text(encoding="ascii"))
        used -= cached["inactive_file"] + cached["active_file"]
        found.append(max(0, most - used))
    return min(found, default=None)


def _numbers(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {words[0]: int(words[1]) for words in lines}


def host_verifier(spec: KernelSpec, operators: Mapping[str, str]) -> TellingVerifier:
    """Make the verifier of a child process, with memory that others may map."""
    return TellingVerifier(SharedMemory(), spec, operators)
