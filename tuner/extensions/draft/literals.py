"""Tiles that a kernel and its launch write as one bare number: parameters where all follows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tuner.extensions.draft.host_values import HostLaunch
from tuner.source.facts import Span
from tuner.source.syntax import number

_TILE = re.compile(r"\bblockIdx\.([xyz])\s*\*\s*(\d+)\b(?!\.)|\b(\d+)\s*\*\s*blockIdx\.([xyz])")
_SHARED = re.compile(r"__shared__[^;=]*?((?:\[[^\[\]]*\]\s*)+)")
# what counts threads or elements of a tile; a mask, an offset of lanes or an argument may be other
_COUNTS = r"(?:(?<=[\[*/%<])\s*|(?<=[-+<]=)\s*|(?<=[\[*/%<+]\s)){}\b(?!\.)|\b{}(?=\s*\*\s*\w)"
_HALF = r"=\s*({})\s*;[^;]*;[^;)]*(?:>>=\s*1\b|/=\s*2\b)"
_LANES = re.compile(r"__shfl|__ballot|__reduce_\w+_sync|tiled_partition")
_WARP_ROW = re.compile(r"\bthreadIdx\.x\s*(?:/\s*32\b|>>\s*5\b)")
_WARP = 32
_SMALLEST = 8


@dataclass(frozen=True, slots=True)
class Literal:
    """A number that a block takes, what it counts, and what is instead of it in the kernel.

    `instead` has `{}` where the parameter stands.
    """

    size: int
    counts: str
    instead: tuple[tuple[Span, str], ...]


def bare_tiles(launch: HostLaunch) -> set[int]:
    """Give the numbers that a kernel multiplies with its blocks: `blockIdx.x * 256`."""
    return {int(m[2] or m[3]) for m in _TILE.finditer(launch.body)}


def literal_tiles(launch: HostLaunch) -> Iterator[Literal]:
    """Yield the numbers of a block; none where another number may depend on one of them."""
    text, sizes, threads = launch.body, bare_tiles(launch), prod(launch.block)
    start, helpers = launch.kernel.body[0], launch.helpers
    is_bare = number(launch.value(launch.site.shared)) not in (0, None)
    if not sizes or is_bare or not launch.block:
        return
    exchanged = _LANES.search(" ".join([text, *helpers])) is not None
    if exchanged:
        (size, *more) = sizes
        if not more and threads == size * _WARP and _WARP_ROW.search(text):
            yield from _with_edits(size, "warps", text, start, helpers, sizes)
        return
    wanted = {extent for extent in launch.block if extent > 1}
    literals: list[Literal] = []
    for size in sorted(wanted):
        counts = "block_size" if size == threads else "tile" if size in sizes else "rows"
        literals += _with_edits(size, counts, text, start, helpers, wanted)
    if sizes <= wanted and len(literals) == len(wanted):
        yield from literals


def _with_edits(
    size: int, counts: str, text: str, start: int, helpers: list[str], wanted: set[int]
) -> Iterator[Literal]:
    warps = counts == "warps"
    is_number = re.compile(rf"(?<![\w.]){size}\b(?!\.)")
    every = [m.span() for m in is_number.finditer(text)]
    counted = [m.span() for m in re.finditer(_COUNTS.format(size, size), text)]
    counted = [(end - len(str(size)), end) for _, end in counted]
    instead = [(span, "{}") for span in counted]
    if warps:
        # of a small number only what is a row of warps
        inside = [m.span(1) for m in _SHARED.finditer(text)]
        rows = [m.span(2) if m[2] else m.span(3) for m in _TILE.finditer(text)]
        held = [s for s in every if any(a <= s[0] < b for a, b in inside)]
        instead = [(span, "{}") for span in {*rows, *held}]
    elif size < _SMALLEST:
        return
    for other, form in ((size - 1, "({} - 1)"), (size + 1, "{} + 1")):
        near = re.finditer(rf"(?<![\w.]){other}\b(?!\.)", text)
        if not warps and other not in wanted:
            instead += [(m.span(), form) for m in near]
    if not warps and size // 2 not in wanted:
        instead += [(m.span(1), "({} / 2)") for m in re.finditer(_HALF.format(size // 2), text)]
    taken = {span for span, _ in instead}
    dims = [d for m in _SHARED.finditer(text) for d in re.finditer(r"\d+", m[1])]
    own = {n for one in wanted for n in (one, one - 1, one + 1, one // 2)}
    is_odd = any(int(d[0]) not in own and int(d[0]) > 4 and int(d[0]) % size == 0 for d in dims)
    if taken and {*every} <= taken and not is_odd and not any(is_number.search(t) for t in helpers):
        placed = (((a + start, b + start), form) for (a, b), form in sorted({*instead}))
        yield Literal(size, counts, tuple(placed))
