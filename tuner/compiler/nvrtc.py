"""NVRTC in the process that it compiles in: one translation unit at a time, source to cubin."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from cuda import pathfinder
from cuda.bindings import nvrtc

from tuner.compiler.base import normalize_source
from tuner.compiler.includes import UNIT_NAME, own_headers
from tuner.process.child import connect_to_parent
from tuner.process.confinement import confine_compiler, forget_environment, limit_process
from tuner.process.protocol import Message, receive, send

MAX_LOG_CHARACTERS = 1_000_000
MAX_CUBIN_BYTES = 256 << 20
# Older NVRTCs bring no headers: those of a toolkit are taken.
FIRST_WITH_BUNDLE = (13, 3)
_VERSION = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")
_OK = nvrtc.nvrtcResult.NVRTC_SUCCESS


def include_dirs(version: tuple[int, int], cache_dir: Path) -> list[Path]:
    """Return the include folders for NVRTC `version`; none where no header can be found."""
    if version >= FIRST_WITH_BUNDLE and hasattr(nvrtc, "nvrtcInstallBundledHeaders"):
        bundle = _unpack_headers(version, cache_dir)
        return [bundle, bundle / "cccl"]
    nvcc = shutil.which("nvcc")
    named = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    candidates = [
        pathfinder.find_nvidia_header_directory("cudart"),
        str(Path(nvcc).resolve().parents[1] / "include") if nvcc else None,
        *(str(Path(root, "include")) for root in named if root),
        "/usr/local/cuda/include",
    ]
    roots = [Path(candidate) for candidate in candidates if candidate]

    def distance(root: Path) -> tuple[bool, int]:
        found, wanted = _cudart_version(root), version[0] * 1000 + version[1] * 10
        return found // 1000 != wanted // 1000, abs(found - wanted)

    paths = [root for root in roots if (root / "cuda_runtime_api.h").is_file()]
    toolkit = min(paths, key=distance, default=None)
    if toolkit is None:
        return []
    cccl = toolkit / "cccl"
    elsewhere = None if cccl.is_dir() else pathfinder.find_nvidia_header_directory("cccl")
    return [toolkit, Path(elsewhere) if elsewhere else cccl]


def headers_identity(folders: list[Path]) -> str:
    """Name the headers' origin and state, for the cache key."""
    if not folders:
        return "no headers"
    root = folders[0]
    if (root / ".nvrtc_headers_version").exists():
        return "bundled"
    marker = root / "cuda_runtime_api.h"
    return f"{root} {_cudart_version(root)} {marker.stat().st_mtime_ns}"


def _unpack_headers(version: tuple[int, int], cache_dir: Path) -> Path:
    folder = cache_dir / f"headers-{version[0]}.{version[1]}"
    if folder.is_dir():
        return folder
    # Extracted beside and renamed: a killed process leaves no half-filled folder in use.
    cache_dir.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix="headers-", dir=cache_dir))
    try:
        result, log = nvrtc.nvrtcInstallBundledHeaders(os.fsencode(beside), 0)
        if result != _OK:
            raise OSError(f"NVRTC could not extract its headers to {beside}: {result} {log}")
        beside.chmod(0o755)
        beside.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _cudart_version(root: Path) -> int:
    match = _VERSION.search((root / "cuda_runtime_api.h").read_text(errors="replace"))
    return int(match[1]) if match else 0


_BEFORE_ALL = "--pre-include=tune_before_all.h"
# Headers of NVIDIA's that declare 64-bit integers for NVRTC alone.
_DECLARING = ("cuda/std/cstdint", "cuda_pipeline_helpers.h", "cuda_awbarrier_helpers.h")
_LONG_LONG = re.compile(
    r"(?P<using>\busing\s+u?int64_t\s*=\s*)(?P<sign>(?:un)?signed) long long\s*;"
    r"|\btypedef (?P<unsigned>unsigned )?long long (?P<name>u?int64_t);"
)


def _headers(folders: list[Path]) -> dict[str, str]:
    """Read the headers that stand for others, by the name that a source includes them by.

    Our own are for what kernels include out of habit; NVRTC declares most of that itself. NVIDIA's
    call `int64_t` a `long long` for NVRTC alone: here it is a `long`, as for nvcc and g++, so that
    it is one type in all headers and overloads resolve as in the user's own build.
    """
    own = Path(__file__).with_name("shims")
    files = (path for path in own.rglob("*") if path.is_file())
    texts = {path.relative_to(own).as_posix(): path.read_text(encoding="utf-8") for path in files}
    texts |= own_headers()
    for name in _DECLARING:
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            texts[name] = _LONG_LONG.sub(_as_long, path.read_text(encoding="utf-8"))
    return texts


def _as_long(match: re.Match[str]) -> str:
    if match["using"]:
        return f"{match['using']}{match['sign']} long;"
    return f"typedef {match['unsigned'] or ''}long {match['name']};"


# cub's takes 310 MB, in the heap and as a file; cuda_bf16.h and cuda_fp8.h together 12 MB.
HEAP_BYTES = 512 << 20
FREE_BYTES = 8 << 30
MOST_KEPT = 4

_COMPILATION = nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
_NO_NAME = nvrtc.nvrtcResult.NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID
_USED = nvrtc.nvrtcResult.NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED


class _PrecompiledHeaders:
    """Remember how sources begin; from the second that begins alike on, precompile.

    The compiler reuses a header only in the process that made it, and only if all directives
    before the first declaration and all options are the same.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._seen: set[int] = set()
        self._hopeless: set[int] = set()
        self._folders: dict[int, Path] = {}
        self._made: set[int] = set()
        self._numbers = count()
        (result,) = nvrtc.nvrtcSetPCHHeapSize(HEAP_BYTES)
        self._usable = bool(result == _OK)

    def key(self, source: str, options: list[str], state: str) -> int | None:
        """Return what must be equal to share a header; None where there is nothing to gain."""
        directives = takewhile(
            lambda line: line.startswith("#"), normalize_source(source).splitlines()
        )
        start = "\n".join(directives)
        return hash((start, *options, state)) if "include" in start else None

    def options(self, key: int | None) -> list[str]:
        """Return the options that make or use the header of `key`; none where it doesn't pay."""
        if not self._usable or key is None or key in self._hopeless:
            return []
        if key not in self._seen:
            self._seen.add(key)
            return []
        if key not in self._folders:
            if shutil.disk_usage(self._scratch).free < FREE_BYTES:
                return []
            if len(self._folders) == MOST_KEPT:
                self._drop(next(iter(self._folders)))
            self._folders[key] = self._scratch / f"precompiled-{next(self._numbers)}"
            self._folders[key].mkdir()
        return ["-pch", f"--pch-dir={self._folders[key]}"]

    def learn(self, key: int, status: object) -> None:
        if status == _OK and key not in self._made:
            self._made.add(key)
        elif status != _USED:
            self._hopeless.add(key)
            self._drop(key)

    def _drop(self, key: int) -> None:
        self._made.discard(key)
        shutil.rmtree(self._folders.pop(key), ignore_errors=True)


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
        self._include_dirs = include_dirs(self.version, cache_dir)
        self._headers = _headers(self._include_dirs)
        self._precompiled = _PrecompiledHeaders(scratch)

    @property
    def identity(self) -> str:
        """Tell this build of NVRTC and its headers from others, for the cache key."""
        library = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
        size = Path(library).stat().st_size if library else 0
        given = hashlib.sha256(json.dumps(self._headers).encode()).hexdigest()
        return f"{self.version} {size} {headers_identity(self._include_dirs)} {given}"

    def compile(self, source: str, kernels: list[str], options: list[str], state: str) -> Message:
        """Answer with `log`, `lowered`, and whether that is `lasting`; the payload is the cubin.

        `options` hold all but the folders of CUDA's headers, `state` names the content of the
        user's, which precompiled ones must match.
        """
        if not all(folder.is_dir() for folder in self._include_dirs[:1]):  # they were cleaned away
            self._include_dirs = include_dirs(self.version, self._cache_dir)
        options = [*options, *(f"-I{folder}" for folder in self._include_dirs), _BEFORE_ALL]
        key = self._precompiled.key(source, options, state)
        precompile, given = self._precompiled.options(key), self._headers
        result, program = nvrtc.nvrtcCreateProgram(
            source.encode(errors="replace"),
            UNIT_NAME.encode(),
            len(given),
            [text.encode() for text in given.values()],
            [name.encode() for name in given],
        )
        _require(result, "nvrtcCreateProgram")
        try:
            reply = _compile_program(program, kernels, [*options, *precompile])
            if key is not None and precompile:
                (status,) = nvrtc.nvrtcGetPCHCreateStatus(program)
                self._precompiled.learn(key, status)
        finally:
            nvrtc.nvrtcDestroyProgram(program)
        return reply


def _compile_program(program: Any, kernels: list[str], options: list[str]) -> Message:
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
        return Message({"log": log or str(result), "lowered": {}, "lasting": lasting})
    lowered = {}
    for kernel in kernels:
        result, name = nvrtc.nvrtcGetLoweredName(program, kernel.encode())
        if result != _NO_NAME:
            _require(result, f"nvrtcGetLoweredName({kernel})")
            lowered[kernel] = name.decode()
    cubin = _content(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    return Message({"log": log, "lowered": lowered, "lasting": True}, cubin)


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


def serve(descriptor: str, cache_folder: str, scratch_folder: str) -> None:
    """Say what compiles here, then answer requests; ends when the parent does."""
    cache_dir, scratch = Path(cache_folder), Path(scratch_folder)
    connection = connect_to_parent(descriptor, partial(shutil.rmtree, scratch, ignore_errors=True))
    limit_process()
    # An empty folder: `#include "file"` looks in the working directory first.
    os.chdir(scratch / "empty")
    compiler = Nvrtc(cache_dir, scratch)
    forget_environment(scratch)
    major, minor = compiler.version
    send(connection, {"version": f"NVRTC {major}.{minor}", "identity": compiler.identity})
    # One for every set of include folders, which can read these and no other files.
    threads: dict[tuple[Path, ...], ThreadPoolExecutor] = {}
    while True:
        request = receive(connection).header
        readable = tuple(
            Path(option[2:]) for option in request["options"] if option.startswith("-I")
        )
        if readable not in threads:
            places = readable, (cache_dir, scratch)
            threads[readable] = ThreadPoolExecutor(1, "", confine_compiler, places)
        reply, cubin, _ = threads[readable].submit(_answer, compiler, request).result()
        send(connection, reply, cubin)


def _answer(compiler: Nvrtc, request: dict[str, Any]) -> Message:
    start = time.perf_counter()
    asked = (request[name] for name in ("source", "kernels", "options", "state"))
    reply, cubin, _ = compiler.compile(*asked)
    if len(cubin) > MAX_CUBIN_BYTES:
        reply["log"] = f"error: {len(cubin)} bytes of machine code and data, over {MAX_CUBIN_BYTES}"
        cubin = b""
    reply |= {"log": reply["log"][:MAX_LOG_CHARACTERS], "seconds": time.perf_counter() - start}
    return Message(reply, cubin)
