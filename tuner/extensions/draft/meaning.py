"""What a number of a source means by its name and its uses: why it is none to tune."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tuner.extensions.draft.guesses import NAMES
from tuner.extensions.draft.host_values import HostLaunch, names_behind
from tuner.model.expressions import Value
from tuner.source.facts import Span

MAX_THREADS = 1024
PROBLEM_SIZE = "it looks like a problem size"
WARP = 32
_LARGEST = 65_536
_HARDWARE = "the hardware's warp"
OTHER_WIDTH = "what moves it has a width of its own"
_MOVED = re.compile(r"[<(]\s*(?:const\s+)?(?:u?int|float|double|longlong)[234]\s*(?:const\s*)?\*")
ATTRIBUTE = "it needs a launch with `pdl: true`"
ASKS = "it is compared or masked, and may say what is computed"
UNTIED = "nothing ties it to how the work is split, and it may say what is computed"
_COMPARED = (
    r"(?<![%*/+-])(?<![%*/+-]\s){own}\s*[=!]=\s*\d|[(,;&|!?]\s*\d+\s*[=!]=\s*{own}|\bcase\s+{own}",
    r"(?<![&|])[&|]\s*{own}(?!\s*[-+*/(])|{own}\s*(?:&(?![&=])|\|(?![|=]))(?!\s*\(\s*{own})",
    r"{handed}\s*[=!]=\s*{own}(?!\s*[-+*/<])",
)
_DERIVED = r"(?:#\s*define\s+(\w+)\b(?!\()|\bconst(?:expr)?\b[^;=()]*?(\w+)\s*=)[^;\n]*{own}"
_ASSERTED = re.compile(r"\bstatic_assert\s*\([^;]*;|\btemplate\s*<[^{};()]*>")
_SPLIT = re.compile(
    r"\b(?:block|thread)Idx\b|\b(?:block|grid)Dim\b|__shared__|__launch_bounds__|\bcub::Block"
)
MEANING = "it says what is computed, as far as its name tells"
# `threadIdx.x % kLanes`, `lane & (kLanes - 1)`, `tiled_partition<kLanes>`, where lanes exchange
_OF_LANES = r"(?:[%/&]\s*\(?|tiled_partition\s*<\s*){own}"
_EXCHANGED = re.compile(r"__shfl|__reduce_\w+_sync|tiled_partition")
_NUMBERS = {kind: re.compile(names) for kind, names in NAMES["numbers"].items()}


def snake_case(name: str) -> str:
    """Write a C++ name in snake case, without the `k` that marks constants."""
    plain = re.sub(r"^k(?=[A-Z])", "", name)
    if not plain.isupper():
        plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", plain)
    plain = re.sub(r"_+", "_", plain).strip("_").lower()
    return plain if plain and not plain[0].isdigit() else f"p{plain}"


def says(name: str, kind: str) -> bool:
    """Tell whether a number's name says what a kind of names.toml does, such as `per_thread`."""
    return _NUMBERS[kind].fullmatch(snake_case(name).upper()) is not None


def why_fixed(name: str, value: Value) -> str | None:
    """Say why a constant is not for a tuner to change; None where it may be."""
    if isinstance(value, bool) and says(name, "early_launch"):
        return ATTRIBUTE
    if is_switch(name, value):
        return None if says(name, "how") and not says(name, "what") else MEANING
    for pattern, reason in NAMES["fixed"]:
        # of other lanes than a warp has, a row of threads is a choice
        lanes = reason == _HARDWARE and "LANES" in snake_case(name).upper() and value != WARP
        if not lanes and re.fullmatch(pattern, snake_case(name).upper()):
            return str(reason)
    fits = isinstance(value, int) and 1 <= value <= _LARGEST
    return None if fits else "no size"


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
    found += [("", limit) for limit in re.findall(rf"\)\s*\*\s*{name}\s*<\s*(\w+)\s*[;)]", text)]
    starts = re.findall(rf"\b(\w+)\s*=\s*{by}", text)
    for place in starts:
        found += [
            (place, limit)
            for limit in re.findall(rf"\bif\s*\(\s*{place}\s*(?:<|>=)\s*([^;&|]+?)\)", text)
        ]
    return found


def splits_work(name: str, value: Value) -> bool:
    """Tell by a name in snake case that a number says how work is split: it computes the same."""
    return says(name, "per_thread") or says(name, "split") or is_block(name, value)


def why_meant(
    launch: HostLaunch, reached: tuple[Span, ...], names: set[str], value: Value
) -> str | None:
    """Say why a number may be one of the problem: a flag, a rank, so many of something."""
    # a macro ends at its line, whatever is joined to it
    text = ";\n".join(launch.source.masked[start:end] for start, end in reached)
    is_row = value == WARP and _EXCHANGED.search(text) is not None
    if is_row and re.search(_OF_LANES.format(own=_any_of(names)), text):
        return _HARDWARE
    # `pack_t<T, kVec> v;`: a class that moves so many, whatever it is made of
    is_class = re.search(rf"\b\w+\s*<[^<>;(]*{_any_of(names)}\s*>", launch.body)
    moved = launch.body if is_class else text
    if any(says(name, "width") for name in names) and _MOVED.search(moved):
        return OTHER_WIDTH
    if any(splits_work(name, value) or is_switch(name, value) for name in names):
        return None
    text = _ASSERTED.sub(";", text)
    around = names_behind(launch.site.block, launch.definitions)
    counted = (*launch.site.grid, launch.site.shared)
    grid = " ".join([*counted, *(launch.expand(text) for text in counted)])
    grid += " ".join(
        launch.definitions.get(name, "") for name in names_behind(counted, launch.site.definitions)
    )
    for definition in launch.source.definitions:
        if definition.kind == "function" and definition.name in launch.names:
            grid += launch.source.masked[slice(*definition.span)]
    own = _any_of(names)
    if names & around or re.search(rf"(?:/|,)[^/,;]*?{own}", grid):
        return None
    passed = [p.name for p in launch.kernel.parameters if p.name]
    handed = _any_of([*passed, *(p.name for p in launch.kernel.template)])
    if any(re.search(form.format(own=own, handed=handed), text) for form in _COMPARED):
        return ASKS
    # and what is computed from it: `constexpr int per_pack = pack_bytes / sizeof(T);`
    for _ in range(2):
        own = _any_of(names | {m[1] or m[2] for m in re.finditer(_DERIVED.format(own=own), text)})
    # `if (k < BINS) bins[k] = 0;`: an array that is handed over has so many
    for counter in re.findall(rf"\b(\w+)\s*<\s*{own}\s*[;)&]", text):
        if re.search(rf"{_any_of(passed)}\s*\[\s*{counter}\s*\]", text):
            return PROBLEM_SIZE
    pieces = (piece for piece in re.split(r"[;{}]", text) if re.search(own, piece))
    plain = (p if "__shared__" in p else re.sub(r"\[[^\[\]]*\]", "", p) for p in pieces)
    tied = any(map(_SPLIT.search, plain))
    threads = _any_of(["threadIdx", *re.findall(r"(\w+)\s*=[^;=]*\bthreadIdx\b", text)])
    steps = rf"(?:\+=|<\s*\w+\s*/)[^;)\[]*?{own}|#pragma unroll[^\n]*{own}"
    for counter in re.findall(rf"(\w+)\s*<\s*{own}", text):
        # `k < EACH` where a thread goes from `k * CREW` to the next
        steps += rf"|\b{counter}\s*\*\s*{_any_of({*around, 'blockDim'})}"
    split = re.search(rf"{steps}|{threads}[.\w)]*\s*[/%]\s*{own}", text)
    return None if split or tied else UNTIED


def _any_of(names: Iterable[str]) -> str:
    return rf"\b(?:{'|'.join(map(re.escape, names))})\b"


def is_switch(name: str, value: Value) -> bool:
    return isinstance(value, bool) or (value in (0, 1) and says(name, "switch"))


def is_block(name: str, value: Value) -> bool:
    fits = isinstance(value, int) and WARP <= value <= MAX_THREADS and value % WARP == 0
    return fits and says(name, "block")
