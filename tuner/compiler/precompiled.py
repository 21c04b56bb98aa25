"""When a precompiled header pays, and where this process keeps the few that do."""

from __future__ import annotations

import shutil
from itertools import count, takewhile
from pathlib import Path

from cuda.bindings import nvrtc

from tuner.compiler.base import normalized

# cub's takes 310 MB, in the heap and as a file; cuda_bf16.h and cuda_fp8.h together 12 MB.
HEAP_BYTES = 512 << 20
FREE_BYTES = 8 << 30
MOST_KEPT = 4
FIRST_VERSION = (12, 8)

_CREATED = nvrtc.nvrtcResult.NVRTC_SUCCESS
_USED = nvrtc.nvrtcResult.NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED


class PrecompiledHeaders:
    """Remember how sources begin; from the second that begins alike on, precompile.

    The compiler reuses a header only in the process that made it, and only if all directives
    before the first declaration and all options are the same.
    """

    def __init__(self, version: tuple[int, int], scratch: Path) -> None:
        self._scratch = scratch
        self._seen: set[int] = set()
        self._hopeless: set[int] = set()
        self._folders: dict[int, Path] = {}
        self._made: set[int] = set()
        self._numbers = count()
        self._usable = version >= FIRST_VERSION
        if self._usable:
            (result,) = nvrtc.nvrtcSetPCHHeapSize(HEAP_BYTES)
            self._usable = bool(result == nvrtc.nvrtcResult.NVRTC_SUCCESS)

    def key(self, source: str, options: list[str], state: str) -> int | None:
        """Identify what must be equal to share a header; None where there is nothing to gain."""
        directives = takewhile(lambda line: line.startswith("#"), normalized(source).splitlines())
        start = "\n".join(directives)
        return hash((start, *options, state)) if "include" in start else None

    def options(self, key: int | None) -> list[str]:
        """Return the options that make or use the header of `key`; none where it doesn't pay."""
        if not self._usable or key is None or key in self._hopeless:
            return []
        if key not in self._seen:
            self._seen.add(key)
            return []
        if key not in self._folders and not self._make_room(key):
            return []
        return ["-pch", f"--pch-dir={self._folders[key]}"]

    def learn(self, key: int, status: object) -> None:
        """Take note of what became of a compile with `options`: never try again in vain."""
        if status == _USED:
            return
        if status == _CREATED and key not in self._made:
            self._made.add(key)
            return
        self._hopeless.add(key)
        self._drop(key)

    def _make_room(self, key: int) -> bool:
        if shutil.disk_usage(self._scratch).free < FREE_BYTES:
            return False
        if len(self._folders) == MOST_KEPT:
            self._drop(next(iter(self._folders)))
        folder = self._scratch / f"precompiled-{next(self._numbers)}"
        folder.mkdir()
        self._folders[key] = folder
        return True

    def _drop(self, key: int) -> None:
        self._made.discard(key)
        shutil.rmtree(self._folders.pop(key), ignore_errors=True)
