"""The block as a parameter, and what its bound in the source says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tuner.extensions.draft.host_values import HostLaunch, names_behind
from tuner.extensions.draft.literals import bare_tiles
from tuner.extensions.draft.meaning import MAX_THREADS, WARP
from tuner.extensions.draft.tunables import (
    Names,
    TunableConstant,
    block_values,
    doubled_between,
    hole,
    values_for,
    warp_threads,
)
from tuner.source.host import Edit
from tuner.source.syntax import number

_MAX_HOPS = 4
# Where the source says nothing: a second number 0 of `__launch_bounds__` compiles to the same code.
_FEWEST_BLOCKS = (0, 2, 4, 8)
# Threads of a multiprocessor, at most, on any chip.
_MAX_RESIDENT = 2048
_SIZED = r"(?:__shared__[^;=]*?\[\s*|\bcub::Block\w+\s*<[^;<>]*?,\s*)({})\b"
_ASKED = re.compile(
    r"\bblockDim\s*\.\s*([xyz])\b|\b(?:block|cta)\w*\s*(?:\(\s*\))?\s*\.\s*(?:size|num_threads)\s*\("
    r"|\b(?:this_)?grid\w*\s*(?:\(\s*\))?\s*\.\s*(?:thread_rank|size|num_threads)\s*\("
)
_CHOSEN = re.compile(r"\bmin\s*(?:<[^<>()]*>)?\s*\(|\?")


def propose_block(
    launch: HostLaunch, choices: list[TunableConstant], names: Names
) -> Iterator[TunableConstant]:
    extents, threads = launch.block, prod(launch.block)
    if not extents:
        yield from _chosen_block(launch, choices, names)
    if not extents or threads > MAX_THREADS:
        return
    stated = {choice.origin for choice in choices} & names_behind(
        launch.site.block, launch.definitions
    )
    sizes = {choice.default for choice in choices if choice.is_block} | bare_tiles(launch)
    if stated or threads in sizes | {*map(warp_threads, choices)}:
        return
    asked, note = _block_axes_read(launch), f"the block of the launch, line {launch.site.line}"
    if launch.is_guessed:
        note = f"the threads of a block; {threads} is a guess, for nothing launches the kernel"
    elif launch.guessed:
        note = f"{', '.join(launch.guessed)}, line {launch.site.line}; {threads} is a guess"
    if len(extents) == 1 and "x" in asked:
        name, near = names.of("block_size"), block_values(threads)
        if launch.guessed:
            near = tuple(launch.candidates) or near
        # arrays and CUB's types that have the block's size as a number follow it
        sized, masked = re.compile(_SIZED.format(threads)), launch.source.masked
        spans = launch.source.reachable([launch.kernel])
        found = {match.span(1) for span in spans for match in sized.finditer(masked, *span)}
        edits = tuple(Edit(*at, hole(name)) for at in sorted(found))
        yield TunableConstant(name, near, threads, note, edits, is_block=True, axis=0)
        return
    for axis, extent in enumerate(extents):
        if extent > 1 and "xyz"[axis] in asked and len(extents) > 1:
            name = names.of(f"block_{'xyz'[axis]}")
            near = values_for(name, extent, block=False)
            yield TunableConstant(name, near, extent, note, (), axis=axis)


def _block_axes_read(launch: HostLaunch) -> frozenset[str]:
    # the extents of the block that the kernel asks for, itself or in what it calls
    spans = launch.source.reachable([launch.kernel])
    texts = [launch.source.masked[start:end] for start, end in spans]
    found = {match[1] or "x" for text in texts for match in _ASKED.finditer(text)}
    if launch.block[:1] == (WARP,) and any("__shfl" in t for t in texts):
        # a row of the block is a warp, and so is the block where warps share nothing
        is_shared = any("__shared__" in text for text in texts) and launch.block == (WARP,)
        found -= set() if is_shared else {"x"}
    return frozenset(found)


def _chosen_block(
    launch: HostLaunch, choices: list[TunableConstant], names: Names
) -> Iterator[TunableConstant]:
    # `min(d, 1024)`, `d < 1024 ? 128 : 512`, in the block or in what it is computed from
    behind = names_behind(launch.site.block, launch.site.definitions)
    texts = [launch.site.definitions.get(name, "") for name in sorted(behind)]
    is_chosen = any(_CHOSEN.search(text) for text in (*launch.site.block, *texts))
    blocks = any(choice.is_block for choice in choices)
    if is_chosen and len(launch.block_names) == 1 and _block_axes_read(launch) and not blocks:
        note = f"threads of a block; 0: as line {launch.site.line} has it"
        values = (0, *doubled_between(2 * WARP, MAX_THREADS))
        yield TunableConstant(names.of("block_size"), values, 0, note, (), is_block=True, axis=0)


def with_launch_bounds(
    launch: HostLaunch, choices: list[TunableConstant], names: Names
) -> list[TunableConstant]:
    # Every parameter shows in the source: a recording tells configs apart by it, and the compiler
    # needs to know the block's size to give it all the registers it may have.
    bounds = launch.kernel.bounds
    free = [c for c in choices if not c.edits or (c.is_block and c.origin is None)]
    if bounds is not None and not free:
        threads = number(bounds.max_threads)
        free = [c for c in choices if c.is_block and c.default == threads][:1]
    lifted = {choice.axis for choice in free}
    fixed = [str(e) for axis, e in enumerate(launch.block) if axis not in lifted and e > 1]
    one = len(free) == 1 and free[0].is_block
    factors = [*map(_threads_of, free), *([] if one else fixed)]
    factors = factors if free else _named_extents(launch, choices)
    if not factors:
        return choices
    threads_hole = hole(" * ".join(factors))
    edits: list[Edit] = []
    more: list[TunableConstant] = []
    if bounds is None or not bounds.min_blocks:
        name = names.of("min_blocks")
        note = f"blocks that registers must leave room for; 0: not said, line {launch.kernel.line}"
        fits = f"{name} * {' * '.join(factors)} <= {_MAX_RESIDENT}"
        more = [TunableConstant(name, _FEWEST_BLOCKS, 0, note, (), constraints=(fits,))]
    least = f", {hole(more[0].name)}" if more else ""
    if bounds is None:
        at = launch.kernel.name_at
        edits.append(Edit(at, at, f"__launch_bounds__({threads_hole}{least}) "))
    elif free:
        edits.append(Edit(*bounds.max_threads_span, f"{threads_hole}{least}"))
    else:
        end = bounds.max_threads_span[1]
        edits.append(Edit(end, end, least))
    first = (free or [c for c in choices if c.name in " ".join(factors).split()])[0]
    return [replace(c, edits=(*c.edits, *edits)) if c is first else c for c in choices] + more


def _threads_of(choice: TunableConstant) -> str:
    # 0 leaves a block to the source, which may have as many as there can be
    return choice.name if choice.default else f"({choice.name} if {choice.name} else {MAX_THREADS})"


def _named_extents(launch: HostLaunch, choices: Sequence[TunableConstant]) -> list[str]:
    """List the factors of the block's threads where the launch names parameters; else none."""
    lifted = {choice.origin: choice.name for choice in choices if choice.origin is not None}

    def factors(text: str, depth: int = 0) -> list[str]:
        text = text.strip("() ")
        name = text.rpartition("::")[2]
        if "/" in text:
            return [""]
        if name in lifted or text.isdecimal():
            return [lifted.get(name, text)]
        if "*" in text:
            return [factor for piece in text.split("*") for factor in factors(piece, depth + 1)]
        stated = launch.definitions.get(name, "")
        return factors(stated, depth + 1) if stated and depth < _MAX_HOPS else [""]

    found = [factor for text in launch.block_names if text != "1" for factor in factors(text)]
    if all(found) and {*found} & {*lifted.values()}:
        return found
    rows = [f"{c.name} * {WARP}" for c in choices if (warp_threads(c),) == launch.block]
    return [*rows, *(c.name for c in choices if c.is_block and (c.default,) == launch.block)][:1]
