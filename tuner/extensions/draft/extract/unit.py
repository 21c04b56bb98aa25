"""What an extracted unit holds and how it is written; what of the sources is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from textwrap import wrap

from tuner.extensions.draft.extract.conditions import HEADERS
from tuner.extensions.draft.extract.items import (
    SourceItem,
    chunks,
    is_function,
    items_of,
    says_host,
    without_repeats,
)
from tuner.extensions.draft.extract.names import ARITHMETIC, STAND_INS
from tuner.extensions.draft.extract.reading import REMOVED, WRITTEN, Include, Reading, read_all
from tuner.source.facts import IDENTIFIER
from tuner.source.host import implied_headers, is_marked

SourcePlace = tuple[Path, int]

_CONSTEXPR = re.compile(r"\bconstexpr\b")
_CONSTANT = re.compile(r"\bconst(?:expr|eval)\b")
# NVRTC takes no function that is for the host alone, not even one that nobody calls
_HOST_ONLY = re.compile(r"(?<!__device__ )\b__host__\b(?!\s+(?:__\w+__\s+)*__device__)")
_OF_8_BITS = re.compile(r"_fp8_|\b__NV_E\dM\d\b")
# namespaces of CUDA's own headers
_DEVICE_SCOPES = frozenset(("cooperative_groups", "cub", "nvcuda", "wmma", "cuda", "ptx"))
# where names of C++'s own library are: in what CUDA ships instead, and in what stands for it
_OF_CUDA, _STOOD_FOR = (
    {name: header for header, names in HEADERS[kind].items() for name in names.split()}
    for kind in ("standard", "stood_for")
)
_ANYWHERE = {scope: {*names.split()} for scope, names in HEADERS["anywhere"].items()}
_CUB = re.compile(
    r"(Block(?:Reduce|Scan|RadixSort|Load|Store|Exchange|MergeSort)|Warp(?:Reduce|Scan|MergeSort))"
    r"(?:Algorithm)?\b"
)
_STD = re.compile(r"(?<![\w:])(?:::)?std\s*::\s*(\w+)")
_WHY = {
    "framework": "of a framework",
    "host": "for host code",
    "missing": "not found, and not needed",
}


def device_marks(items: Iterable[SourceItem]) -> frozenset[str]:
    """List the project's macros that put a function on the device."""
    bodies = {item.name: item.code[len(item.head) :] for item in items if item.kind == "macro"}
    found = {name for name, body in bodies.items() if is_marked(body)}
    # and those that stand for one of them alone
    while True:
        more = {name for name, body in bodies.items() if found & {*IDENTIFIER.findall(body)}}
        plain = {name for name in more - found if re.fullmatch(r"[\w\s\\]*", bodies[name])}
        if not plain:
            return frozenset(found)
        found |= plain


@cache
def _stand_ins(header: Path = STAND_INS) -> tuple[SourceItem, ...]:
    reading = read_all(header)
    items = items_of(reading, header)
    named = (item for item in items if item.names or item.kind == "function")
    return tuple(replace(item, path=Path(STAND_INS.name)) for item in named)


def _standing_for(items: Sequence[SourceItem], names: Iterable[str]) -> list[SourceItem]:
    """List what stands for names of a framework that `items` or `names` use and do not define."""
    own = {name for item in items for name in item.names if item.kind != "directive"}
    code = "\n".join([*(item.code for item in items), *names])
    words = {*IDENTIFIER.findall(code)}
    inside = {part for item in items for scope in item.namespace for part in scope.split("::")}
    inside |= {m[1] for m in re.finditer(r"\busing\s+namespace\s+(?:\w+\s*::\s*)*(\w+)", code)}

    homes = {(name, "::".join(item.namespace)) for item in items for name in item.names}

    def is_used(item: SourceItem) -> bool:
        if words.isdisjoint(item.names):
            return False
        if any((name, "::".join(item.namespace)) in homes for name in item.names):
            return False
        scope = "".join(item.namespace).rpartition("::")[2]
        wanted = rf"\b(?:{'|'.join(item.names)})\b"
        is_inside = (not scope or scope in inside) and own.isdisjoint(item.names)
        if is_inside and re.search(rf"(?<!::){wanted}", code):
            return True
        return re.search(rf"\b{scope}\s*::\s*{wanted}", code) is not None

    chosen = [item for item in _stand_ins() if is_used(item)]
    # two that both are seen from within a namespace are ambiguous
    scoped = [item for item in chosen if inside & {*"::".join(item.namespace).split("::")[-1:]}]
    nearer = {name for item in scoped for name in item.names}
    chosen = [item for item in chosen if item.namespace or nearer.isdisjoint(item.names)]
    uses = {(name, item.namespace) for item in chosen for name in item.uses()}
    return [
        item
        for item in _stand_ins()
        if item in chosen or any((name, item.namespace) in uses for name in item.names)
    ]


def select_items(
    items: Sequence[SourceItem],
    kernels: Sequence[SourceItem],
    constants: Iterable[str],
    names: Iterable[str],
    *,
    mixed: bool = False,
) -> list[SourceItem]:
    """List what `kernels` need, in the order of `items`; overloads and specialisations together.

    Of `constants` only values are taken; `names` are others, such as a functor. What stands for a
    framework's names comes first, and with `mixed` its arithmetic of 16-bit floats with others.
    """
    items = [*_standing_for(items, names := list(names)), *items]
    marks = device_marks(items)
    usable = {at: kept for at, item in enumerate(items) if (kept := _usable(item, marks))}
    by_name: dict[str, list[int]] = {}
    # a kernel's own prototype is not needed, and that of an overload makes its name ambiguous
    named = {kernel.names[-1] for kernel in kernels if not kernel.code.startswith("template")}
    for at, item in usable.items():
        if not item.is_kernel and not ("__global__" in item.head and named & {*item.names}):
            for name in item.names:
                by_name.setdefault(name, []).append(at)
    chosen = {id(kernel) for kernel in kernels}
    found = {at for at, item in enumerate(items) if id(item) in chosen}
    stated = [at for name in set(constants) for at in by_name.get(name, ())]
    pending = [*found, *(at for at in stated if usable[at].kind in ("variable", "macro"))]
    pending += [at for name in names for at in by_name.get(name, ())]
    found.update(pending)
    while pending:
        at = pending.pop()
        item = usable.get(at, items[at])
        reached = {place for name in item.uses() for place in by_name.get(name, ())} - found
        found |= reached
        pending += reached
        if not pending:
            pending = _operators(items, usable, found)
            found.update(pending)
    own = [*without_repeats(_in_order(items, usable, found))]
    has_fp8 = any("__nv_fp8" in text for text in (*names, *(item.code for item in own)))
    arithmetic = _stand_ins(ARITHMETIC) if mixed else ()
    fitting = (item for item in arithmetic if has_fp8 or not _OF_8_BITS.search(item.code))
    return [*fitting, *own]


def _in_order(
    items: Sequence[SourceItem], usable: Mapping[int, SourceItem], found: set[int]
) -> list[SourceItem]:
    # with the directives for namespaces of what is found, each behind the first that opens its own
    opened: dict[str, int] = {}
    for at in sorted(found):
        parts = "::".join(items[at].namespace).split("::")
        for end in range(1, len(parts) + 1):
            opened.setdefault("::".join(parts[:end]), at)
    places = {at: (at, 0) for at in found}
    for at, item in enumerate(items):
        if item.kind != "directive":
            continue
        name = item.name.replace(" ", "").removeprefix("::")
        around = "::".join(item.namespace).split("::")
        within = ["::".join([*around[:end], name]) for end in range(len(around), 0, -1)]
        home = next((scope for scope in (*within, name) if scope in opened), None)
        if home is not None:
            places[at] = (max(at, opened[home]), 1)
        elif name.rpartition("::")[2] in _DEVICE_SCOPES and name.partition("::")[0] != "c10":
            places[at] = (at, 0)
    return [usable.get(at, items[at]) for at in sorted(places, key=places.__getitem__)]


def _usable(item: SourceItem, marks: frozenset[str]) -> SourceItem | None:
    if item.kind in ("instantiation", "assertion", "directive"):
        return None
    if item.kind == "macro":
        return item
    if item.kind == "class":
        return _without_host_members(item, marks)
    if item.kind == "function" and is_marked(item.head, marks):
        return item
    plain = item.kind != "function" or _CONSTANT.search(item.head) is not None
    if item.kind == "variable" and "__constant__" not in item.code:
        # NVRTC takes no mark of a function on a constant, as nvcc does
        text, code = (_without_marks(text, marks) for text in (item.text, item.code))
        item = replace(item, text=text, code=code, head=_without_marks(item.head, marks))
    if not plain or says_host(item.code):
        return None
    if item.kind == "function" and (match := _CONSTEXPR.search(item.head)):
        # what the host code had for constants, a class of the unit may ask for
        return item.with_edits([((match.start(), match.start()), "__host__ __device__ ")])
    return item


def _without_marks(text: str, marks: frozenset[str]) -> str:
    return re.sub(rf"\b(?:{'|'.join(['__host__ __device__', *marks])})\b *", "", text)


def _without_host_members(item: SourceItem, marks: frozenset[str]) -> SourceItem | None:
    text, code = (_HOST_ONLY.sub("__host__ __device__", text) for text in (item.text, item.code))
    if not says_host(item.code):
        return replace(item, text=text, code=code)
    start, end = code.find("{", len(item.head)), code.rfind("}")
    if start < 0:
        return None
    item, gone = replace(item, text=text, code=code), []
    for chunk in chunks(code, start + 1, end):
        piece = code[chunk.start : chunk.end]
        if chunk.what != "code" or not says_host(piece):
            continue
        if not is_function(piece[: piece.find("{")]) or is_marked(piece, marks):
            return None
        gone.append(((chunk.start, chunk.end), ""))
    return item.with_edits(gone)


def _operators(
    items: Sequence[SourceItem], usable: dict[int, SourceItem], found: set[int]
) -> list[int]:
    # a + b names no function: its operands' types do
    classes = {name for at in found if items[at].kind == "class" for name in items[at].names}
    return [
        at
        for at, item in usable.items()
        if at not in found
        and item.kind == "function"
        and not item.names
        and classes.intersection(IDENTIFIER.findall(item.head))
    ]


@dataclass(slots=True)
class Text:
    """Lines with the place that each came from, None for one that was written here."""

    lines: list[str] = field(default_factory=list)
    places: list[SourcePlace | None] = field(default_factory=list)

    def add(self, line: str, place: SourcePlace | None = None) -> None:
        """Append one line; of blank lines in a row only the first is kept."""
        if line == REMOVED:
            return
        if line.strip() or (self.lines and self.lines[-1].strip()):
            self.lines.append(line.rstrip())
            self.places.append(place)

    def extend(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.add(line)

    def __str__(self) -> str:
        return "\n".join(self.lines).rstrip("\n") + "\n"


def add_items(text: Text, items: Sequence[SourceItem]) -> None:
    """Append definitions in their namespaces and under their conditions, a blank line between."""
    namespace: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    before: SourceItem | None = None
    for item in items:
        own = item.namespace
        if item.kind == "macro":
            own = namespace if item.conditions == conditions else ()
        if item.conditions != conditions or own != namespace:
            _close(text, namespace, conditions)
            text.add("")
            text.extend(f"#if {condition}" for condition in item.conditions)
            text.extend(f"namespace {name} {{" for name in own)
            if own:
                text.add("")
            namespace, conditions = own, item.conditions
        elif before is not None:
            short = "\n" not in item.text.strip() and "\n" not in before.text.strip()
            if not short or before.path != item.path or item.line - before.line > 1:
                text.add("")
        number = item.line
        if not item.is_made:
            number -= item.text[: item.lead].count("\n") + 1
        for line in item.text.rstrip("\n").split("\n"):
            is_written = line.startswith(WRITTEN) and line != REMOVED
            number += not (is_written or item.is_made)
            text.add(line.removeprefix(WRITTEN) if is_written else line, (item.path, number))
        before = item
    _close(text, namespace, conditions)


def _close(text: Text, namespace: tuple[str, ...], conditions: tuple[str, ...]) -> None:
    if namespace:
        text.add("")
    text.extend(f"}}  // namespace {name}" for name in reversed(namespace))
    text.extend("#endif" for _ in conditions)


def qualify_names(text: str, items: Sequence[SourceItem]) -> str:
    """Write the namespaces of names that `items` define, for use outside of them."""
    homes: dict[str, set[tuple[str, ...]]] = {}
    for item in items:
        for name in item.names:
            homes.setdefault(name, set()).add(tuple("::".join(item.namespace).split("::")))

    def home(match: re.Match[str]) -> str:
        names = tuple(re.split(r"\s*::\s*", match[0]))
        for at, name in enumerate(names):
            # `detail::Traits`, seen from within the namespace around `detail`
            found = [own for own in homes.get(name, ()) if not at or own[-at:] == names[:at]]
            if len(found) == 1:
                return "::".join(filter(None, (*found[0], *names[at:])))
        return match[0]

    return re.sub(r"(?<![\w:.])[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*", home, text)


def relocate_lines(text: str, places: Sequence[SourcePlace | None], first: int) -> str:
    """Write the files' own lines for those at `first` or later in `places`, in comments."""

    def own(match: re.Match[str]) -> str:
        numbers = [int(number) for number in re.findall(r"\d+", match[0])]
        if any(number < first or number > len(places) for number in numbers):
            return match[0]
        found = [place for number in numbers if (place := places[number - 1]) is not None]
        if len(found) < len(numbers):
            return match[0]
        path = found[0][0]
        shown = path.name if path.is_absolute() else path
        return f"line {' and '.join(str(line) for _, line in found)} of {shown}"

    return re.sub(r"\bline \d+(?: and \d+)*", own, text)


def preamble(
    reading: Reading,
    path: Path,
    instances: Sequence[str],
    files: Sequence[Path],
    kept: Sequence[SourceItem],
) -> Text:
    """Begin a unit: a comment that says where it is from, includes, C++'s library for NVRTC."""
    masked = "\n".join(item.code for item in kept)
    text = Text()
    others = [file.name for file in files if file not in (path, Path(STAND_INS.name))]
    where = path.name + (f" with {_list_names(others)}" if others else "")
    names = [instance.partition("<")[0] for instance in instances]
    sentence = f"{_list_names(names)}: from {where}, extracted by `tune init`."
    rows = wrap(sentence, 108, break_long_words=False, break_on_hyphens=False)
    text.extend(f"// {row}" for row in rows)
    text.add("")
    plain, standing = _standard_library(masked)
    # what a framework's headers, or those of other versions of CUDA, bring without being asked
    homes = _OF_CUDA | {name: home for name, home in _STOOD_FOR.items() if home == "cmath"}
    asked = re.findall(r"\bcuda\s*::\s*std\s*::\s*(\w+)", masked)
    of_cuda = sorted({f"cuda/std/{homes[name]}" for name in asked if name in homes})
    headers = list(dict.fromkeys([*_toolkit(reading, masked), *of_cuda, *plain]))
    directives = [f"#include <{header}>" for header in headers]
    implied = implied_headers("\n".join([masked, *instances]), directives)
    text.extend([*directives, *(f"#include <{header}>" for header in implied)])
    text.add("")
    text.extend(standing)
    text.add("")
    return text


def _toolkit(reading: Reading, masked: str) -> Iterator[str]:
    for code in reading.files.values():
        for include in code.included.values():
            name = include.name
            if include.origin != "toolkit":
                continue
            asked = (p for start, p in HEADERS["only_with"].items() if name.startswith(start))
            only = next(asked, None)
            if only is not None and not re.search(only, masked):
                continue
            if name == "cub/cub.cuh":
                yield from _cub(masked)
            else:
                yield name


def _cub(masked: str) -> list[str]:
    # BlockReduce is in block/block_reduce.cuh: all of cub takes two seconds to compile
    used = {match[1] for match in re.finditer(r"\bcub\s*::\s*(\w+)", masked)} - _ANYWHERE["cub"]
    parts = [match for name in sorted(used) if (match := _CUB.match(name))]
    if len(parts) < len(used) or not used:
        return ["cub/cub.cuh"]
    snakes = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).lower() for match in parts]
    return list(dict.fromkeys(f"cub/{snake.partition('_')[0]}/{snake}.cuh" for snake in snakes))


def _standard_library(masked: str) -> tuple[list[str], list[str]]:
    names = {match[1] for match in _STD.finditer(masked)} - _ANYWHERE["std"]
    plain = sorted({_STOOD_FOR[name] for name in names if name in _STOOD_FOR})
    own = {name: _OF_CUDA.get(name, "type_traits") for name in sorted(names - _STOOD_FOR.keys())}
    if not own:
        return plain, []
    headers = sorted(set(own.values()))
    written = {name for item in _stand_ins() if item.namespace == ("std",) for name in item.names}
    return plain, [
        "#ifndef __CUDA_ON_HOST__",
        *(f"#include <cuda/std/{header}>" for header in headers),
        "namespace std {",
        *(f"using ::cuda::std::{name};" for name in own if name not in written),
        "}  // namespace std",
        "#else",
        *(f"#include <{header}>" for header in headers),
        "#endif",
    ]


def _list_names(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def left_out(
    reading: Reading, path: Path, items: Sequence[SourceItem], kept: Sequence[SourceItem]
) -> Iterator[str]:
    """List the headers, branches and host code that are not in the unit, with place and reason."""
    grouped: dict[tuple[Path, str], list[tuple[int, Include]]] = {}
    for file, line, include in reading.list_unread(*_WHY):
        grouped.setdefault((file, include.origin), []).append((line, include))
    for (file, origin), found in sorted(grouped.items()):
        what = ", ".join(str(include).removeprefix("#include ") for _, include in found)
        yield f"{file}:{found[0][0]}: #include {what}: {_WHY[origin]}"
    for file, line, condition in reading.dropped:
        yield f"{file}:{line}: {condition}: does not hold here"
    for flag, (file, line) in reading.flags.items():
        yield f"{file}:{line}: code without {flag}: builds for CUDA define it"
    taken = {item.key for item in kept}
    unused: Counter[Path] = Counter()
    drafted = {item.name for item in kept if item.is_kernel}
    for item in items:
        if item.is_kernel and item.key not in taken and item.name in drafted:
            yield f"{item.path}:{item.line}: kernel {item.name}: an overload for other arguments"
        elif item.key in taken or item.kind in ("directive", "assertion", "using"):
            continue
        if item.path == path and _is_host(item):
            what = f"{item.kind} " if item.kind in ("function", "class") else ""
            yield f"{item.path}:{item.line}: {what}{item.name}: host code"
        else:
            unused[item.path] += 1
    for file, count in unused.items():
        what = "1 definition" if count == 1 else f"{count} definitions"
        yield f"{file}:1: {what}: not needed by the kernel"


def _is_host(item: SourceItem) -> bool:
    if item.kind == "function":
        return "__global__" not in item.head and not is_marked(item.head)
    if item.kind in ("class", "invocation"):
        return says_host(item.code)
    return item.kind == "instantiation" or (item.kind == "macro" and says_host(item.code))
