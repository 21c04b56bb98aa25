"""The process that compiles: NVRTC, one request at a time."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tuner.process.child import connected
from tuner.process.confinement import confine_compiler, forget_environment, limit_compiler
from tuner.process.protocol import Message, receive, send

MAX_LOG_CHARACTERS = 1_000_000
MAX_CUBIN_BYTES = 256 << 20


def serve(descriptor: str, cache_folder: str, scratch_folder: str) -> None:
    """Say what compiles here, then answer requests; ends when the parent does."""
    cache_dir, scratch = Path(cache_folder), Path(scratch_folder)
    connection = connected(descriptor, partial(shutil.rmtree, scratch, ignore_errors=True))
    limit_compiler()
    # An empty folder: `#include "file"` looks in the working directory first.
    os.chdir(scratch / "empty")

    from tuner.compiler.nvrtc import Nvrtc

    compiler = Nvrtc(cache_dir, scratch)
    forget_environment(scratch)
    compiling = _Threads(cache_dir, scratch)
    major, minor = compiler.version
    hello = {"version": f"NVRTC {major}.{minor}", "identity": compiler.identity}
    send(connection, hello)
    while True:
        request = receive(connection).header
        reply, cubin, _ = compiling.of(request).submit(_answer, compiler, request).result()
        send(connection, reply, cubin)


class _Threads:
    """A thread for every set of include folders, which can read these and no other files."""

    def __init__(self, cache_dir: Path, scratch: Path) -> None:
        self._writable = (cache_dir, scratch)
        self._threads: dict[tuple[str, ...], ThreadPoolExecutor] = {}

    def of(self, request: dict[str, Any]) -> ThreadPoolExecutor:
        folders = tuple(option[2:] for option in request["options"] if option.startswith("-I"))
        if folders not in self._threads:
            self._threads[folders] = ThreadPoolExecutor(
                1,
                initializer=confine_compiler,
                initargs=(list(map(Path, folders)), self._writable),
            )
        return self._threads[folders]


def _answer(compiler: Any, request: dict[str, Any]) -> Message:
    start = time.perf_counter()
    unit = compiler.compile(
        request["source"], request["kernels"], request["options"], request["state"]
    )
    log, cubin = unit.log, unit.cubin
    if len(cubin) > MAX_CUBIN_BYTES:
        log = f"error: {len(cubin)} bytes of machine code and data, over {MAX_CUBIN_BYTES}"
        cubin = b""
    reply = {
        "log": log[:MAX_LOG_CHARACTERS],
        "lowered": unit.lowered,
        "lasting": unit.lasting,
        "seconds": time.perf_counter() - start,
    }
    return Message(reply, cubin)
