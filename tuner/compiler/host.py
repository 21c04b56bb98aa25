"""The compiler of the `host` device: the system's g++, run on the kernel with headers of ours."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cache as once
from pathlib import Path

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.cache import Cache, cache_key
from tuner.compiler.host_messages import errors
from tuner.compiler.host_options import (
    CODE,
    LINK,
    SANITIZERS,
    language,
    runtime_options,
    sanitizing,
    standard,
)
from tuner.compiler.host_policy import refusal
from tuner.compiler.host_source import LAUNCH_UNIT, NotOnHostError, to_host
from tuner.compiler.host_toolchain import MOST_RUNS, Gxx, ToolError
from tuner.compiler.includes import UNIT_NAME, IncludeDigest, refused_include
from tuner.compiler.scratch import remove_left_behind, scratch_folder
from tuner.errors import DeviceError, WorkerError
from tuner.trial import Resources

HEADERS = Path(__file__).resolve().parents[1] / "device" / "host" / "headers"
RUNTIME_TIMEOUT_S = 60.0


class HostCompiler:
    """Compile kernels to shared libraries with g++; implements `Compiler`.

    A result's `cubin` is the library. A compile over `timeout_s` is killed with all it started.
    `sanitizers` may name `address` and `undefined`: what they find ends a launch with the kernel's
    line. Code with `address` runs only in a process that was started with `preload`. Raises
    `DeviceError` where there is no g++.
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout_s: float = 60.0,
        sanitizers: tuple[str, ...] = (),
        cache: Cache | None = None,
    ) -> None:
        if not set(sanitizers) <= set(SANITIZERS):
            raise DeviceError(f"sanitizers {sanitizers} are not all of {SANITIZERS}")
        self._gxx, self._timeout_s, self._cache = Gxx(), timeout_s, cache
        self._sanitizers = tuple(sorted(set(sanitizers)))
        self._includes = IncludeDigest()
        remove_left_behind()
        self._pool = ThreadPoolExecutor(workers or len(os.sched_getaffinity(0)), "host-compiler")
        self._runtime: Future[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def version(self) -> str:
        """Name and version, `g++ 12.2.0`."""
        return self._gxx.version

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Start compiling and return at once."""
        with self._lock:
            if self._closed:
                raise WorkerError("the compiler was closed")
            if self._runtime is None:
                self._runtime = self._pool.submit(self._build_runtime)
            return self._pool.submit(self._compile, request)

    def close(self) -> None:
        """Kill what runs and cancel what waits."""
        with self._lock:
            self._closed = True
        self._gxx.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        remove_left_behind()

    def _compile(self, request: CompileRequest) -> CompileResult:
        started = time.perf_counter()
        refused = refused_include(request.source, request.include_dirs)
        if refused is not None:
            return CompileResult(error=refused)
        key = self._key(request)
        stored = self._cache.get(key) if self._cache else None
        if stored is not None:
            return stored
        try:
            library = self._build(request, started + self._timeout_s)
            entries = {name: entry_name(index) for index, name in enumerate(request.kernels)}
            # How many registers a GPU would give the kernel nobody here knows.
            resources = {name: Resources(registers=None) for name in request.kernels}
            seconds = time.perf_counter() - started
            result, lasting = CompileResult(library, entries, resources, seconds=seconds), True
        except (ToolError, NotOnHostError) as error:
            result, lasting = self._failed(error, request, time.perf_counter() - started)
        if self._cache and lasting:
            self._cache.put(key, result)
        return result

    def _key(self, request: CompileRequest) -> str:
        identity = f"{self.version} {headers_digest()} {self._sanitizers}"
        included = self._includes.of(request.source, request.include_dirs)
        return cache_key(request, identity, included)

    def _build(self, request: CompileRequest, deadline: float) -> bytes:
        with scratch_folder() as folder:
            (folder / UNIT_NAME).write_text(request.source, encoding="utf-8")
            # As a system folder, so that the rewriting leaves our own headers alone.
            options = ["-isystem", str(HEADERS), "-include", "cuda_on_host.h", *language(request)]
            options += self._language_of_sanitizers()
            options += [f"-I{Path(one).absolute()}" for one in request.include_dirs]
            unit = self._gxx.run(["-E", "-x", "c++", *options, UNIT_NAME], folder, deadline)
            text = unit.decode(errors="replace")
            allowed = (*map(Path, request.include_dirs), folder, HEADERS, *self._gxx.include_dirs)
            if refused := refusal(text, folder, allowed):
                raise NotOnHostError(refused)
            (folder / "unit.ii").write_text(to_host(text) + _entries(request.kernels), "utf-8")
            (folder / "runtime.o").write_bytes(self._runtime_object(deadline))
            code = ["-w", standard(request), *CODE, *sanitizing(self._sanitizers)]
            self._gxx.run([*code, "-o", "unit.so", "unit.ii", "runtime.o", *LINK], folder, deadline)
            return (folder / "unit.so").read_bytes()

    def _language_of_sanitizers(self) -> list[str]:
        return [option for option in sanitizing(self._sanitizers) if option.startswith("-D")]

    def _failed(
        self, error: ToolError | NotOnHostError, request: CompileRequest, seconds: float
    ) -> tuple[CompileResult, bool]:
        """Return the result of a failure, and whether compiling again would give it again."""
        if isinstance(error, NotOnHostError):
            return CompileResult(error=str(error), seconds=seconds), True
        if error.timed_out:
            message = f"the compiler was killed after {self._timeout_s:g} s"
            return CompileResult(error=message, timed_out=True, seconds=seconds), False
        if error.killed:
            message = f"the compiler was killed {MOST_RUNS} times: memory may have run out"
            return CompileResult(error=message, seconds=seconds), False
        return CompileResult(error=errors(error.log, request), seconds=seconds), error.lasting

    def _runtime_object(self, deadline: float) -> bytes:
        assert self._runtime is not None
        try:
            return self._runtime.result(max(0.0, deadline - time.perf_counter()))
        except FutureTimeoutError as error:
            raise ToolError("", timed_out=True) from error
        except CancelledError as error:
            raise ToolError("the compiler was closed") from error

    def _build_runtime(self) -> bytes:
        source = '#include "on_host/runtime.h"\n'
        options = runtime_options(self._sanitizers)
        request = CompileRequest(source, (), "host", tuple(options))
        key = cache_key(request, f"{self.version} {headers_digest()}", "")
        stored = self._cache.get(key) if self._cache else None
        if stored is not None:
            return stored.cubin
        with scratch_folder() as folder:
            (folder / "runtime.cc").write_text(source, encoding="utf-8")
            files = ["-isystem", str(HEADERS), "-o", "runtime.o", "runtime.cc"]
            deadline = time.perf_counter() + RUNTIME_TIMEOUT_S
            self._gxx.run([*options, *files], folder, deadline)
            built = (folder / "runtime.o").read_bytes()
        if self._cache:
            self._cache.put(key, CompileResult(built))
        return built


def entry_name(index: int) -> str:
    """Name the function that launches the request's kernel of this index."""
    return f"cuda_on_host_entry_{index}"


def preload(sanitizers: tuple[str, ...]) -> dict[str, str]:
    """Return the environment of a process that runs code with these sanitizers.

    Such a process needs terabytes of address space (RLIMIT_AS must be unlimited), and children of
    it inherit the library: a Python of its own is best. Raises `DeviceError` where g++ has no
    address sanitizer.
    """
    if "address" not in sanitizers:
        return {}
    library = Gxx().library("libasan.so")
    if library is None:
        raise DeviceError(
            "g++ came without the address sanitizer (libasan.so)",
            remedy="install it (Debian and Ubuntu: it is in libgcc-12-dev, or your version's)",
        )
    options = {
        "detect_leaks": 0,
        "detect_stack_use_after_return": 0,
        "allocator_may_return_null": 1,
        "use_sigaltstack": 1,
    }
    settings = ":".join(f"{name}={value}" for name, value in options.items())
    return {"LD_PRELOAD": library, "ASAN_OPTIONS": settings}


@once
def headers_digest() -> str:
    """Hash our headers and the runtime: a result is as old as they are."""
    content = hashlib.sha256()
    for path in sorted(HEADERS.rglob("*.h")):
        content.update(f"{path.relative_to(HEADERS)}\0".encode() + path.read_bytes())
    return content.hexdigest()


def _entries(kernels: tuple[str, ...]) -> str:
    lines = [f'\n# 1 "{LAUNCH_UNIT}"']
    for index, kernel in enumerate(kernels):
        lines.append(
            f'extern "C" __attribute__((visibility("default"))) int {entry_name(index)}'
            "(const ::cuda_on_host::Launch* launch) "
            f"{{ return ::cuda_on_host::launch(launch, &{kernel}); }}"
        )
    return "\n".join(lines) + "\n"
