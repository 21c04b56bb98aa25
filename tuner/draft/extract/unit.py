"""The head of an extracted unit: where it is from, and the headers that it includes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.draft.extract.headers import standard_library
from tuner.draft.extract.items import SourceItem, is_marked, says_host
from tuner.draft.extract.reading import REMOVED, WRITTEN, Reading
from tuner.source import implied_headers

Place = tuple[Path, int]


@dataclass(slots=True)
class Text:
    """Lines with the file and line that each came from, None for one that was written here."""

    lines: list[str] = field(default_factory=list)
    places: list[Place | None] = field(default_factory=list)

    def add(self, line: str, place: Place | None = None) -> None:
        """Append one line; of blank lines in a row only the first is kept."""
        if line == REMOVED:
            return
        if line.strip() or (self.lines and self.lines[-1].strip()):
            self.lines.append(line.rstrip())
            self.places.append(place)

    def extend(self, lines: Iterable[str]) -> None:
        """Append lines that were written here."""
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
        own = namespace if item.kind == "macro" else item.namespace
        if item.conditions != conditions or own != namespace:
            _close(text, namespace, conditions)
            text.add("")
            text.extend(f"#if {condition}" for condition in item.conditions)
            text.extend(f"namespace {name} {{" for name in own)
            if own:
                text.add("")
            namespace, conditions = own, item.conditions
        elif not _in_a_row(before, item):
            text.add("")
        _add(text, item)
        before = item
    _close(text, namespace, conditions)


def _add(text: Text, item: SourceItem) -> None:
    above = 0 if item.is_made else item.text[: item.lead].count("\n") + 1
    number = item.line - above
    for line in item.text.rstrip("\n").split("\n"):
        is_written = line.startswith(WRITTEN) and line != REMOVED
        number += not (is_written or item.is_made)
        text.add(line.removeprefix(WRITTEN) if is_written else line, (item.path, number))


def _close(text: Text, namespace: tuple[str, ...], conditions: tuple[str, ...]) -> None:
    if namespace:
        text.add("")
    text.extend(f"}}  // namespace {name}" for name in reversed(namespace))
    text.extend("#endif" for _ in conditions)


def _in_a_row(before: SourceItem | None, item: SourceItem) -> bool:
    if before is None:
        return True
    short = "\n" not in item.text.strip() and "\n" not in before.text.strip()
    return short and before.path == item.path and item.line - before.line <= 1


def qualified(text: str, items: Sequence[SourceItem]) -> str:
    """Write the namespaces of names that `items` define, for use outside of them."""
    homes: dict[str, set[tuple[str, ...]]] = {}
    for item in items:
        for name in item.names:
            homes.setdefault(name, set()).add(item.namespace)

    def home(match: re.Match[str]) -> str:
        found = homes.get(match[0], set())
        return "::".join((*next(iter(found)), match[0])) if len(found) == 1 else match[0]

    return re.sub(r"(?<![\w:.])[A-Za-z_]\w*", home, text)


def relocated(text: str, places: Sequence[Place | None], first: int) -> str:
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


# headers that only some code needs, slow to compile or not there on the CPU
_ONLY_WITH = {
    "cub/": r"\bcub\s*::",
    "cooperative_groups": r"\bcooperative_groups\b",
    "cuda/": r"\bcuda\s*::",
    "mma.h": r"\b(?:nvcuda|wmma)\b",
    "cuda_pipeline": r"\b__pipeline\w*",
    "curand": r"\bcurand\w*",
    "cstdio": r"\bprintf\b",
    "stdio.h": r"\bprintf\b",
    "cassert": r"\bassert\b",
    "assert.h": r"\bassert\b",
    "cuda_fp8": r"\b__nv_fp8\w*|\b__NV_\w+|\b__nv_cvt_\w+fp8\w*",
}
# from the system's headers, which nvcc includes first of all
_SYSTEM_TYPES = {"uint": "unsigned int", "ushort": "unsigned short", "ulong": "unsigned long"}
# NVRTC refuses the header that includes all of cub
_CUB = {
    "BlockReduce": "block/block_reduce.cuh",
    "BlockScan": "block/block_scan.cuh",
    "BlockRadixSort": "block/block_radix_sort.cuh",
    "BlockLoad": "block/block_load.cuh",
    "BlockStore": "block/block_store.cuh",
    "BlockExchange": "block/block_exchange.cuh",
    "BlockMergeSort": "block/block_merge_sort.cuh",
    "WarpReduce": "warp/warp_reduce.cuh",
    "WarpScan": "warp/warp_scan.cuh",
    "WarpMergeSort": "warp/warp_merge_sort.cuh",
}


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
    others = [file.name for file in files if file != path]
    where = path.name + (f" with {_listed(others)}" if others else "")
    names = [instance.partition("<")[0] for instance in instances]
    text.extend(_wrapped(f"{_listed(names)}: from {where}, extracted by `tune init`."))
    text.add("")
    plain, standing = standard_library(masked)
    headers = list(dict.fromkeys([*_toolkit(reading, masked), *plain]))
    directives = [f"#include <{header}>" for header in headers]
    implied = implied_headers("\n".join([masked, *instances]), directives)
    text.extend([*directives, *(f"#include <{header}>" for header in implied)])
    text.add("")
    text.extend(standing)
    text.extend(
        f"using {name} = {stands_for};"
        for name, stands_for in _SYSTEM_TYPES.items()
        if re.search(rf"\b{name}\b", masked)
    )
    text.add("")
    return text


def _toolkit(reading: Reading, masked: str) -> Iterator[str]:
    for code in reading.files.values():
        for include in code.included.values():
            name = include.name
            if include.origin != "toolkit":
                continue
            only = next((p for start, p in _ONLY_WITH.items() if name.startswith(start)), None)
            if only is not None and not re.search(only, masked):
                continue
            if name == "cub/cub.cuh":
                used = re.findall(r"\bcub\s*::\s*(\w+)", masked)
                yield from (f"cub/{_CUB[part]}" for part in used if part in _CUB)
            else:
                yield name


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _wrapped(sentence: str) -> Iterator[str]:
    line = "//"
    for word in sentence.split():
        if len(line) + len(word) > 110:
            yield line
            line = "//"
        line += f" {word}"
    yield line


_WHY = {
    "framework": "of a framework",
    "host": "for host code",
    "missing": "not found, and not needed",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of the sources that is not in the extracted unit."""

    path: Path
    line: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Header:
    """A header that was not read, with the #include that asks for it."""

    path: Path
    line: int
    directive: str
    origin: str


def unread(reading: Reading, *origins: str) -> list[Header]:
    """List the headers of these origins that were not read."""
    return [
        Header(code.path, line, str(include), include.origin)
        for code in reading.files.values()
        for line, include in code.included.items()
        if include.origin in origins
    ]


def left_out(
    reading: Reading, path: Path, items: Sequence[SourceItem], kept: Sequence[SourceItem]
) -> Iterator[LeftOut]:
    """List what was left out: headers, branches, host code; what is not needed as one number."""
    yield from _headers(reading)
    for branch in reading.dropped:
        yield LeftOut(branch.path, branch.line, branch.condition, "does not hold here")
    taken = {item.key for item in kept}
    unused: dict[Path, int] = {}
    for item in items:
        if item.key in taken or item.kind in ("directive", "assertion", "using"):
            continue
        if item.path == path and is_host(item):
            yield LeftOut(item.path, item.line, _called(item), "host code")
        else:
            unused[item.path] = unused.get(item.path, 0) + 1
    for place, count in unused.items():
        what = "1 definition" if count == 1 else f"{count} definitions"
        yield LeftOut(place, 1, what, "not needed by the kernel")


def _headers(reading: Reading) -> Iterator[LeftOut]:
    grouped: dict[tuple[Path, str], list[Header]] = {}
    for header in unread(reading, *_WHY):
        grouped.setdefault((header.path, header.origin), []).append(header)
    for (path, origin), headers in sorted(grouped.items()):
        what = ", ".join(header.directive.removeprefix("#include ") for header in headers)
        yield LeftOut(path, headers[0].line, f"#include {what}", _WHY[origin])


def is_host(item: SourceItem) -> bool:
    """Whether a definition is one for the host alone."""
    if item.kind == "function":
        return "__global__" not in item.head and not is_marked(item.head)
    if item.kind in ("class", "invocation"):
        return says_host(item.code)
    return item.kind == "instantiation" or (item.kind == "macro" and says_host(item.code))


def _called(item: SourceItem) -> str:
    return {"function": "function ", "class": "class "}.get(item.kind, "") + item.name
