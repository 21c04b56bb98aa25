"""What the launch means in a search space: which names are axes, and its grid, block and memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

from tuner.extensions.draft.choices import (
    PER_THREAD,
    PROBLEM_SIZE,
    Names,
    Proposals,
    TunableConstant,
    block_sizes,
    is_asked,
    warp_threads,
    why_fixed,
)
from tuner.extensions.draft.extract.names import macros_in
from tuner.extensions.draft.host_code import HostFunction, functions_of
from tuner.extensions.draft.host_values import (
    INTEGERS,
    Host,
    HostLaunch,
    Number,
    names_behind,
    plain,
)
from tuner.extensions.draft.translate import Scope, Translation, translate
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression
from tuner.source.accesses import find_assignments
from tuner.source.facts import IDENTIFIER, Constant
from tuner.source.kernels import dtype_of
from tuner.source.syntax import fold, listed, number

_TILE = re.compile(
    r"\bblockIdx\.[xyz]\s*\*\s*(\w+(?:\s*\*\s*\w+)*)\s*(?=[;+)])"
    r"|(\w+(?:\s*\*\s*\w+)*)\s*\*\s*blockIdx\.[xyz]\b"
)
_ASSERT = re.compile(r"\bstatic_assert\s*\((?:[^()]|\([^()]*\))*\)")
_THREAD_SPLIT = re.compile(r"\bthreadIdx\.x\s*\)?\s*[%/]\s*(\((?:[^()]|\([^()]*\))*\)|\w+)")
_CUB_THREADS = re.compile(r"\bBlock[A-Z]\w+\s*<[^;<>]*?,\s*([\w:]+)\s*[,>]")
_RETURN = re.compile(r"\breturn\b([^;]*);")
_MAX_DEPTH = 8
# larger than every limit that a source sets
_LARGE_SIZE = 2**30
_VARIABLE = re.compile(r"(?<![\w.:>])[A-Za-z_]\w*(?!\w|\s*(?:\(|::|<|\.|->))")


@dataclass(frozen=True, slots=True)
class Axes:
    """Names of the C++ source that are axes, with the axes' names; `fixed` are constants of it.

    `strides` are parameters that are products of the axes, each with the place that says so.
    """

    names: Mapping[str, str]
    fixed: Mapping[str, Constant] = field(default_factory=dict)
    strides: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def texts(self, launch: HostLaunch) -> dict[str, str]:
        """Map texts of the launch's own function to axes: what it passes, and what it knows."""
        strides = {name: text for name, (text, _) in self.strides.items()}
        return (
            strides
            | dict(self.names)
            | {
                form: self.names[name]
                for name, text in launch.passed.items()
                if name in self.names and number(text) is None
                for form in (text, plain(text))
            }
        )


def axes_of(launch: HostLaunch, hosts: Sequence[Host]) -> Axes:
    """Find the axes: whole-number parameters, host variables of the grid, else fixed sizes."""
    names, types = Names(), launch.types()
    arguments, grid = launch.site.arguments, launch.site.grid
    found: dict[str, str] = {}
    for place, p in enumerate(launch.kernel.parameters):
        if p.name and not p.pointers and dtype_of(p.c_type, types) in INTEGERS:
            # an offset of 0 is passed as a whole number too
            known = [host.number(text) for text in arguments[place : place + 1] for host in hosts]
            is_size = all(value is None or value.value > 0 for value in known)
            if is_size or p.name in launch.varying:
                found[p.name] = names.axis(p.name)
    # `const int rows = 1024;`, where both the grid and an array have so many
    texts = Axes(found).texts(launch)
    sized = launch.problem_sizes & names_behind(grid, launch.site.definitions)
    for name, value in launch.site.definitions.items():
        if name in sized and name not in texts and number(value) is not None:
            found[name] = names.axis(name)
    scope = scope_of(launch, Axes(found), ())
    for text in grid:
        own = replace(scope, values={**scope.values, **found})
        if translate(text, own) is not None:
            continue
        unknown = dict.fromkeys(_unknown_names(text, own))
        if translate(text, replace(own, values={**own.values, **{n: n for n in unknown}})):
            found |= {name: names.axis(name) for name in unknown}
    if found:
        return Axes(found)
    fixed = {constant.name: constant for constant in _fixed_constants(launch)}
    return Axes({name: names.axis(name) for name in fixed}, fixed)


def _unknown_names(text: str, scope: Scope, depth: int = 0) -> Iterator[str]:
    # the names that a grid depends on, and that nothing but a caller or a tensor says
    for name in _VARIABLE.findall(text):
        if dtype_of(name, {}) is not None or translate(name, scope) is not None:
            continue
        computed = scope.definitions.get(name, "")
        behind = [*_unknown_names(computed, scope, depth + 1)] if depth < _MAX_DEPTH else []
        known = replace(scope, values={**scope.values, **{n: n for n in behind}})
        # `per_block = kThreads / width`: an axis `per_block` would not follow the threads
        yield from behind if behind and translate(computed, known) is not None else [name]


def numbers_of(launch: HostLaunch, axes: Axes, host: Host) -> dict[str, Number]:
    """Map axes to the numbers they have on one way to the launch, as far as the source says."""
    passed = launch.passed
    known = {axis: host.number(passed.get(name, name)) for name, axis in axes.names.items()}
    return {axis: n for axis, n in known.items() if n is not None and n.value > 0}


def _fixed_constants(launch: HostLaunch) -> Iterator[Constant]:
    source, sized = launch.source, launch.problem_sizes
    reached = source.reachable([launch.kernel])
    used = {name for span in reached for name in IDENTIFIER.findall(source.masked, *span)}
    often = [constant.name for constant in source.constants]
    for constant in source.constants:
        value = constant.number
        if constant.name not in used | launch.names or often.count(constant.name) > 1:
            continue
        if value is None or isinstance(value, bool) or value < 1:
            continue
        if constant.name in sized or why_fixed(constant.name, value) == PROBLEM_SIZE:
            yield constant


@dataclass(frozen=True, slots=True)
class LaunchDraft:
    """A launch as expressions; None where only a person can say, `hints` what the source says."""

    kernel: str | None
    grid: tuple[str, ...] | None
    block: tuple[str, ...] | None
    shared_memory: str | None
    hints: Mapping[str, str] = field(default_factory=dict)


def template_launch(launch: HostLaunch, axes: Axes, proposals: Proposals) -> LaunchDraft:
    """Draft the launch of the template: proposed constants are parameters in it."""
    drafted = _limited_draft(launch, axes, proposals)
    factors = " * ".join(choice.name for choice in proposals.choices if choice.divides_grid)
    if factors and drafted.grid is not None:
        blocks = re.sub(
            r"^ceil_div\((\w+), (\w+)\)$", rf"ceil_div(\1, \2 * {factors})", drafted.grid[0]
        )
        if blocks == drafted.grid[0]:
            blocks = f"ceil_div({blocks}, {factors})"
        drafted = replace(drafted, grid=(blocks, *drafted.grid[1:]))
    own_block = next((choice.name for choice in proposals.choices if choice.is_block), None)
    if not launch.is_guessed or own_block is None or len(drafted.block or ()) > 1:
        return drafted
    return replace(drafted, block=(own_block,))


def exact_divisions(launch: HostLaunch, choices: Sequence[TunableConstant]) -> Iterator[str]:
    """Yield constraints for parameters that the source divides by one another without rest."""
    origins = {choice.origin: choice for choice in choices if choice.origin is not None}
    spans = launch.source.reachable([launch.kernel])
    texts = [launch.source.masked[start:end] for start, end in spans]
    texts += [*launch.site.grid, *launch.site.block, *launch.site.definitions.values()]
    found = {
        (match[1], match[2])
        for text in texts
        for match in re.finditer(r"\b([A-Za-z_]\w*)\s*/\s*([A-Za-z_]\w*)\b", text)
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
    spans = launch.source.reachable([launch.kernel])
    reached = "\n".join(launch.source.masked[start:end] for start, end in spans)
    asked = [listed(match[0], match[0].index("("))[0][0] for match in _ASSERT.finditer(reached)]
    # of several instances one for more does for fewer: `case 4:` of how many packs a row has
    asked += [one.text.replace("==", "<=") for one in launch.conditions if one.holds]
    asked += [
        f"!({one.text})" for one in launch.conditions if not one.holds and "==" not in one.text
    ]
    for text in asked:
        written = translate(text, counted)
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
    text = launch.source.masked[slice(*launch.kernel.body)]
    splits = {fold(match[1]) for match in _THREAD_SPLIT.finditer(text)}
    written = ((split, translate(split, scope)) for split in sorted(splits))
    own = {part: {*IDENTIFIER.findall(part)} for _, part in written if part is not None}
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
        found[part] = f"({part}) == {block}" if rest == 1 else whole
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
            if tile.name in grid and threads.name == block and len(sized) == 1:
                yield f"{tile.name} == {threads.name} * {sized[0].name}"


def scope_of(launch: HostLaunch, axes: Axes, choices: Sequence[TunableConstant]) -> Scope:
    """Say what the names in the host code and the file's constants stand for."""
    constants, own = launch.constants, launch.site.definitions
    stated = {name: choice.name for choice in choices for name in _names_of(choice, launch)}
    if any(choice.is_block and choice.default == 0 for choice in choices):
        rest = tuple(choice for choice in choices if not choice.is_block or choice.default)
        stated |= _replaced_block(launch, axes, rest, next(c for c in choices if c not in rest))
    # `kit::threads` in a function that has `threads` of its own
    outer = {f"::{name}": text for name, text in constants.items() if name in own}
    return Scope(
        values=axes.texts(launch) | stated,
        definitions={**constants, **own, **outer},
        types=launch.types(),
        defaults={c.name: c.default for c in choices if isinstance(c.default, int)},
        results=_results(launch),
        fixed=frozenset(constants) - own.keys(),
    )


def _replaced_block(
    launch: HostLaunch, axes: Axes, others: Sequence[TunableConstant], choice: TunableConstant
) -> dict[str, str]:
    # what the source has is in place where the parameter is 0, in all that is computed from it
    text = launch.site.block[0]
    whole = translate(text, scope_of(launch, axes, others))
    replaced = f"{choice.name} if {choice.name} else {whole}"
    return {} if whole is None else {text: replaced, f"{text}.x": replaced}


def _names_of(choice: TunableConstant, launch: HostLaunch) -> Iterator[str]:
    # what the source calls a parameter: its constant, what the launch states, a member of the block
    site = launch.site
    parameters = [parameter.name for parameter in launch.kernel.template]
    texts = [text for text in (choice.origin,) if text is not None]
    if choice.origin in parameters[: len(site.template_arguments)]:
        texts.append(site.template_arguments[parameters.index(choice.origin)])
    if choice.axis is not None and choice.axis < len(site.block):
        whole = [text for text in site.block if text != "1"]
        texts.append(site.block[choice.axis])
        for name, text in site.definitions.items():
            pieces = listed(text, text.find("("))[0] if text.startswith(("(", "dim3")) else ()
            if [piece for piece in pieces if piece != "1"] == whole:
                yield f"{name}.{'xyz'[choice.axis]}"
    chains = {name: {*_chain(name, site.definitions)} for name in site.definitions}
    yield from (text for text in texts[:1] if text == choice.origin)
    for text in texts:
        if number(launch.value(text)) == choice.default:
            own = {one for one in _chain(text, site.definitions) if number(one) is None}
            yield from own
            yield from (name for name, chain in chains.items() if own & chain)


def _chain(text: str, definitions: Mapping[str, str]) -> Iterator[str]:
    # what a name stands for, one after another
    for _ in range(_MAX_DEPTH):
        yield text
        if text not in definitions:
            return
        text = definitions[text]


def _block_limit(launch: HostLaunch, proposals: Proposals) -> TunableConstant | None:
    # what a block may have at most, where sizes decide what it has
    if launch.block or launch.is_guessed:
        return None
    return next((c for c in proposals.choices if c.is_block and c.axis == 0), None)


def _limited_draft(launch: HostLaunch, axes: Axes, proposals: Proposals) -> LaunchDraft:
    drafted = launch_draft(launch, axes, proposals.instance, proposals.choices)
    limit = _block_limit(launch, proposals)
    if (
        limit is None
        or not limit.default
        or drafted.block is None
        or _most_threads(drafted, {limit.name: 1}) == 1
    ):
        return drafted
    whole = launch_draft(launch, axes, proposals.instance).block or ()
    return replace(drafted, block=(f"min({', '.join((*whole, limit.name))})",))


def _most_threads(drafted: LaunchDraft, parameters: Mapping[str, int]) -> int | None:
    # of the block, whatever the sizes; None where nobody can say
    if drafted.block is None or len(drafted.block) != 1:
        return None
    try:
        extent = Expression.parse(drafted.block[0])
        most = extent.evaluate(dict.fromkeys(extent.names, _LARGE_SIZE) | dict(parameters))
    except ExpressionError:
        return None
    return most if isinstance(most, int) and most < _LARGE_SIZE else None


def without_unproved(launch: HostLaunch, axes: Axes, proposals: Proposals) -> Proposals:
    """Leave out what a number of the launch comes from, or may come from, and does not follow."""
    choices, limit = proposals.choices, _block_limit(launch, proposals)
    unproved: dict[str, str] = {}
    if limit is not None and limit.default == 0:
        if launch_draft(launch, axes, proposals.instance).block is None:
            unproved[limit.name] = "the block"
    elif limit is not None:
        most = _most_threads(launch_draft(launch, axes, proposals.instance), {})
        if most is None or most not in block_sizes(most):
            unproved[limit.name] = "the block"
        elif most != limit.default:
            # `min(warps, 32) * 32` is a limit of 1,024
            larger = replace(limit, default=most, values=block_sizes(most))
            choices = tuple(larger if choice is limit else choice for choice in choices)
    drafted = _limited_draft(launch, axes, replace(proposals, choices=choices))
    scope = scope_of(launch, axes, choices)
    kept = " ".join(conditions_kept(launch, axes, choices, drafted))
    for name in _asked_numbers(launch, choices).values():
        if name not in IDENTIFIER.findall(kept) and not PER_THREAD.fullmatch(name.upper()):
            unproved[name] = "the choice"
    stays = ((c.name, _what_stays(c, launch, drafted, scope, choices)) for c in choices)
    unproved |= {name: what for name, what in stays if what}
    extents = [c.name for c in choices if c.axis is not None]
    if reason := next((unproved[name] for name in extents if name in unproved), None):
        # the extents of a block stand in one bound of the kernel
        unproved = dict.fromkeys(extents, reason) | unproved
    called = {c.name: c.name if (c.origin or "0").isdigit() else c.origin for c in choices}
    left = [
        f"{called[c.name]} = {c.default} is left out: {unproved[c.name]} of the launch may "
        "come from it, and nothing shows how"
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
    choices = tuple(
        c for c in choices if c.name not in unproved and not any(map(gone.search, c.constraints))
    )
    left = [*proposals.left, *left]
    return replace(proposals, choices=choices, left=tuple(left), edits=(*proposals.edits, *edits))


def _what_stays(
    choice: TunableConstant,
    launch: HostLaunch,
    drafted: LaunchDraft,
    scope: Scope,
    choices: Sequence[TunableConstant],
) -> str:
    site, names, shared = launch.site, {*_names_of(choice, launch)}, drafted.shared_memory
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
            tiles = _TILE.findall(launch.source.masked, *launch.kernel.body)
            is_tile = choice.origin in (number for pair in tiles for number in pair)
            comes_from |= is_tile if what == "the grid" else size in launch.block
        if type(size) is int and what == "the grid" and choice.origin and not told.isdigit():
            # of a tile the grid may have the number
            is_there = re.search(rf"(?<![\w.]){size}\b", told) and size > 1
            comes_from |= bool(is_there) and not re.search(
                "unroll|stage|depth|pipeline", choice.name
            )
        elif what == "the block":
            told_of = _thread_tiles(launch, scope, choices, told)
            open_parts = " ".join(part for part, said in told_of.items() if not said)
            comes_from |= choice.name in IDENTIFIER.findall(open_parts)
            comes_from |= choice.axis is not None or warp_threads(choice) == prod(launch.block)
        elif what == "the shared memory" and told.isdigit() and told != "0":
            # as the number that it is there, or unseen behind a bare number of bytes
            comes_from |= choice.axis is not None or (
                choice.origin is not None and str(size) in re.findall(r"\d+", launch.expand(text))
            )
        if comes_from and choice.name not in IDENTIFIER.findall(told):
            return what
    return ""


def _results(launch: HostLaunch) -> dict[str, Translation]:
    # functions and macros in the launch that compute their result and do nothing else
    source = launch.source
    functions = functions_of(source)
    spans = tuple(function.span for function in functions)
    found: dict[str, Translation] = {}
    for function in functions:
        returns = [*_RETURN.finditer(source.masked, *function.span)]
        if function.name in launch.names and len(returns) == 1:
            own = find_assignments(source.masked, spans, returns[0].start())
            definitions = {name: variable.text for name, variable in own.items()}
            defaults = {name: text for name, text in _defaults_of(source.masked, function) if text}
            found[function.name] = Translation(
                function.parameters, returns[0][1], definitions, defaults
            )
    for macro in macros_in(source.masked).values():
        is_result = macro.parameters is not None and not re.search(r"[;{#]", macro.body)
        if is_result and macro.name in launch.names:
            found[macro.name] = Translation(macro.parameters or (), macro.body)
    return found


def launch_draft(
    launch: HostLaunch,
    axes: Axes,
    instance: tuple[str, ...] | None,
    choices: Sequence[TunableConstant] = (),
) -> LaunchDraft:
    """Draft a launch of one instance of the kernel, of the source as it is without `choices`."""
    name: str | None = launch.kernel.qualified_name
    if launch.kernel.template and instance is None:
        name = None
    elif launch.kernel.template and instance is not None:
        values = ((launch.value(text), text) for text in instance)
        arguments = (value if number(value) is not None else text for value, text in values)
        name = f"{name}<{', '.join(arguments)}>"
    site, scope = launch.site, scope_of(launch, axes, choices)
    hints = {
        "grid": ", ".join(site.grid),
        "block": ", ".join(site.block),
        "shared_memory": launch.follow(site.shared),
    }
    hints = {} if launch.is_guessed else hints
    # a bare number of blocks or bytes is itself, whatever the block has
    stated = {text: launch.value(text) for text in (*site.grid, site.shared)}
    bare = {text for text, value in stated.items() if value.isalnum() and number(value) is not None}
    tiles = _warps(launch, choices) | _tiles(launch, choices)
    own = _with_literals(scope, choices, 0)
    own = scope if site.shared in bare else replace(own, literals=tiles | dict(own.literals))
    shared = translate(site.shared, own)
    grid = _extents(site.grid, scope, choices, tiles, bare)
    block = _extents(site.block, scope, choices, _warps(launch, choices))
    for key, drafted, texts in (
        ("grid", grid, site.grid),
        ("shared_memory", shared, (site.shared,)),
    ):
        behind = names_behind(texts, launch.definitions)
        follows = [
            c.name
            for c in choices
            if c.is_block
            or c.axis is not None
            or behind & {*_names_of(c, launch)}
            or (c.divides_grid and key == "grid")
        ]
        if drafted is None and follows:
            hints[key] = f"{hints.get(key, '')}, which follows {', '.join(follows)}"
    return LaunchDraft(name, grid, block, shared, hints)


def _tiles(launch: HostLaunch, choices: Sequence[TunableConstant]) -> dict[int, str]:
    """Map what a block takes, by `blockIdx.x * A * B` in the kernel, to parameters."""
    origins = {c.origin: c for c in choices if c.origin is not None and type(c.default) is int}
    found: dict[int, str] = {}
    constants = {c.name: c.value for c in launch.source.constants if c.name not in origins}
    for match in _TILE.finditer(launch.source.masked, *launch.kernel.body):
        text = match[1] or match[2]
        factors = re.findall(r"\w+", IDENTIFIER.sub(lambda m: constants.get(m[0], m[0]), text))
        own = [origins[name] for name in factors if name in origins]
        plain = [factor for factor in factors if factor.isdigit()]
        if own and len(own) + len(plain) == len(factors):
            size = prod(c.default for c in own if isinstance(c.default, int))
            text = " * ".join([*(c.name for c in own), *plain])
            found[size * prod(map(int, plain))] = text if len(factors) == 1 else f"({text})"
    return found


def _warps(launch: HostLaunch, choices: Sequence[TunableConstant]) -> dict[int, str]:
    """Map the threads of a block that are stated as a number to the parameter for its warps."""
    blocks = {number(launch.value(text)) for text in launch.site.block}
    own = [choice for choice in choices if warp_threads(choice) in blocks]
    return {warp_threads(choice): f"({choice.name} * 32)" for choice in own}


def _defaults_of(masked: str, function: HostFunction) -> Iterator[tuple[str, str]]:
    # parameters with the text of their defaults
    head = masked.index(function.name, function.span[0]) + len(function.name)
    pieces = listed(masked, masked.index("(", head))[0]
    for name, piece in zip(function.parameters, pieces, strict=False):
        yield name, piece.partition("=")[2].strip()


def _extents(
    texts: Sequence[str],
    scope: Scope,
    choices: Sequence[TunableConstant],
    tiles: Mapping[int, str] = MappingProxyType({}),
    bare: Collection[str] = (),
) -> tuple[str, ...] | None:
    defaults = {**scope.defaults, **{text: size for size, text in tiles.items()}}
    plain = replace(scope, literals={}, defaults=defaults)
    found: list[str] = []
    for axis, text in enumerate(texts):
        own = {} if text in bare else {**tiles, **_with_literals(scope, choices, axis).literals}
        # `3 * 32` is 96 as a whole
        whole = translate(text, plain) or ""
        stated = whole if whole.isdigit() and int(whole) in own else text
        if (extent := translate(stated, replace(plain, literals=own))) is None:
            return None
        found.append(extent)
    while len(found) > 1 and found[-1] == "1":
        found.pop()
    return tuple(found) or None


def _with_literals(scope: Scope, choices: Sequence[TunableConstant], axis: int) -> Scope:
    # a number in the launch that equals the block's size is taken to be the block's size
    sized = sorted(choices, key=lambda choice: choice.axis == axis)
    literals = {
        choice.default: choice.name
        for choice in sized
        if (choice.is_block or choice.axis == axis) and choice.default
        if isinstance(choice.default, int)
    }
    # and one that equals what a thread does is what a thread does
    for choice in choices:
        each = choice.axis is None and PER_THREAD.fullmatch(choice.name.upper())
        if each and type(choice.default) is int and choice.default > 1:
            literals.setdefault(choice.default, choice.name)
    return replace(scope, literals=literals)
