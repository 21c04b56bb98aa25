"""What the launch means in a search space: which names are axes, and its grid, block and memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

from tuner.extensions.draft.extract.names import macros_in
from tuner.extensions.draft.host_code import functions_in
from tuner.extensions.draft.host_path import Host, Number, plain
from tuner.extensions.draft.host_values import INTEGERS, HostLaunch, names_behind, read_lambda
from tuner.extensions.draft.meaning import PROBLEM_SIZE, says, why_fixed
from tuner.extensions.draft.translate import Scope, Translation, translate
from tuner.extensions.draft.tunables import Names, Proposals, TunableConstant, warp_threads
from tuner.source.accesses import find_assignments
from tuner.source.facts import IDENTIFIER, Constant
from tuner.source.kernels import dtype_of
from tuner.source.syntax import listed, number

TILE = re.compile(
    r"\bblockIdx\.[xyz]\s*\*\s*(\w+(?:\s*\*\s*\w+)*)\s*(?=[;+)])"
    r"|(\w+(?:\s*\*\s*\w+)*)\s*\*\s*blockIdx\.[xyz]\b"
)
_ROW = (
    r"\bblockIdx\.[xyz]\s*\*\s*{0}\s*\+\s*threadIdx\.([xyz])"
    r"|\b{0}\s*\*\s*blockIdx\.[xyz]\s*\+\s*threadIdx\.([xyz])"
)
# how far an element looks is no size of an array
_REACH = re.compile(r"RADIUS|HALO|BORDER|GHOST|STENCIL|FILTER", re.IGNORECASE)
_RETURN = re.compile(r"\breturn\b([^;]*);")
_MAX_DEPTH = 8
_VARIABLE = re.compile(r"(?<![\w.:>])[A-Za-z_]\w*(?!\w|\s*(?:\(|::|<(?![=<\s])|\.|->))")


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
        passed = {
            form: self.names[name]
            for name, text in launch.passed.items()
            if name in self.names and number(text) is None
            for form in (text, plain(text))
        }
        return {**strides, **self.names, **passed}


def axes_of(launch: HostLaunch, hosts: Sequence[Host]) -> Axes:
    """Find the axes: whole-number parameters, host variables of the grid, else fixed sizes."""
    names, types = Names(), launch.types()
    arguments, grid = launch.site.arguments, launch.site.grid
    found: dict[str, str] = {}
    for place, p in enumerate(launch.kernel.parameters):
        if p.name and not p.pointers and dtype_of(p.c_type, types) in INTEGERS:
            # an offset of 0 is passed as a whole number too
            numbers = [host.number(text) for text in arguments[place : place + 1] for host in hosts]
            is_size = all(value is None or value.value > 0 for value in numbers)
            if is_size or p.name in launch.varying:
                found[p.name] = names.axis(p.name)
    # `const int rows = 1024;`, where both the grid and an array have so many
    texts = Axes(found).texts(launch)
    sized = launch.problem_sizes & names_behind(grid, launch.site.definitions)
    for name, value in launch.site.definitions.items():
        if name in sized and name not in texts and number(value) is not None:
            found[name] = names.axis(name)
    scope, zeros = scope_of(launch, Axes(found), ()), dict[str, tuple[str, str]]()
    for text in grid:
        own = replace(scope, values={**scope.values, **found})
        if translate(text, own) is not None:
            continue
        unknown = dict.fromkeys(_unknown_names(text, own))
        if translate(text, replace(own, values={**own.values, **{n: n for n in unknown}})):
            zeros |= {name: told for name in unknown if (told := _where_zero(name, hosts))}
            found |= {name: names.axis(name) for name in unknown if name not in zeros}
    if found:
        derived = _derived(launch, found) | zeros
        names_left = {name: axis for name, axis in found.items() if name not in derived}
        return Axes(names_left, strides=derived)
    fixed = {constant.name: constant for constant in _fixed_constants(launch)}
    return Axes({name: names.axis(name) for name in fixed}, fixed)


def _where_zero(name: str, hosts: Sequence[Host]) -> tuple[str, str] | None:
    # 0 wherever the host code is called, `run(y, x, n, 0)`, and the first line that says so
    numbers = [host.number(name) for host in hosts]
    lines = [one.line for one in numbers if one is not None and one.value == 0]
    return ("0", f"line {lines[0]}") if lines and len(lines) == len(numbers) else None


def _derived(launch: HostLaunch, found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Map what the launch passes and computes of other axes to the axes it is computed of."""
    derived: dict[str, tuple[str, str]] = {}
    for name in found:
        variable = plain(launch.passed.get(name, ""))
        stated = launch.site.definitions.get(variable, "")
        others = {n: axis for n, axis in found.items() if n != name and n not in derived}
        if not stated or number(stated) is not None or name in launch.varying:
            continue
        written = translate(stated, scope_of(launch, Axes(others), ()))
        sizes = {*IDENTIFIER.findall(written or "")} & {*others.values()}
        if written is not None and len(sizes) == 1:
            told = f"{variable} = {stated}, where line {launch.site.line} launches"
            derived[name] = written, told
    return derived


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
        looks = why_fixed(constant.name, value) == PROBLEM_SIZE and not _REACH.search(constant.name)
        if constant.name in sized or looks:
            yield constant


@dataclass(frozen=True, slots=True)
class LaunchDraft:
    """A launch as expressions; None where only a person can say, `hints` what the source says.

    Without clusters `cluster` is empty.
    """

    kernel: str | None
    grid: tuple[str, ...] | None
    block: tuple[str, ...] | None
    shared_memory: str | None
    hints: Mapping[str, str] = field(default_factory=dict)
    cluster: tuple[str, ...] | None = ()


def template_launch(launch: HostLaunch, axes: Axes, proposals: Proposals) -> LaunchDraft:
    """Draft the launch of the template: proposed constants are parameters in it."""
    drafted = launch_draft(launch, axes, proposals.instance, proposals.choices)
    factors = " * ".join(choice.name for choice in proposals.choices if choice.divides_grid)
    if factors and drafted.grid is not None:
        first, *others = drafted.grid
        rounded = re.fullmatch(r"ceil_div\((\w+), (\w+)\)", first)
        pair = f"{rounded[1]}, {rounded[2]} * {factors}" if rounded else f"{first}, {factors}"
        drafted = replace(drafted, grid=(f"ceil_div({pair})", *others))
    own_block = next((choice.name for choice in proposals.choices if choice.is_block), None)
    if not launch.is_guessed or own_block is None or len(launch.site.block) > 1:
        return drafted
    return replace(drafted, block=(own_block,))


def scope_of(launch: HostLaunch, axes: Axes, choices: Sequence[TunableConstant]) -> Scope:
    """Say what the names in the host code and the file's constants stand for."""
    constants, own = launch.constants, launch.site.definitions
    stated = {name: choice.name for choice in choices for name in source_names(choice, launch)}
    # `S::BN`, of a class that is handed to the kernel
    stated |= {
        text: choice.name
        for text, value in constants.items()
        for choice in choices
        if choice.origin == text.rpartition("::")[2] and number(value) == choice.default
        if "::" in text
    }
    rest = tuple(choice for choice in choices if not choice.is_block or choice.default)
    if off := next((choice.name for choice in choices if choice not in rest), ""):
        # what the source has is in place where it is 0, in all that is computed from it
        text = launch.site.block[0]
        if (whole := translate(text, scope_of(launch, axes, rest))) is not None:
            stated |= dict.fromkeys((text, f"{text}.x"), f"{off} if {off} else {whole}")
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


def source_names(choice: TunableConstant, launch: HostLaunch) -> Iterator[str]:
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


def _results(launch: HostLaunch) -> dict[str, Translation]:
    # functions and macros in the launch that compute their result and do nothing else
    source, site = launch.source, launch.site
    functions = functions_in(source.masked)
    spans = tuple(function.span for function in functions)
    translations: dict[str, Translation] = {}
    for function in functions:
        returns = [*_RETURN.finditer(source.masked, *function.span)]
        if function.name in launch.names and len(returns) == 1:
            own = find_assignments(source.masked, spans, returns[0].start())
            definitions = {name: variable.text for name, variable in own.items()}
            head = source.masked.index(function.name, function.span[0]) + len(function.name)
            pieces = listed(source.masked, source.masked.index("(", head))[0]
            texts = (piece.partition("=")[2].strip() for piece in pieces)
            names = tuple(parameter.name for parameter in function.parameters)
            defaults = {n: t for n, t in zip(names, texts, strict=False) if t}
            result = Translation(names, returns[0][1], definitions, defaults)
            translations[function.name] = result
    for name in launch.names & site.definitions.keys():
        if (read := read_lambda(site.definitions[name])) is not None:
            translations[name] = Translation(*read)
    for macro in macros_in(source.masked).values():
        is_result = macro.parameters is not None and not re.search(r"[;{#]", macro.body)
        if is_result and macro.name in launch.names:
            translations[macro.name] = Translation(macro.parameters or (), macro.body)
    return translations


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
    clusters = site.cluster or launch.kernel.cluster
    hints = {
        "grid": ", ".join(site.grid),
        "block": ", ".join(site.block),
        "shared_memory": launch.follow(site.shared),
        "cluster": ", ".join(clusters),
    }
    hints = {} if launch.is_guessed else hints
    # a bare number of blocks or bytes is itself, whatever the block has
    stated = {text: launch.value(text) for text in (*site.grid, site.shared)}
    bare = {text for text, value in stated.items() if value.isalnum() and number(value) is not None}
    # the threads of a block that are stated as a number follow the parameter for its warps
    blocks = {number(launch.value(text)) for text in site.block}
    warps = {n: f"({c.name} * 32)" for c in choices if (n := warp_threads(c)) in blocks}
    tiles = warps | _tiles(launch, choices)
    own = _with_literals(scope, choices, 0)
    own = scope if site.shared in bare else replace(own, literals=tiles | dict(own.literals))
    shared = translate(site.shared, own)
    grid = _extents(site.grid, scope, choices, tiles, bare)
    block = _extents(site.block, scope, choices, warps, along=along(launch, choices))
    cluster = _extents(clusters, scope, ()) if clusters else ()
    for key, drafted, texts in (
        ("grid", grid, site.grid),
        ("shared_memory", shared, (site.shared,)),
    ):
        behind = names_behind(texts, launch.definitions)
        names = ", ".join(
            c.name
            for c in choices
            if c.is_block
            or c.axis is not None
            or behind & {*source_names(c, launch)}
            or (c.divides_grid and key == "grid")
        )
        if drafted is None and names:
            said = hints.get(key)
            hints[key] = f"{said}, which follows {names}" if said else f"nothing; follows {names}"
    return LaunchDraft(name, grid, block, shared, hints, () if cluster == ("1",) else cluster)


def _tiles(launch: HostLaunch, choices: Sequence[TunableConstant]) -> dict[int, str]:
    """Map what a block takes, by `blockIdx.x * A * B` in the kernel, to parameters."""
    origins = {c.origin: c for c in choices if c.origin is not None and type(c.default) is int}
    found: dict[int, str] = {}
    constants = {c.name: c.value for c in launch.source.constants if c.name not in origins}
    for match in TILE.finditer(launch.source.masked, *launch.kernel.body):
        text = match[1] or match[2]
        factors = re.findall(r"\w+", IDENTIFIER.sub(lambda m: constants.get(m[0], m[0]), text))
        own = [origins[name] for name in factors if name in origins]
        plain = [factor for factor in factors if factor.isdigit()]
        size = prod(c.default for c in own if isinstance(c.default, int))
        if size > 1 and len(own) + len(plain) == len(factors):
            text = " * ".join([*(c.name for c in own), *plain])
            found[size * prod(map(int, plain))] = text if len(factors) == 1 else f"({text})"
    return found


def along(launch: HostLaunch, choices: Sequence[TunableConstant]) -> dict[int, TunableConstant]:
    """Map extents of the block to the parameters that the kernel takes them for.

    `blockIdx.x * ROWS + threadIdx.y`, where so many threads are in y.
    """
    constants: dict[int, TunableConstant] = {}
    for choice in choices:
        if choice.origin is None or type(choice.default) is not int:
            continue
        for match in re.finditer(_ROW.format(choice.origin), launch.body):
            axis = "xyz".index(match[1] or match[2])
            if launch.block[axis : axis + 1] == (choice.default,):
                constants[axis] = choice
    return constants


def _extents(
    texts: Sequence[str],
    scope: Scope,
    choices: Sequence[TunableConstant],
    tiles: Mapping[int, str] = MappingProxyType({}),
    bare: Collection[str] = (),
    along: Mapping[int, TunableConstant] = MappingProxyType({}),
) -> tuple[str, ...] | None:
    defaults = {**scope.defaults, **{text: size for size, text in tiles.items()}}
    plain = replace(scope, literals={}, defaults=defaults)
    found: list[str] = []
    for axis, text in enumerate(texts):
        own = {} if text in bare else {**tiles, **_with_literals(scope, choices, axis).literals}
        own |= {int(along[axis].default): along[axis].name} if axis in along else {}
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
        if (choice.is_block or choice.axis == axis) and choice.default != 1
        if isinstance(choice.default, int) and choice.default
    }
    # and one that equals what a thread does is what a thread does
    for choice in choices:
        each = choice.axis is None and says(choice.name, "per_thread")
        if each and type(choice.default) is int and choice.default > 1:
            literals.setdefault(choice.default, choice.name)
    return replace(scope, literals=literals)
