"""What comes in at standard input is cut into lines, however long they are."""

from __future__ import annotations

import os
from threading import Thread

import anyio

from tuner.extensions.agents.mcp.server import MOST_LINE_BYTES, Lines

MIB = 1 << 20


def test_lines_are_whole_and_one_without_an_end_is_cut() -> None:
    reading, writing = os.pipe()

    def sent() -> None:
        with os.fdopen(writing, "wb") as out:
            out.write("first\nsecond ü\n\n".encode() + b"\xff\n")
            for _ in range(3 * MOST_LINE_BYTES // MIB):
                out.write(b"x" * MIB)
            out.write(b"\nlast\nnever ended")

    async def main() -> list[str]:
        Thread(target=sent, daemon=True).start()
        return [line async for line in Lines(reading)]

    *first, long, last = anyio.run(main)
    os.close(reading)
    assert first == ["first", "second ü", "", "\ufffd"]
    assert long == "x" * MOST_LINE_BYTES
    assert last == "last"
