"""Find the fenced blocks of a text that a model wrote, as CommonMark delimits them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.errors import ReplyError

_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: the first word after its fence, its text, and the fence's line."""

    word: str
    text: str
    line: int


def find_blocks(text: str, start: int = 0) -> tuple[Block, ...]:
    """Find the blocks from `start` on; raise `ReplyError` for one that is not closed."""
    # Not splitlines(): a form feed or a line separator in a source ends no line of it.
    lines = text[start:].split("\n")
    before = text.count("\n", 0, start)
    blocks: list[Block] = []
    opened: tuple[str, str, int] | None = None  # its ticks, its word, its index
    for index, line in enumerate(lines):
        fence = _FENCE.fullmatch(line.rstrip())
        if fence is None:
            continue
        ticks, info = fence[1], fence[2].strip()
        if opened is None:
            opened = ticks, info.partition(" ")[0].lower(), index
        elif info and len(ticks) == len(opened[0]):
            raise ReplyError(
                f"the block that starts at line {before + opened[2] + 1} of the reply is not "
                f"closed before another starts at line {before + index + 1}"
            )
        elif not info and len(ticks) >= len(opened[0]):
            content = "".join(f"{line}\n" for line in lines[opened[2] + 1 : index])
            blocks.append(Block(opened[1], content, before + opened[2] + 1))
            opened = None
    if opened is not None:
        raise ReplyError(
            f"the block that starts at line {before + opened[2] + 1} of the reply is not closed: "
            "the reply ends inside it"
        )
    return tuple(blocks)
