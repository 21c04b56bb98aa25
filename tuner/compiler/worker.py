"""The process that compiles: reads requests from standard input until it ends, one at a time."""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from tuner.compiler.wire import READ_BYTES, Message, Unpacker, packed
from tuner.process.compiler_confinement import confine, forget_environment, limit, system_folders

MAX_LOG_CHARACTERS = 1_000_000
MAX_CUBIN_BYTES = 256 << 20


def main() -> None:
    """Say what compiles here, then answer requests; ends when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit()
    replies = os.dup(1)
    os.dup2(2, 1)
    cache_dir, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, scratch), daemon=True).start()
    # An empty folder: `#include "file"` looks in the working directory first.
    os.chdir(scratch / "empty")

    from tuner.compiler.nvrtc import Nvrtc

    compiler = Nvrtc(cache_dir, scratch)
    forget_environment(scratch)
    compiling = _Threads(cache_dir, scratch)
    major, minor = compiler.version
    hello = {"version": f"NVRTC {major}.{minor}", "identity": compiler.identity}
    _write(replies, packed(hello))
    while True:
        request, _ = requests.get()
        reply, cubin = compiling.of(request).submit(_answer, compiler, request).result()
        _write(replies, packed(reply, cubin))


class _Threads:
    """A thread for every set of include folders, which can read these and no other files."""

    def __init__(self, cache_dir: Path, scratch: Path) -> None:
        self._writable = (cache_dir, scratch)
        self._threads: dict[tuple[str, ...], ThreadPoolExecutor] = {}

    def of(self, request: dict[str, Any]) -> ThreadPoolExecutor:
        folders = tuple(option[2:] for option in request["options"] if option.startswith("-I"))
        if folders not in self._threads:
            readable = [*system_folders(), *map(Path, folders)]
            self._threads[folders] = ThreadPoolExecutor(
                1, initializer=confine, initargs=(readable, self._writable)
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
    return reply, cubin


def _read(requests: queue.SimpleQueue[Message], scratch: Path) -> NoReturn:
    unpacker = Unpacker()
    while data := os.read(0, READ_BYTES):
        for message in unpacker.feed(data):
            requests.put(message)
    # The parent is gone, maybe killed: nobody else would end a long compile or clean up.
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    main()


PREFIX = "tuner-host-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder and remove it; should this process be killed, `remove_left_behind` does."""
    lock, folder = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_behind() -> None:
    """Remove the folders of processes of this user that were killed: those that nobody locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, in use, or gone meanwhile
            lock = _opened(folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _locked_folder() -> tuple[int, Path]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):
            lock = _opened(folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Between the two it may have been taken for one that was left behind.
            if folder.exists():
                return lock, folder
            os.close(lock)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
