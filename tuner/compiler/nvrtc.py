"""One translation unit through NVRTC, in the process that calls it: source to cubin."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda import pathfinder
from cuda.bindings import nvrtc

from tuner.compiler import headers
from tuner.compiler.includes import UNIT_NAME
from tuner.compiler.precompiled import PrecompiledHeaders
from tuner.compiler.shims import SHIMS

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
