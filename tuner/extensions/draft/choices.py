"""What a draft proposes to tune: constants, template parameters, the block, bounds, unrolling."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tuner.extensions.draft.host_values import HostLaunch, names_behind
from tuner.extensions.draft.literals import bare_tiles, literal_tiles
from tuner.extensions.draft.meaning import (
    MAX_THREADS,
    PROBLEM_SIZE,
    UNTIED,
    WARP,
    is_block,
    says,
    splits_work,
    taken_at_once,
    why_fixed,
    why_meant,
)
from tuner.extensions.draft.python.tuning_script import NO_SCRIPT, TuningScript, holds
from tuner.extensions.draft.traits import traits_of
from tuner.extensions.draft.tunables import (
    Names,
    Proposals,
    TunableConstant,
    block_values,
    doubled_between,
    hole,
    values_for,
    warp_threads,
)
from tuner.model.expressions import Value
from tuner.source.facts import IDENTIFIER, LineIndex, Span, TemplateParameter, bare_name, within
from tuner.source.host import Edit
from tuner.source.syntax import closing, fold, number

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
_MIN_BLOCKS = (1, 2, 3, 4)
_OTHER_MEMORY = "launches with its other value ask for other shared memory"
_UNSTATED = "it is a guess, and may say what is computed"
_ONE_OF_TABLE = "the launch takes one of several, and nothing here says which"
_PASSED = "the launch passes what is computed with it"
_STATED = "the problem has this number too, and may mean it"


def propose(
    launch: HostLaunch,
    axes: Sequence[str],
    stated: Collection[int] = frozenset(),
    script: TuningScript = NO_SCRIPT,
) -> Proposals:
    """Find what could be tuned in the kernel of `launch`; parameters get no name of an axis.

    `stated` are the whole numbers in the text of the problem that the kernel computes, `script`
    what is known of constants by whoever tuned them before.
    """
    names = Names(axes)
    reached = launch.source.reachable([launch.kernel])
    choices, left = _constants(launch, reached, names, stated, script.values)
    choices += _members(launch, choices, names)
    template, edits, instance, fixed = _template(launch, choices, names)
    choices += template
    left = (*left, *fixed)
    if not any(choice.is_block for choice in choices):
        choices += _literals(launch, names)
    choices += _block(launch, choices, names)
    choices = [*_add_launch_bounds(launch, choices, names), *_hints(launch, reached, names)]
    choices = [*_restricted(choices, script.restrictions)][::-1]
    return Proposals(tuple(choices), left, edits, instance)


def _restricted(
    choices: Sequence[TunableConstant], restrictions: Sequence[str]
) -> Iterator[TunableConstant]:
    # one that the source keeps to goes with the last of the parameters that it names
    own = {choice.origin: choice.name for choice in choices if choice.origin is not None}
    written = [IDENTIFIER.sub(lambda m: own.get(m[0], m[0]), text) for text in restrictions]
    default = {choice.name: choice.default for choice in choices}
    left = [text for text in written if holds(text, default)]
    for choice in reversed(choices):
        kept = tuple(text for text in left if choice.name in IDENTIFIER.findall(text))
        left = [text for text in left if text not in kept]
        yield replace(choice, constraints=(*choice.constraints, *kept))


def _constants(
    launch: HostLaunch,
    reached: tuple[Span, ...],
    names: Names,
    stated: Collection[int],
    script: Mapping[str, tuple[Value, ...]],
) -> tuple[list[TunableConstant], tuple[str, ...]]:
    source, sized = launch.source, launch.problem_sizes
    often = Counter(constant.name for constant in source.constants)
    used = {name for span in reached for name in IDENTIFIER.findall(source.masked, *span)}
    functions = tuple(d.span for d in source.definitions if d.kind == "function")
    texts = [source.masked[start:end] for start, end in reached]
    choices, left = [], []
    for constant in source.constants:
        name, value = constant.name, constant.number
        if value is None or name not in used | launch.names:
            continue
        place = constant.span[0]
        if place >= len(launch.source.own_text):
            continue
        # a plain `const int` in a function is a value with a name more often than a choice
        plain = constant.kind == "const" and name.islower()
        if within(place, functions) and (plain or not within(place, reached)):
            continue
        reason = why_fixed(name, value)
        is_split = any(taken_at_once(masked, name) for masked in texts)
        if reason == PROBLEM_SIZE and (is_split or _is_split(launch, name, name)):
            reason = None
        if name in sized:
            reason = reason or "it is a size of the problem"
        if re.search(rf"#[^\n]*__CUDA_ARCH__[^\n]*\b{name}\b", source.masked):
            reason = reason or "it is compared with the architecture"
        if often[name] > 1:
            reason = reason or "it is defined more than once"
        reason = reason or why_meant(launch, reached, {name}, value)
        # Of 0 and 1 a problem's text is full: they are its numbers no more than switches are.
        if type(value) is int and value > 1 and value in stated and not splits_work(name, value):
            reason = reason or _STATED
        own_values = script.get(name, ())
        if reason is not None and (len(own_values) < 2 or often[name] > 1):
            left.append(f"{name} = {constant.value} (line {constant.line}) is left out: {reason}")
            continue
        bounds = launch.kernel.bounds
        block = launch.block_names == (name,) or is_block(name, value)
        block |= bounds is not None and bounds.max_threads == name and launch.block == (value,)
        own, note = names.of(name), f"{name}, line {constant.line}"
        near = values_for(name, value, block=block)
        near = _defined_widths(launch, name, near) or (value,)
        if own_values:
            # in the order of the script, and the source's own
            near, note = tuple(dict.fromkeys((*own_values, value))), f"{note}, tune_params"
        edit = Edit(*constant.span, hole(own))
        choices.append(TunableConstant(own, near, value, note, (edit,), name, block))
    return choices, tuple(left)


def _is_split(launch: HostLaunch, name: str, stated: str) -> bool:
    """Tell of a letter that a block, and a tile, has so many threads, or a thread elements."""
    grid, known = launch.site.grid, launch.site.definitions
    text = " ".join([*grid, *(known.get(one, "") for one in names_behind(grid, known))])
    # what does not round up may count rows, of which each block has one
    less = str(int(stated) - 1) if stated.isdigit() else rf"{stated}\s*-\s*1"
    rounded_up = rf"\+\s*\(?\s*{less}\s*\)?\s*\)\s*/\s*{stated}\b"
    rounded_up += rf"|-\s*1\s*\)\s*/\s*\([\w *]*\b{stated}\b"  # of a product
    is_rounded = re.search(rounded_up, text) is not None
    is_block = is_rounded and launch.follow(stated) in launch.block_names
    is_taken = re.search(
        rf"=\s*[^;=<>]*\bthreadIdx\.x[^;=<>]*\)\s*\*\s*{name}\s*;",
        launch.source.masked[slice(*launch.kernel.body)],
    )
    return len(name) == 1 and (is_block or is_taken is not None)


def _literals(launch: HostLaunch, names: Names) -> Iterator[TunableConstant]:
    # the number itself is the origin: the launch has it too
    for tile in literal_tiles(launch):
        block, own = tile.counts == "block_size", names.of(tile.counts)
        line = LineIndex(launch.source.masked).at(tile.instead[0][0][0])
        near = values_for(tile.counts, tile.size, block=block)
        edits = tuple(Edit(*span, form.format(hole(own))) for span, form in tile.instead)
        note, origin = f"{tile.size}, line {line}", str(tile.size)
        yield TunableConstant(own, near, tile.size, note, edits, origin, block)


def _members(
    launch: HostLaunch, constants: Sequence[TunableConstant], names: Names
) -> Iterator[TunableConstant]:
    # numbers of a class that is a template argument
    traits = traits_of(launch.source.masked, launch.kernel, launch.instance or ())
    taken = {choice.origin for choice in constants}
    for member, spans in traits.places.items():
        value = number(traits.numbers[member])
        if member in taken or value is None or why_fixed(member, value) is not None:
            continue
        if not splits_work(member, value):
            continue
        own, block = names.of(member), is_block(member, value)
        line = LineIndex(launch.source.masked).at(spans[0][0])
        near = values_for(member, value, block=block)
        edits = tuple(Edit(*span, hole(own)) for span in spans)
        yield TunableConstant(own, near, value, f"{member}, line {line}", edits, member, block)


def _template(
    launch: HostLaunch, constants: list[TunableConstant], names: Names
) -> tuple[list[TunableConstant], tuple[Edit, ...], tuple[str, ...] | None, list[str]]:
    # The instantiation in the launch must be the same for every config, so the values go into the
    # defaults; C++ then wants a default for every parameter that follows.
    instance = launch.instance
    if instance is None:
        return [], (), None, []
    left = []
    passed = names_behind(launch.site.arguments, launch.site.definitions)
    stated = (*launch.site.template_arguments, *[""] * len(instance))
    named = {choice.origin for choice in constants}
    lifted: dict[int, int | bool] = {}
    for index, (parameter, text) in enumerate(zip(launch.kernel.template, instance, strict=True)):
        value = number(launch.value(text))
        if value is None or parameter.is_type or bare_name(text) in named:
            continue
        reason = why_fixed(parameter.name, value if parameter.kind != "bool" else bool(value))
        if reason == PROBLEM_SIZE and _is_split(launch, parameter.name, stated[index]):
            reason = None
        if reason is None and passed & {parameter.name, *IDENTIFIER.findall(stated[index])}:
            reason = _PASSED
        if reason is None:
            reason = _why_bound(launch, parameter, index, value)
        if reason is None:
            own = {parameter.name, *IDENTIFIER.findall(stated[index])}
            reason = why_meant(launch, launch.source.reachable([launch.kernel]), own, value)
        if type(value) is int and is_asked(launch, stated[index]):
            # what a condition compares it with has to follow
            reason = None if reason == UNTIED else reason
        if reason is None:
            lifted[index] = value
        else:
            name = f"{parameter.name} = {launch.value(text)} (line {parameter.line})"
            left.append(f"{name} is left out: {reason}")
    first = next(
        (i for i, text in enumerate(instance) if i in lifted or bare_name(text) in named), None
    )
    if first is None:
        return [], (), instance, left
    choices, edits = [], []
    for index, parameter in enumerate(launch.kernel.template[first:], first):
        if index in lifted:
            choices.append(_template_choice(parameter, lifted[index], index, launch, names))
        elif parameter.default != instance[index]:
            edits.append(_default(parameter, instance[index]))
    return choices, tuple(edits), instance[:first], left


def _defined_widths(launch: HostLaunch, name: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Keep the values for which there is a class that the kernel hands them to, `pack_t<T, N>`."""
    masked = launch.source.masked
    for used in re.finditer(
        rf"\b(\w+)\s*<[^<>;(]*\b{name}\s*>", masked[slice(*launch.kernel.body)]
    ):
        head = (
            rf"\b(?:struct|class)\s+(?:\w+\([^()]*\)\s*)*{used[1]}\b\s*(<[^<>;{{]*>)?[^;{{]*(?=\{{)"
        )
        heads = [*re.finditer(head, masked)]
        stated = {int(m[1]) for match in heads if (m := re.search(r"(\d+)\s*>$", match[1] or ""))}
        open_ones = [match for match in heads if not re.search(r"\d\s*>$", match[1] or "")]
        bodies = " ".join(masked[match.end() : closing(masked, match.end())] for match in open_ones)
        by = re.search(r"static_assert\s*\([^;]*%\s*(\d+)\s*==\s*0", bodies)
        each = int(by[1]) if by is not None else 1
        if heads:
            values = tuple(v for v in values if v in stated or (open_ones and int(v) % each == 0))
    return values


def is_asked(launch: HostLaunch, stated: str) -> bool:
    """Whether a condition on the way to the launch names the number that the launch states."""
    number_alone = re.compile(rf"(?<![\w.]){stated}(?![\w.])") if stated.isdigit() else None
    return number_alone is not None and any(number_alone.search(c.text) for c in launch.conditions)


def _why_bound(
    launch: HostLaunch, parameter: TemplateParameter, index: int, value: int | bool
) -> str | None:
    # what else in a launch goes with this value of a template argument
    sites = [s for s in launch.source.launches if s.at == launch.site.at]
    if len({s.template_arguments[index : index + 1] for s in sites}) > 1:
        return _ONE_OF_TABLE
    if parameter.kind == "bool":
        others = (s for s in launch.source.launches if bare_name(s.kernel) == launch.kernel.name)
        stated = {
            (fold(site.template_arguments[index]), launch.value(site.shared))
            for site in others
            if len(site.template_arguments) > index
        }
        own = {shared for text, shared in stated if number(launch.value(text)) == value}
        rest = {shared for text, shared in stated if number(launch.value(text)) != value}
        return _OTHER_MEMORY if own and rest - own else None
    named = says(parameter.name, "per_thread")
    is_guess = parameter.name in launch.site.guessed
    return _UNSTATED if is_guess and not named and not is_block(parameter.name, value) else None


def _template_choice(
    parameter: TemplateParameter, value: int | bool, index: int, launch: HostLaunch, names: Names
) -> TunableConstant:
    stated = {n for text in launch.template_values(index) if (n := number(text)) is not None}
    block = is_block(parameter.name, value) or (value,) == launch.block
    name = names.of(parameter.name)
    near = values_for(parameter.name, value, block=block)
    if len(stated) > 2:
        near = tuple(sorted(stated))
    elif block and len(stated) > 1:
        near = doubled_between(*sorted(stated))
    near = _defined_widths(launch, parameter.name, near) or (value,)
    return TunableConstant(
        name=name,
        values=near,
        default=bool(value) if parameter.kind == "bool" else value,
        note=f"{parameter.name}, line {parameter.line}",
        edits=(_default(parameter, hole(name)),),
        origin=parameter.name,
        is_block=block,
    )


def _hints(
    launch: HostLaunch, reached: tuple[Span, ...], names: Names
) -> Iterator[TunableConstant]:
    bounds = launch.kernel.bounds
    if bounds is not None and bounds.min_blocks_span is not None:
        blocks = number(bounds.min_blocks or "")
        if isinstance(blocks, int) and blocks > 0:
            name, note = names.of("min_blocks"), f"__launch_bounds__, line {bounds.line}"
            edit, near = Edit(*bounds.min_blocks_span, hole(name)), {*_MIN_BLOCKS, blocks}
            yield TunableConstant(name, tuple(sorted(near)), blocks, note, (edit,))
    for unroll in launch.source.unrolls:
        factor, span = number(unroll.factor or ""), unroll.span
        if span is not None and factor and within(span[0], reached):
            name, note = names.of("unroll"), f"#pragma unroll, line {unroll.line}"
            values = values_for(name, factor, block=False)
            yield TunableConstant(name, values, factor, note, (Edit(*span, hole(name)),))


def _default(parameter: TemplateParameter, text: str) -> Edit:
    end = parameter.span[1]
    if parameter.default is not None:
        return Edit(end - len(parameter.default), end, text)
    return Edit(end, end, f" = {text}")


def _block(
    launch: HostLaunch, choices: list[TunableConstant], names: Names
) -> Iterator[TunableConstant]:
    extents, threads = launch.block, prod(launch.block)
    if not extents:
        yield from _chosen_block(launch, choices, names)
    if not extents or threads > MAX_THREADS:
        return
    behind = names_behind(launch.site.block, launch.definitions)
    stated = {choice.origin for choice in choices} & behind
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


def _add_launch_bounds(
    launch: HostLaunch, choices: list[TunableConstant], names: Names
) -> list[TunableConstant]:
    # Every parameter shows in the source: a recording tells configs apart by it, and the compiler
    # needs to know the block's size to give it all the registers it may have.
    bounds = launch.kernel.bounds
    free = [c for c in choices if not c.edits or (c.is_block and c.origin is None)]
    if bounds is not None and not free:
        threads = number(bounds.max_threads)
        free = [c for c in choices if c.is_block and c.default == threads][:1]
    axes = {choice.axis for choice in free}
    fixed = [str(e) for axis, e in enumerate(launch.block) if axis not in axes and e > 1]
    one = len(free) == 1 and free[0].is_block
    # 0 leaves a block to the source, which may have as many as there can be
    lifted = [c.name if c.default else f"({c.name} if {c.name} else {MAX_THREADS})" for c in free]
    factors = [*lifted, *([] if one else fixed)] if free else _named_extents(launch, choices)
    if not factors:
        return choices
    threads_hole = hole(" * ".join(factors))
    more: list[TunableConstant] = []
    if bounds is None or not bounds.min_blocks:
        name = names.of("min_blocks")
        note = f"blocks that registers must leave room for; 0: not said, line {launch.kernel.line}"
        fits = f"{name} * {' * '.join(factors)} <= {_MAX_RESIDENT}"
        more = [TunableConstant(name, _FEWEST_BLOCKS, 0, note, (), constraints=(fits,))]
    least = f", {hole(more[0].name)}" if more else ""
    if bounds is None:
        at = launch.kernel.name_at
        edit = Edit(at, at, f"__launch_bounds__({threads_hole}{least}) ")
    else:
        start, end = bounds.max_threads_span
        edit = Edit(start, end, f"{threads_hole}{least}") if free else Edit(end, end, least)
    first = (free or [c for c in choices if c.name in " ".join(factors).split()])[0]
    return [replace(c, edits=(*c.edits, edit)) if c is first else c for c in choices] + more


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
