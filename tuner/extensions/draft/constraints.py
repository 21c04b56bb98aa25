"""What keeps parameters to what the source can do, and which of them its launch may not follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tuner.extensions.draft.choices import is_asked
from tuner.extensions.draft.host_values import HostLaunch, names_behind
from tuner.extensions.draft.launches import (
    TILE,
    Axes,
    LaunchDraft,
    along,
    launch_draft,
    scope_of,
    source_names,
    template_launch,
)
from tuner.extensions.draft.loops import counts_blocks, leaves_state, terms_of, thread_loops
from tuner.extensions.draft.meaning import says, taken_at_once
from tuner.extensions.draft.translate import Scope, translate
from tuner.extensions.draft.tunables import Proposals, TunableConstant, warp_threads
from tuner.model.expressions import Expression
from tuner.source.accesses import bare
from tuner.source.facts import IDENTIFIER
from tuner.source.syntax import fold, listed, number

_ASSERT = re.compile(r"\bstatic_assert\s*\((?:[^()]|\([^()]*\))*\)")
_THREAD_SPLIT = re.compile(r"\bthreadIdx\.x\s*\)?\s*[%/]\s*(\((?:[^()]|\([^()]*\))*\)|\w+)")
# a thread of the grid, among rows of so many threads
_OF_GRID = r"\bblockIdx ?\.x ?\* ?(?:blockDim ?\.x|\w+) ?\+ ?threadIdx ?\.x ?\) ?/ ?{}"
_FIRST_THREADS = re.compile(r"\bif\s*\(\s*threadIdx\.([xyz])\s*<\s*(\w+)\s*[)&]")
_MAY_FOLLOW = "of the launch may come from it, and nothing shows how"
_EACH_BLOCK = "an array has an element for each block"
_EACH_LEAVES = "what a block takes of the whole shows in what it leaves"
_ROUNDED_UP = re.compile(r"ceil_div\((.+), ([\w* ]+)\)")
_DIVIDED = re.compile(r"\b([A-Za-z_]\w*)\s*/\s*(?:\w+::)*([A-Za-z_]\w*)\b(?!::)")
_CUB_THREADS = re.compile(r"\bBlock[A-Z]\w+\s*<[^;<>]*?,\s*([\w:]+)\s*[,>]")


def exact_divisions(launch: HostLaunch, choices: Sequence[TunableConstant]) -> Iterator[str]:
    """Yield constraints for parameters that the source divides by one another without rest."""
    origins = {choice.origin: choice for choice in choices if choice.origin is not None}
    site = launch.site
    texts = (launch.code, *site.grid, *site.block, *site.definitions.values())
    found = {
        (match[1], match[2])
        for text in texts
        for match in _DIVIDED.finditer(text)
        if match[1] in origins and match[2] in origins
    }
    for dividend, divisor in sorted(found):
        a, b = origins[dividend], origins[divisor]
        if isinstance(a.default, int) and isinstance(b.default, int) and a.default % b.default == 0:
            yield f"{a.name} % {b.name} == 0"


def conditions_kept(
    launch: HostLaunch, axes: Axes, choices: Sequence[TunableConstant], tuned: LaunchDraft
) -> Iterator[str]:
    """Yield what the source asks of the parameters: asserts, the way to the launch, what fits."""
    scope, own = scope_of(launch, axes, choices), {choice.name for choice in choices}
    counted = replace(scope, values={**scope.values, **_asked_numbers(launch, choices)})
    reached = launch.code
    asked = [listed(match[0], match[0].index("("))[0][0] for match in _ASSERT.finditer(reached)]
    asked += [f"!({c.text})" for c in launch.conditions if not c.holds and "==" not in c.text]
    written_ones = [translate(text, counted) for text in asked]
    # of several instances one for more does for fewer: `case 4:` of how many packs a row has
    held = [c.text.replace("==", "<=") for c in launch.conditions if c.holds]
    more = replace(counted, values={**counted.values, **_block_names(launch, choices)})
    written_ones += [translate(text, more) for text in held]
    for written in written_ones:
        if written is not None and own & {*IDENTIFIER.findall(written)}:
            yield written
    block = " * ".join(tuned.block or ())
    for match in _CUB_THREADS.finditer(reached):
        most = translate(match[1], scope)
        named = {*IDENTIFIER.findall(most or "")}
        if block and most and own & (named ^ {*IDENTIFIER.findall(block)}) and not named & {block}:
            yield f"{block if block.isidentifier() else f'({block})'} <= {most}"
    yield from filter(None, _thread_tiles(launch, scope, choices, block).values())
    yield from _tile_products(choices, tuned)
    # `if (threadIdx.x < TK)` loads a tile that no thread is missing for
    for axis, origin in _FIRST_THREADS.findall(launch.body):
        at = "xyz".index(axis)
        extents = zip((tuned.block or ())[at : at + 1], launch.block[at:], strict=False)
        for extent, threads in extents:
            own_ones = (c for c in choices if c.origin == origin and c.name not in extent)
            fitting = (c for c in own_ones if type(c.default) is int and c.default <= threads)
            yield from (f"{c.name} <= {extent}" for c in fitting)
    # a size is so many times what a thread takes of it at once, unguarded
    for choice in choices:
        for place, limit in taken_at_once(launch.body, choice.origin or ""):
            guarded = place and re.search(rf"\b{place}\s*\+\s*\w+\s*(?:<|>=)", launch.body)
            whole = None if guarded else translate(limit, scope)
            if whole is not None and not whole.isdigit():
                yield f"{whole if whole.isidentifier() else f'({whole})'} % {choice.name} == 0"


def _block_names(launch: HostLaunch, choices: Sequence[TunableConstant]) -> dict[str, str]:
    # `const int threads = 256`, of which the launch has the number
    own = {choice.default: choice.name for choice in choices if choice.is_block}
    known = launch.site.definitions.items()
    named = ((n, number(t)) for n, t in known if says(n, "block"))
    return {name: own[value] for name, value in named if value is not None and value in own}


def _asked_numbers(launch: HostLaunch, choices: Sequence[TunableConstant]) -> dict[str, str]:
    # `case 4: row<4><<<...>>>`: of the number that the launch states in its template's arguments
    stated = zip(launch.kernel.template, launch.site.template_arguments, strict=False)
    asked = {p.name: text for p, text in stated if is_asked(launch, text)}
    return {asked[c.origin]: c.name for c in choices if c.origin in asked}


def _thread_tiles(
    launch: HostLaunch, scope: Scope, choices: Sequence[TunableConstant], block: str
) -> dict[str, str]:
    """Map how threads are split, `threadIdx.x % (BN / TN)`, to what makes it all of the block.

    That is "" where nothing shows what takes the rest.
    """
    sizes = {c.name: c.default for c in choices if c.origin is not None and type(c.default) is int}
    text = launch.body
    splits = {fold(match[1]) for match in _THREAD_SPLIT.finditer(text)}
    written = ((split, translate(split, scope)) for split in sorted(splits))
    splits_of = {part: split for split, part in written if part is not None}
    own = {part: {*IDENTIFIER.findall(part)} for part in splits_of}
    found: dict[str, str] = {}
    for part, names in own.items():
        if not names or not names <= sizes.keys() or len(launch.block) != 1 or part == block:
            continue
        each = Expression.parse(part).evaluate(sizes)
        rest, left = divmod(launch.block[0], int(each)) if each else (0, 1)
        others = {n: size for n, size in sizes.items() if n not in names and n not in block}
        origins = {c.name: c.origin for c in choices}
        takes = [name for name, size in others.items() if size == rest and "//" not in part]
        takes += [
            f"({a} // {b})"
            for a, size in others.items()
            for b, own_size in others.items()
            if a != b and size == rest * own_size and re.search(rf"\*\s*{origins[b]}\b", text)
        ]
        whole = f"({part}) * {takes[0]} == {block}" if len(takes) == 1 else ""
        if not takes and re.search(_OF_GRID.format(re.escape(splits_of[part])), fold(text)):
            whole = f"({block}) % ({part}) == 0"
        found[part] = f"({part}) == {block}" if rest == 1 else whole
        if block and (by := re.fullmatch(rf"{re.escape(block)} // (\w+)", part)):
            # the rest of the block is what it is divided by
            found[part], left = f"{block} % {by[1]} == 0", 0
        found[part] = "" if left else found[part]
    return found


def _tile_products(choices: Sequence[TunableConstant], tuned: LaunchDraft) -> Iterator[str]:
    # a tile that is as large as its threads times what each of them does
    numbers = [c for c in choices if c.origin is not None and type(c.default) is int]
    block, grid = " ".join(tuned.block or ()), {*IDENTIFIER.findall(" ".join(tuned.grid or ()))}
    for tile in numbers:
        for threads in numbers:
            rest = [c for c in numbers if c.name not in grid and c not in (tile, threads)]
            sized = [c for c in rest if int(threads.default) * int(c.default) == tile.default]
            is_own = tile is not threads and tile.name in grid
            if is_own and threads.name == block and len(sized) == 1:
                yield f"{tile.name} == {threads.name} * {sized[0].name}"


def without_unproved(launch: HostLaunch, axes: Axes, proposals: Proposals) -> Proposals:
    """Leave out what a number of the launch comes from, or may come from, and does not follow."""
    choices = proposals.choices
    unproved: dict[str, str] = {}
    if launch_draft(launch, axes, proposals.instance).block is None:
        # nothing to leave it to
        unproved = {c.name: "the block" for c in choices if c.is_block and not c.default}
    drafted = launch_draft(launch, axes, proposals.instance, choices)
    scope = scope_of(launch, axes, choices)
    kept = " ".join(conditions_kept(launch, axes, choices, drafted))
    # where the host code is told the block, and no size is asked for, any will do
    asked = names_behind((c.text for c in launch.conditions), launch.definitions)
    told = {c.name for c in choices if c.is_block and not asked & axes.texts(launch).keys()}
    for name in {*_asked_numbers(launch, choices).values()} - told:
        if name not in IDENTIFIER.findall(kept) and not says(name, "per_thread"):
            unproved[name] = "the choice"
    stays = ((c.name, _what_stays(c, launch, drafted, scope, choices)) for c in choices)
    unproved |= {name: what for name, what in stays if what}
    unproved = {name: f"{what} {_MAY_FOLLOW}" for name, what in unproved.items()}
    counted = _counted_blocks(launch, axes, proposals).values()
    unproved |= {takes: _EACH_BLOCK for _, _, takes in counted if takes.isidentifier()}
    if (
        "gridDim" in launch.body
        and any(access.writes and counts_blocks(access.index) for access in launch.accesses())
    ) or any(leaves_state(launch, body, launch.accesses()) for body in thread_loops(launch)):
        threads = (c for c in choices if c.is_block or c.axis is not None or warp_threads(c))
        unproved |= {c.name: _EACH_LEAVES for c in threads}
    extents = [c.name for c in choices if c.axis is not None]
    if reason := next((unproved[name] for name in extents if name in unproved), None):
        # the extents of a block stand in one bound of the kernel
        unproved = dict.fromkeys(extents, reason) | unproved
    called = {c.name: c.name if (c.origin or "0").isdigit() else c.origin for c in choices}
    left = [
        f"{called[c.name]} = {c.default} is left out: {unproved[c.name]}"
        for c in choices
        if c.name in unproved
    ]
    # a template's argument that the launch does not state stays its default
    own = {parameter.name for parameter in launch.kernel.template}
    defaults = [
        replace(edit, text=edit.text.replace(f"@{{ {c.name} }}@", str(c.default).lower()))
        for c in choices
        if c.name in unproved and c.origin in own
        for edit in c.edits
    ]
    edits = [edit for edit in defaults if "@{" not in edit.text]
    # and the least blocks of a bound that went with one
    gone = re.compile("|".join([r"(?!)", *map(r"\b{}\b".format, unproved)]))
    proved = (c for c in choices if c.name not in unproved)
    choices = tuple(c for c in proved if not any(map(gone.search, c.constraints)))
    left = [*proposals.left, *left]
    return replace(proposals, choices=choices, left=tuple(left), edits=(*proposals.edits, *edits))


def pin_blocks(
    launch: HostLaunch, axes: Axes, proposals: Proposals
) -> tuple[Proposals, tuple[str, ...]]:
    """Keep what a block takes as it is where an array has an element for each block.

    Gives the grid that the shape of such an array goes by, too.
    """
    counted = _counted_blocks(launch, axes, proposals)
    grid = list(template_launch(launch, axes, proposals).grid or ())
    pinned: dict[str, str] = {}
    for axis, (blocks, each, takes) in counted.items():
        grid[axis] = blocks
        pinned[takes.split()[0]] = f"{takes} == {each}"
    choices = tuple(
        replace(c, constraints=(*c.constraints, pinned[c.name])) if c.name in pinned else c
        for c in proposals.choices
    )
    return replace(proposals, choices=choices), tuple(grid)


def _counted_blocks(
    launch: HostLaunch, axes: Axes, proposals: Proposals
) -> dict[int, tuple[str, int, str]]:
    """Map the axes of the grid along which each block has an element of its own in an array.

    With the source's blocks, what each of them takes there, and what it takes in the template.
    """
    tuned = template_launch(launch, axes, proposals).grid or ()
    own = launch_draft(launch, axes, proposals.instance).grid or ()
    written = (access.index for access in launch.accesses() if access.writes)
    terms = {bare(term) for index in written for term in terms_of(index)}
    found: dict[int, tuple[str, int, str]] = {}
    for axis, (before, after) in enumerate(zip(own, tuned, strict=False)):
        source, template = (_ROUNDED_UP.fullmatch(text) for text in (before, after))
        if before == after or source is None or template is None or source[1] != template[1]:
            continue
        each = Expression.parse(source[2])
        if f"blockIdx.{'xyz'[axis]}" in terms and not each.names:
            found[axis] = before, each.integer({}), template[2]
    return found


def _counts_threads(choice: TunableConstant, launch: HostLaunch) -> bool:
    """Tell whether all threads of the grid are so many times as many, and none goes further."""
    text = launch.code
    if "gridDim" in text or re.search(r"grid\w*\s*(?:\(\s*\))?\s*\.\s*(?:size|num_threads)", text):
        return False
    own = choice.origin
    if choice.axis is not None:
        own = rf"blockDim\.{'xyz'[choice.axis]}"
    elif own is None or not choice.is_block:
        return False
    times = rf"\bblockIdx\.[xyz]\s*\*\s*{own}\b|\b{own}\s*\*\s*blockIdx\b"
    return re.search(times, text) is not None


def _what_stays(
    choice: TunableConstant,
    launch: HostLaunch,
    drafted: LaunchDraft,
    scope: Scope,
    choices: Sequence[TunableConstant],
) -> str:
    site, names, shared = launch.site, {*source_names(choice, launch)}, drafted.shared_memory
    for what, texts, expressions in (
        ("the grid", site.grid, drafted.grid),
        ("the block", site.block, drafted.block),
        ("the shared memory", (site.shared,), (shared,) if shared else None),
    ):
        if not expressions or launch.is_guessed:
            continue
        told, size = " ".join(expressions), choice.default
        behind = names_behind(texts, launch.definitions)
        text = " ".join([*texts, *(launch.definitions.get(name, "") for name in behind)])
        comes_from = any(re.search(rf"(?<![\w.]){re.escape(name)}\b", text) for name in names)
        # what the kernel has as a bare number says no name
        if (choice.origin or "").isdigit() and what != "the shared memory":
            tiles = TILE.findall(launch.source.masked, *launch.kernel.body)
            is_tile = choice.origin in (number for pair in tiles for number in pair)
            comes_from |= is_tile if what == "the grid" else size in launch.block
        if what == "the grid" and _counts_threads(choice, launch):
            comes_from = True
        if type(size) is int and what == "the grid" and choice.origin and not told.isdigit():
            # of a tile the grid may have the number
            is_there = re.search(rf"(?<![\w.]){size}\b" if size > 1 else r"// 1\b", told)
            is_inner = re.search("unroll|stage|depth|pipeline", choice.name)
            comes_from |= bool(is_there) and not is_inner
        elif what == "the block":
            told_of = _thread_tiles(launch, scope, choices, told)
            open_parts = " ".join(part for part, said in told_of.items() if not said)
            comes_from |= choice.name in IDENTIFIER.findall(open_parts)
            comes_from |= choice.axis is not None or warp_threads(choice) == prod(launch.block)
            comes_from |= choice in along(launch, choices).values()
        elif what == "the shared memory" and told.isdigit() and told != "0":
            # as the number that it is there, or unseen behind a bare number of bytes
            comes_from |= choice.axis is not None or (
                choice.origin is not None and str(size) in re.findall(r"\d+", launch.expand(text))
            )
        if comes_from and choice.name not in IDENTIFIER.findall(told):
            return what
    return ""
