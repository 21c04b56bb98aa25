"""What a draft proposes to tune: constants, template parameters, the block, bounds, unrolling."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from tuner.extensions.draft.host_values import HostLaunch, names_behind
from tuner.extensions.draft.literals import bare_tiles, literal_tiles
from tuner.extensions.draft.traits import traits_of
from tuner.extensions.draft.unlaunched import BLOCK
from tuner.model.config import RESERVED_NAMES
from tuner.model.expressions import Value
from tuner.source.facts import (
    IDENTIFIER,
    LineIndex,
    Span,
    TemplateParameter,
    bare_name,
    within,
)
from tuner.source.host import Edit
from tuner.source.syntax import fold, number

MAX_THREADS = 1024
PROBLEM_SIZE = "it looks like a problem size"
WARP = 32
_LARGEST = 65_536
_MAX_HOPS = 4
_MIN_BLOCKS = (1, 2, 3, 4)
# Where the source says nothing: a second number 0 of `__launch_bounds__` compiles to the same code.
_FEWEST_BLOCKS = (0, 2, 4, 8)
# Threads of a multiprocessor, at most, on any chip.
_MAX_RESIDENT = 2048
_HARDWARE = "the hardware's warp"
_FIXED = (
    (
        r"(.*_)?WARP_?(SIZE|THREADS|LANES)|WARP|LANES|THREADS_PER_WARP|N_?LANES",
        _HARDWARE,
    ),
    (r".*MASK.*|FULL_WARP|ALL_LANES", "a mask"),
    (
        r"(.*_)?(MODE|KIND|OP|OPERATION|DTYPE|BITS|ACT|ACTIVATION|ORDER|LAYOUT)",
        "it says what is computed, by its name",
    ),
    (r"(.*_)?(EPS|EPSILON|SEED|VERSION|MAGIC|INF|INFINITY|ALIGN|ALIGNMENT|PI)", "no size"),
    (
        r"[A-Z]|(?!.*(TILE|BLOCK|CHUNK)).*(HEAD_?DIM|HEAD_?SIZE|HIDDEN|EXPERTS?|TOP_?K|VOCAB|CHANNELS?|HEADS|HEIGHT|WIDTH"
        r"|BATCH|SEQ_?LEN|GROUP_?SIZE|PAGE_?SIZE|QUANT|D_?CONV|D_?STATE|FILTER|KERNEL_?(SIZE|[HW])"
        r"|RADIUS|RANK|N_?DIMS?|NUM_?DIMS|HALO|BORDER|GHOST|STENCIL).*|Q[KIR]_?\w*\d\w*|SIZE_?[MNK]|DIM_?[A-Z]?",
        PROBLEM_SIZE,
    ),
)
_SWITCH = re.compile(r"(USE|ENABLE|HAS|WITH|DO|IS)_.*|.*_ENABLED?")
# flags of how, not of what
_HOW = re.compile(
    r".*(VEC|SMEM|SHARED|ASYNC|PIPELINE|PREFETCH|CACHE|UNROLL|SWIZZLE|PACK|LDG|HINT|COALESC|STAGE"
    r"|FAST|STREAM|TMA|WARP|BUFFER|PDL).*"
)
# `kIsCircularBuffer` says what the data is, whatever its other words are
_WHAT = re.compile(r"(IS|HAS)_.*")
_OTHER_MEMORY = "launches with its other value ask for other shared memory"
_UNSTATED = "it is a guess, and may say what is computed"
_OTHER_WIDTH = "what moves it has a width of its own"
_WIDTH = re.compile(r"(?!.*(PACKS|VECS)).*(BYTES|VEC|PACK).*")
_MOVED = re.compile(r"[<(]\s*(?:const\s+)?(?:u?int|float|double|longlong)[234]\s*(?:const\s*)?\*")
_ONE_OF_TABLE = "the launch takes one of several, and nothing here says which"
_PASSED = "the launch passes what is computed with it"
_ATTRIBUTE = "it needs a launch with `pdl: true`"
_PDL = re.compile(r"(.*_)?PDL(_.*)?")
_ASKS = "it is compared or masked, and may say what is computed"
_STATED = "the problem has this number too, and may mean it"
_UNTIED = "nothing ties it to how the work is split, and it may say what is computed"
# names of how work is split
_SPLITS = re.compile(
    r".*(TILE|BLOCK|CTA|THREADS|WARPS|CHUNK|STEP|ROWS|COLS|COARS|SPLIT|UNROLL|_PER_).*|[BTW][MNK]"
)
_COMPARED = (
    r"{own}\s*[=!]=\s*\d|[(,;&|!?]\s*\d+\s*[=!]=\s*{own}|\bcase\s+{own}",
    r"(?<![&|])[&|]\s*{own}(?!\s*[-+*/(])|{own}\s*(?:&(?![&=])|\|(?![|=]))(?!\s*\(\s*{own})",
    r"{handed}\s*[=!]=\s*{own}(?!\s*[-+*/<])",
)
_DERIVED = r"(?:#\s*define\s+(\w+)\b(?!\()|\bconst(?:expr)?\b[^;=()]*?(\w+)\s*=)[^;\n]*{own}"
_ASSERTED = re.compile(r"\bstatic_assert\s*\([^;]*;|\btemplate\s*<[^{};()]*>")
_SPLIT = re.compile(
    r"\b(?:block|thread)Idx\b|\b(?:block|grid)Dim\b|__shared__|__launch_bounds__|\bcub::Block"
)
_SIZED = r"(?:__shared__[^;=]*?\[\s*|\bcub::Block\w+\s*<[^;<>]*?,\s*)({})\b"
_MEANING = "it says what is computed, as far as its name tells"
# `threadIdx.x % kLanes`, `lane & (kLanes - 1)`, `tiled_partition<kLanes>`, where lanes exchange
_OF_LANES = r"(?:[%/&]\s*\(?|tiled_partition\s*<\s*){own}"
_EXCHANGED = re.compile(r"__shfl|__reduce_\w+_sync|tiled_partition")
_ASKED = re.compile(
    r"\bblockDim\s*\.\s*([xyz])\b|\b(?:block|cta)\w*\s*(?:\(\s*\))?\s*\.\s*(?:size|num_threads)\s*\("
    r"|\b(?:this_)?grid\w*\s*(?:\(\s*\))?\s*\.\s*(?:thread_rank|size|num_threads)\s*\("
)
_CHOSEN = re.compile(r"\bmin\s*(?:<[^<>()]*>)?\s*\(|\?")
PER_THREAD = re.compile(r".*(VEC|UNROLL|STAGE|ITEMS|PER_THREAD|ILP|ELEMS|DEPTH|PIPELINE).*")


@dataclass(frozen=True, slots=True)
class TunableConstant:
    """One parameter that the draft proposes, with the edits that put it into the template.

    `origin` is its C++ name; `is_block` says that it counts the threads, `axis` which extent it is.
    One that `divides_grid` gives a block the work of so many; `constraints` hold for its values.
    `is_work`: it is what a thread does at once, which the source does not say.
    """

    name: str
    values: tuple[Value, ...]
    default: Value
    note: str
    edits: tuple[Edit, ...]
    origin: str | None = None
    is_block: bool = False
    axis: int | None = None
    divides_grid: bool = False
    constraints: tuple[str, ...] = ()
    is_work: bool = False


@dataclass(frozen=True, slots=True)
class Proposals:
    """The proposed parameters, the numbers left alone and why, and what else changes in the source.

    `instance` lists the template arguments that a launch of the template states, the same for
    every config; None where they are unknown.
    """

    choices: tuple[TunableConstant, ...]
    left: tuple[str, ...]
    edits: tuple[Edit, ...]
    instance: tuple[str, ...] | None


class Names:
    """Hand out names for parameters: snake case, none twice, none that means something else."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self._taken = {*taken, *RESERVED_NAMES}

    def of(self, name: str) -> str:
        """Turn `kBlockSize` or `BLOCK_SIZE` into a free `block_size`."""
        base = snake_case(name)
        base = f"{base}_value" if base in RESERVED_NAMES else base
        free, count = base, 2
        while free in self._taken:
            free, count = f"{base}_{count}", count + 1
        self._taken.add(free)
        return free

    def axis(self, name: str) -> str:
        free = f"{name}_size" if name in self._taken else name
        self._taken.add(free)
        return free


def snake_case(name: str) -> str:
    """Write a C++ name in snake case, without the `k` that marks constants."""
    plain = re.sub(r"^k(?=[A-Z])", "", name)
    if not plain.isupper():
        plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", plain)
    plain = re.sub(r"_+", "_", plain).strip("_").lower()
    return plain if plain and not plain[0].isdigit() else f"p{plain}"


def why_fixed(name: str, value: Value) -> str | None:
    """Say why a constant is not for a tuner to change; None where it may be."""
    if isinstance(value, bool) and _PDL.fullmatch(snake_case(name).upper()):
        return _ATTRIBUTE
    if isinstance(value, bool) or _is_switch(name, value):
        plain = snake_case(name).upper()
        return None if _HOW.fullmatch(plain) and not _WHAT.fullmatch(plain) else _MEANING
    for pattern, reason in _FIXED:
        # of other lanes than a warp has, a row of threads is a choice
        lanes = reason == _HARDWARE and "LANES" in snake_case(name).upper() and value != WARP
        if not lanes and re.fullmatch(pattern, snake_case(name).upper()):
            return reason
    fits = isinstance(value, int) and 1 <= value <= _LARGEST
    return None if fits else "no size"


def propose(
    launch: HostLaunch, axes: Sequence[str], stated: Collection[int] = frozenset()
) -> Proposals:
    """Find what could be tuned in the kernel of `launch`; parameters get no name of an axis.

    `stated` are the whole numbers in the text of the problem that the kernel computes.
    """
    names = Names(axes)
    reached = launch.source.reachable([launch.kernel])
    choices, left = _constants(launch, reached, names, stated)
    choices += _members(launch, choices, names)
    template, edits, instance, fixed = _template(launch, choices, names)
    choices += template
    left = (*left, *fixed)
    if not any(choice.is_block for choice in choices):
        choices += _literals(launch, names)
    choices += _block(launch, choices, names)
    choices = [*_add_launch_bounds(launch, choices, names), *_hints(launch, reached, names)]
    return Proposals(tuple(choices), left, edits, instance)


def _constants(
    launch: HostLaunch, reached: tuple[Span, ...], names: Names, stated: Collection[int]
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
        if reason == PROBLEM_SIZE and any(taken_at_once(masked, name) for masked in texts):
            reason = None
        if name in sized:
            reason = reason or "it is a size of the problem"
        if re.search(rf"#[^\n]*__CUDA_ARCH__[^\n]*\b{name}\b", source.masked):
            reason = reason or "it is compared with the architecture"
        if often[name] > 1:
            reason = reason or "it is defined more than once"
        reason = reason or _why_meant(launch, reached, {name}, value)
        # Of 0 and 1 a problem's text is full: they are its numbers no more than switches are.
        if type(value) is int and value > 1 and value in stated and not _splits_work(name, value):
            reason = reason or _STATED
        if reason is not None:
            left.append(f"{name} = {constant.value} (line {constant.line}) is left out: {reason}")
            continue
        bounds = launch.kernel.bounds
        block = launch.block_names == (name,) or _is_block(name, value)
        block |= bounds is not None and bounds.max_threads == name and launch.block == (value,)
        own, note = names.of(name), f"{name}, line {constant.line}"
        near = _values_for(name, value, block=block)
        edit = Edit(*constant.span, _hole(own))
        choices.append(TunableConstant(own, near, value, note, (edit,), name, block))
    return choices, tuple(left)


def taken_at_once(text: str, name: str) -> list[tuple[str, str]]:
    """List what a thread takes `name` elements of at once: where it begins, and below what.

    `for (int i = threadIdx.x * WIDTH; i < n; i += blockDim.x * WIDTH)`, or `i = thread * WIDTH`.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        return []
    by = rf"[^;=<>]*(?:\bthreadIdx\.x|\))\s*\*\s*{name}\s*;"
    found = re.findall(
        rf"\b(\w+)\s*=\s*{by}\s*\1\s*<\s*([^;&|]+);\s*\1\s*\+=[^;)]*\*\s*{name}\s*\)", text
    )
    starts = re.findall(rf"\b(\w+)\s*=\s*{by}", text)
    for place in starts:
        found += [
            (place, limit)
            for limit in re.findall(rf"\bif\s*\(\s*{place}\s*(?:<|>=)\s*([^;&|]+?)\)", text)
        ]
    return found


def _splits_work(name: str, value: Value) -> bool:
    """Tell by a name in snake case that a number says how work is split: it computes the same."""
    called = snake_case(name).upper()
    split = any(pattern.fullmatch(called) for pattern in (PER_THREAD, _SPLITS))
    return split or _is_block(called, value)


def _why_meant(
    launch: HostLaunch, reached: tuple[Span, ...], names: set[str], value: Value
) -> str | None:
    """Say why a number may be one of the problem: a flag, a rank, so many of something."""
    called = [snake_case(name).upper() for name in names]
    text = "\n".join(launch.source.masked[start:end] for start, end in reached)
    is_row = value == WARP and _EXCHANGED.search(text) is not None
    if is_row and re.search(_OF_LANES.format(own=_any_of(names)), text):
        return _HARDWARE
    if any(map(_WIDTH.fullmatch, called)) and _MOVED.search(text):
        return _OTHER_WIDTH
    if isinstance(value, bool) or any(
        _splits_work(name, value) or _is_switch(name, value) for name in called
    ):
        return None
    text = _ASSERTED.sub(";", text)
    around = names_behind(launch.site.block, launch.definitions)
    counted = (*launch.site.grid, launch.site.shared)
    grid = " ".join([launch.expand(text) for text in counted])
    grid += " ".join(
        launch.definitions.get(name, "") for name in names_behind(counted, launch.site.definitions)
    )
    for one in launch.source.definitions:
        if one.kind == "function" and one.name in launch.names:
            grid += launch.source.masked[slice(*one.span)]
    own = _any_of(names)
    if names & around or re.search(rf"(?:/|,)[^/,;]*?{own}", grid):
        return None
    passed = [p.name for p in launch.kernel.parameters if p.name]
    handed = _any_of([*passed, *(p.name for p in launch.kernel.template)])
    if any(re.search(form.format(own=own, handed=handed), text) for form in _COMPARED):
        return _ASKS
    # and what is computed from it: `constexpr int per_pack = pack_bytes / sizeof(T);`
    for _ in range(2):
        own = _any_of(names | {m[1] or m[2] for m in re.finditer(_DERIVED.format(own=own), text)})
    pieces = (piece for piece in re.split(r"[;{}]", text) if re.search(own, piece))
    plain = (p if "__shared__" in p else re.sub(r"\[[^\[\]]*\]", "", p) for p in pieces)
    tied = any(map(_SPLIT.search, plain))
    threads = _any_of(["threadIdx", *re.findall(r"(\w+)\s*=[^;=]*\bthreadIdx\b", text)])
    steps = rf"(?:\+=|<\s*\w+\s*/)[^;)\[]*?{own}|#pragma unroll[^\n]*{own}"
    for counter in re.findall(rf"(\w+)\s*<\s*{own}", text):
        # `k < EACH` where a thread goes from `k * CREW` to the next
        steps += rf"|\b{counter}\s*\*\s*{_any_of({*around, 'blockDim'})}"
    split = re.search(rf"{steps}|{threads}[.\w)]*\s*[/%]\s*{own}", text)
    return None if split or tied else _UNTIED


def _any_of(names: Iterable[str]) -> str:
    return rf"\b(?:{'|'.join(map(re.escape, names))})\b"


def _literals(launch: HostLaunch, names: Names) -> Iterator[TunableConstant]:
    # the number itself is the origin: the launch has it too
    for one in literal_tiles(launch):
        block, own = one.counts == "block_size", names.of(one.counts)
        line = LineIndex(launch.source.masked).at(one.instead[0][0][0])
        near = _values_for(one.counts, one.size, block=block)
        edits = tuple(Edit(*span, form.format(_hole(own))) for span, form in one.instead)
        note, origin = f"{one.size}, line {line}", str(one.size)
        yield TunableConstant(own, near, one.size, note, edits, origin, block)


def _members(
    launch: HostLaunch, constants: Sequence[TunableConstant], names: Names
) -> Iterator[TunableConstant]:
    # numbers of a class that is a template argument
    traits = traits_of(launch.source.masked, launch.kernel, launch.instance or ())
    taken = {choice.origin for choice in constants}
    for member, span in traits.places.items():
        value = number(traits.numbers[member])
        if member in taken or value is None or why_fixed(member, value) is not None:
            continue
        if not _is_block(member, value) and not PER_THREAD.fullmatch(snake_case(member).upper()):
            continue
        own, block = names.of(member), _is_block(member, value)
        line = LineIndex(launch.source.masked).at(span[0])
        near = _values_for(member, value, block=block)
        note, edit = f"{member}, line {line}", Edit(*span, _hole(own))
        yield TunableConstant(own, near, value, note, (edit,), member, block)


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
        if value is None or parameter.is_type or text in named:
            continue
        reason = why_fixed(parameter.name, value if parameter.kind != "bool" else bool(value))
        if reason is None and passed & {parameter.name, *IDENTIFIER.findall(stated[index])}:
            reason = _PASSED
        if reason is None:
            reason = _why_bound(launch, parameter, index, value)
        if reason is None:
            own = {parameter.name, *IDENTIFIER.findall(stated[index])}
            reason = _why_meant(launch, launch.source.reachable([launch.kernel]), own, value)
        if type(value) is int and is_asked(launch, stated[index]):
            # what a condition compares it with has to follow
            reason = None if reason == _UNTIED else reason
        if reason is None:
            lifted[index] = value
        elif reason in (
            _MEANING,
            _PASSED,
            _ATTRIBUTE,
            _OTHER_MEMORY,
            _UNSTATED,
            _ASKS,
            _UNTIED,
            _ONE_OF_TABLE,
            _OTHER_WIDTH,
        ):
            name = f"{parameter.name} = {launch.value(text)} (line {parameter.line})"
            left.append(f"{name} is left out: {reason}")
    first = next((i for i, text in enumerate(instance) if i in lifted or text in named), None)
    if first is None:
        return [], (), instance, left
    choices, edits = [], []
    for index, parameter in enumerate(launch.kernel.template[first:], first):
        if index in lifted:
            choices.append(_template_choice(parameter, lifted[index], index, launch, names))
        elif parameter.default != instance[index]:
            edits.append(_default(parameter, instance[index]))
    return choices, tuple(edits), instance[:first], left


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
    named = PER_THREAD.fullmatch(snake_case(parameter.name).upper())
    is_guess = parameter.name in launch.site.guessed
    return _UNSTATED if is_guess and not named and not _is_block(parameter.name, value) else None


def _template_choice(
    parameter: TemplateParameter, value: int | bool, index: int, launch: HostLaunch, names: Names
) -> TunableConstant:
    stated = {n for text in launch.template_values(index) if (n := number(text)) is not None}
    block = _is_block(parameter.name, value) or (value,) == launch.block
    name = names.of(parameter.name)
    near = _values_for(parameter.name, value, block=block)
    if len(stated) > 2:
        near = tuple(sorted(stated))
    elif block and len(stated) > 1:
        near = _between(*sorted(stated))
    return TunableConstant(
        name=name,
        values=near,
        default=bool(value) if parameter.kind == "bool" else value,
        note=f"{parameter.name}, line {parameter.line}",
        edits=(_default(parameter, _hole(name)),),
        origin=parameter.name,
        is_block=block,
    )


def _block(
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
        name, near = names.of("block_size"), _block_values(threads)
        if launch.guessed:
            near = tuple(launch.candidates) or near
        # arrays and CUB's types that have the block's size as a number follow it
        sized, masked = re.compile(_SIZED.format(threads)), launch.source.masked
        spans = launch.source.reachable([launch.kernel])
        found = {match.span(1) for span in spans for match in sized.finditer(masked, *span)}
        edits = tuple(Edit(*at, _hole(name)) for at in sorted(found))
        yield TunableConstant(name, near, threads, note, edits, is_block=True, axis=0)
        return
    for axis, extent in enumerate(extents):
        if extent > 1 and "xyz"[axis] in asked and len(extents) > 1:
            name = names.of(f"block_{'xyz'[axis]}")
            near = _values_for(name, extent, block=False)
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
        values = (0, *_between(2 * WARP, MAX_THREADS))
        yield TunableConstant(names.of("block_size"), values, 0, note, (), is_block=True, axis=0)


def _between(least: int, most: int) -> tuple[int, ...]:
    doubled = (least << step for step in range(MAX_THREADS.bit_length()))
    return tuple(sorted({*(value for value in doubled if value <= most), most}))


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
    lifted = {choice.axis for choice in free}
    fixed = [str(e) for axis, e in enumerate(launch.block) if axis not in lifted and e > 1]
    one = len(free) == 1 and free[0].is_block
    factors = [*map(_threads_of, free), *([] if one else fixed)]
    factors = factors if free else _named_extents(launch, choices)
    if not factors:
        return choices
    hole = _hole(" * ".join(factors))
    edits: list[Edit] = []
    more: list[TunableConstant] = []
    if bounds is None or not bounds.min_blocks:
        name = names.of("min_blocks")
        note = f"blocks that registers must leave room for; 0: not said, line {launch.kernel.line}"
        fits = f"{name} * {' * '.join(factors)} <= {_MAX_RESIDENT}"
        more = [TunableConstant(name, _FEWEST_BLOCKS, 0, note, (), constraints=(fits,))]
    least = f", {_hole(more[0].name)}" if more else ""
    if bounds is None:
        at = launch.kernel.name_at
        edits.append(Edit(at, at, f"__launch_bounds__({hole}{least}) "))
    elif free:
        edits.append(Edit(*bounds.max_threads_span, f"{hole}{least}"))
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


def _hints(
    launch: HostLaunch, reached: tuple[Span, ...], names: Names
) -> Iterator[TunableConstant]:
    bounds = launch.kernel.bounds
    if bounds is not None and bounds.min_blocks_span is not None:
        blocks = number(bounds.min_blocks or "")
        if isinstance(blocks, int) and blocks > 0:
            name, note = names.of("min_blocks"), f"__launch_bounds__, line {bounds.line}"
            edit = Edit(*bounds.min_blocks_span, _hole(name))
            yield TunableConstant(
                name, tuple(sorted({*_MIN_BLOCKS, blocks})), blocks, note, (edit,)
            )
    for unroll in launch.source.unrolls:
        factor, span = number(unroll.factor or ""), unroll.span
        if span is not None and factor and within(span[0], reached):
            name, note = names.of("unroll"), f"#pragma unroll, line {unroll.line}"
            values = _values_for(name, factor, block=False)
            yield TunableConstant(name, values, factor, note, (Edit(*span, _hole(name)),))


def _hole(expression: str) -> str:
    return f"@{{ {expression} }}@"


def _default(parameter: TemplateParameter, text: str) -> Edit:
    end = parameter.span[1]
    if parameter.default is not None:
        return Edit(end - len(parameter.default), end, text)
    return Edit(end, end, f" = {text}")


def _is_switch(name: str, value: Value) -> bool:
    switch = _SWITCH.fullmatch(snake_case(name).upper()) is not None
    return isinstance(value, bool) or (value in (0, 1) and switch)


def _is_block(name: str, value: Value) -> bool:
    named = BLOCK.fullmatch(snake_case(name).upper()) is not None
    return named and isinstance(value, int) and WARP <= value <= MAX_THREADS and value % WARP == 0


def warp_threads(choice: TunableConstant) -> int:
    """Give the threads of the warps that a parameter counts, by its name; 0 for any other."""
    is_count = choice.origin is not None and "warps" in choice.name
    return int(choice.default) * WARP if is_count and isinstance(choice.default, int) else 0


def _values_for(name: str, value: int, *, block: bool) -> tuple[Value, ...]:
    # the value and sensible neighbours, in ascending order
    if _is_switch(name, value):
        return (False, True) if isinstance(value, bool) else (0, 1)
    if block:
        return _block_values(value)
    if "LANES" in name.upper() and value & (value - 1) == 0:
        return tuple(lanes for lanes in (1, 2, 4, 8, 16, 32) if value // 4 <= lanes <= 4 * value)
    small = value <= 16 and (value <= 4 or PER_THREAD.fullmatch(snake_case(name).upper()))
    if small and value & (value - 1) == 0:
        near = {value // 4, value // 2, value, value * 2, value * 4}
        return tuple(sorted(v for v in near if 1 <= v <= 16))
    return tuple(sorted({max(value // 2, 1), value, value * 2}))


def _block_values(threads: int) -> tuple[Value, ...]:
    near = {threads // 4, threads // 2, threads, threads * 2, threads * 4}
    if threads & (threads - 1):
        near |= {128, 256, 512}
    fitting = {v for v in near if WARP <= v <= MAX_THREADS and v % WARP == 0}
    return tuple(sorted(fitting | {threads}))
