"""What an extraction leaves out, each with its place and the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.draft.extract.items import Item, is_marked, says_host
from tuner.draft.extract.reading import Reading

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
    reading: Reading, path: Path, items: Sequence[Item], kept: Sequence[Item]
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


def is_host(item: Item) -> bool:
    """Whether a definition is one for the host alone."""
    if item.kind == "function":
        return "__global__" not in item.head and not is_marked(item.head)
    if item.kind in ("class", "invocation"):
        return says_host(item.code)
    return item.kind == "instantiation" or (item.kind == "macro" and says_host(item.code))


def _called(item: Item) -> str:
    return {"function": "function ", "class": "class "}.get(item.kind, "") + item.name
