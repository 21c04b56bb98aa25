"""One translation unit through NVRTC, in the process that calls it: source to cubin."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from cuda import pathfinder
from cuda.bindings import nvrtc

from tuner.compiler import headers
from tuner.compiler.base import normalized
from tuner.compiler.headers import SHIMS
from tuner.compiler.includes import UNIT_NAME

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


_OK = nvrtc.nvrtcResult.NVRTC_SUCCESS
_COMPILATION = nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
_NO_NAME = nvrtc.nvrtcResult.NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID


@dataclass(frozen=True, slots=True)
class Unit:
    """What NVRTC made: a cubin and lowered names, or none where `log` tells the errors.

    `lasting` says that the same source would give the same answer again.
    """

    log: str
    cubin: bytes = b""
    lowered: dict[str, str] = field(default_factory=dict)
    lasting: bool = True


class Nvrtc:
    """Compile with one NVRTC library, its headers, and precompiled headers in `scratch`.

    A precompiled header is valid only in the process that made it: `scratch` must be this
    process's own.
    """

    def __init__(self, cache_dir: Path, scratch: Path) -> None:
        result, major, minor = nvrtc.nvrtcVersion()
        _require(result, "nvrtcVersion")
        self.version = (int(major), int(minor))
        self._cache_dir = cache_dir
        self._include_dirs = headers.include_dirs(self.version, cache_dir)
        self._precompiled = PrecompiledHeaders(self.version, scratch)

    @property
    def identity(self) -> str:
        """Tell this build of NVRTC and its headers from others, for the cache key."""
        library = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
        size = Path(library).stat().st_size if library else 0
        return f"{self.version} {size} {headers.identity(self._include_dirs)}"

    def compile(self, source: str, kernels: list[str], options: list[str], state: str) -> Unit:
        """Compile `source`; `options` hold all but the folders of CUDA's headers.

        `state` names the content of the user's headers, which precompiled ones must match.
        """
        unit = self._compile(source, kernels, options, state)
        if unit.cubin or not self._headers_lost():
            return unit
        self._include_dirs = headers.include_dirs(self.version, self._cache_dir)
        return self._compile(source, kernels, options, state)

    def _headers_lost(self) -> bool:
        return bool(self._include_dirs) and not self._include_dirs[0].is_dir()

    def _compile(self, source: str, kernels: list[str], options: list[str], state: str) -> Unit:
        options = [*options, *(f"-I{folder}" for folder in self._include_dirs)]
        key = self._precompiled.key(source, options, state)
        precompile = self._precompiled.options(key)
        result, program = nvrtc.nvrtcCreateProgram(
            source.encode(errors="replace"),
            UNIT_NAME.encode(),
            len(SHIMS),
            [text.encode() for text in SHIMS.values()],
            [name.encode() for name in SHIMS],
        )
        _require(result, "nvrtcCreateProgram")
        try:
            unit = _compiled(program, kernels, [*options, *precompile])
            if key is not None and precompile:
                (status,) = nvrtc.nvrtcGetPCHCreateStatus(program)
                self._precompiled.learn(key, status)
        finally:
            nvrtc.nvrtcDestroyProgram(program)
        return unit


def _compiled(program: Any, kernels: list[str], options: list[str]) -> Unit:
    for kernel in kernels:
        (result,) = nvrtc.nvrtcAddNameExpression(program, kernel.encode())
        _require(result, f"nvrtcAddNameExpression({kernel})")
    (result,) = nvrtc.nvrtcCompileProgram(
        program, len(options), [os.fsencode(option) for option in options]
    )
    raw_log = _content(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    log = raw_log.rstrip(b"\0").decode(errors="replace")
    if result != _OK:
        lasting = result in (_COMPILATION, nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION)
        return Unit(log or str(result), lasting=lasting)
    lowered = {}
    for kernel in kernels:
        result, name = nvrtc.nvrtcGetLoweredName(program, kernel.encode())
        if result != _NO_NAME:
            _require(result, f"nvrtcGetLoweredName({kernel})")
            lowered[kernel] = name.decode()
    cubin = _content(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    return Unit(log, cubin, lowered)


def _content(size_of: Any, get: Any, program: Any) -> bytes:
    result, size = size_of(program)
    _require(result, size_of.__name__)
    buffer = bytes(size)
    (result,) = get(program, buffer)
    _require(result, get.__name__)
    return buffer


def _require(result: Any, call: str) -> None:
    if result != _OK:
        raise OSError(f"{call}: {nvrtc.nvrtcGetErrorString(result)[1].decode()}")
