"""Standard input and output for the protocol alone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

CHUNK_BYTES = 1 << 16


@contextmanager
def reserved() -> Iterator[tuple[int, int]]:
    """Give copies of standard input and output that nothing else in the process knows.

    Until the end, whoever reads standard input finds it empty, and what is printed goes to
    standard error, that of kernels and child processes too.
    """
    sys.stdout.flush()
    kept = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield kept
    finally:
        sys.stdout.flush()
        for number, copy in enumerate(kept):
            os.dup2(copy, number)


class Lines:
    """The lines that come in at a descriptor, for `async for`.

    A thread reads them that is never waited for: a read cannot be interrupted, and on Ctrl-C there
    is nothing more to read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        Thread(target=self._read, name="standard input", daemon=True).start()

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> str:
        """Wait for the next line."""
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self._descriptor, CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._put(line.decode("utf-8", errors="replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
