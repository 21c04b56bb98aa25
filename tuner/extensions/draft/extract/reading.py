"""Read a source and the project's headers that it includes, as a CUDA compiler would see them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tuner.extensions.draft.extract.conditions import (
    DIRECTIVE,
    HEADERS,
    PLATFORM_FLAG,
    PREDEFINED,
    TYPE_FLAG,
    holds,
)
from tuner.extensions.draft.extract.names import Macro, expand_macro, macros_in, replace_names
from tuner.extensions.draft.extract.project import in_project, includes_of
from tuner.model.errors import KernelError
from tuner.source.facts import IDENTIFIER
from tuner.source.host import Edit, apply_edits
from tuner.source.reader import source_text
from tuner.source.syntax import closing, listed, mask
from tuner.source.unsupported import require_cuda

_NAMED = re.compile(r"#\s*include(?:_next)?\s*(?:<(?P<angled>[^>\n]+)>|\"(?P<quoted>[^\"\n]+)\")")
_TOOLKIT, _FRAMEWORK, _HOST = (
    re.compile("|".join(HEADERS["origins"][origin])) for origin in ("toolkit", "framework", "host")
)
_DEVICE_CODE = re.compile(r"__(?:device|global)__|\bC10_(?:HOST_)?DEVICE\b")
# how far above a file a folder `include` is looked for
_LEVELS = 5

Origin = Literal["own", "toolkit", "framework", "host", "missing"]


@dataclass(frozen=True, slots=True)
class Include:
    """One #include: what it names, and where that is if it is a file of the project.

    One `is_searched` where no folder of the build tells, and the project has a header of that name.
    """

    name: str
    quoted: bool
    origin: Origin
    path: Path | None = None
    is_searched: bool = False

    def __str__(self) -> str:
        marks = '""' if self.quoted else "<>"
        return f"#include {marks[0]}{self.name}{marks[1]}"


def parsed_include(directive: str) -> tuple[str, bool] | None:
    """Read the name in an #include and whether it is quoted; None where a macro stands for it."""
    match = _NAMED.match(directive.strip())
    if match is None:
        return None
    return match["quoted"] or match["angled"], match["quoted"] is not None


def resolve_include(name: str, quoted: bool, includer: Path, folders: tuple[Path, ...]) -> Include:
    """Look in the includer's folder, `folders`, each `include` above, then in the whole project."""
    places = _places(includer, quoted, folders)
    path = next((place / name for place in places if (place / name).is_file()), None)
    if path is not None and (not _FRAMEWORK.match(name) or _is_for_device(path)):
        shown = path if includer.is_absolute() else Path(os.path.relpath(path))
        return Include(name, quoted, "own", shown)
    origin: Origin = "missing"
    if _TOOLKIT.fullmatch(name):
        origin = "toolkit"
    elif _FRAMEWORK.match(name):
        origin = "framework"
    elif not quoted and _HOST.fullmatch(name):
        origin = "host"
    elif (path := in_project(name, includer)) is not None:
        return Include(name, quoted, "own", path, is_searched=True)
    return Include(name, quoted, origin)


def _is_for_device(header: Path) -> bool:
    # of a framework's headers, which can be thousands, those that hold code for a GPU
    with suppress(KernelError):
        return header.suffix == ".cuh" or _DEVICE_CODE.search(source_text(header)) is not None
    return False


def is_plain(name: str, quoted: bool) -> bool:
    """Whether a header is the toolkit's or the host compiler's, as plain CUDA files have them."""
    # helper_*.h are of CUDA's samples, for their host code
    plain = re.fullmatch(r"helper_\w+\.h", name) or _TOOLKIT.fullmatch(name)
    host = not quoted and _HOST.fullmatch(name)
    return bool(plain or host)


def _places(includer: Path, quoted: bool, folders: tuple[Path, ...]) -> Iterator[Path]:
    folder = includer.parent
    if quoted:
        yield folder
    yield from folders
    above = folder.resolve()
    for place in (above, *above.parents[:_LEVELS]):
        yield place / "include"
        if (place / ".git").exists():
            yield place
            break
    # a build may have the folder itself among its folders
    yield folder


_LONE_NAME = re.compile(r"^[ \t]*([A-Z][A-Z0-9_]{4,})[ \t]*;?[ \t]*$", re.MULTILINE)
_DEFINE = re.compile(r"(\w+)(\([^)]*\))?[ \t]*(.*)", re.DOTALL)
_GUARD = re.compile(r"\s*#[ \t]*ifndef[ \t]+(\w+)\s*\n\s*#[ \t]*define[ \t]+\1\b")
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)
# stands in a line that a condition rules out: white space, but not a blank line of the source
REMOVED = "\v"
# begins a line that the source does not have
WRITTEN = "\v"


@dataclass(frozen=True, slots=True)
class SourceCode:
    """One file without the branches that do not hold; lines keep their numbers.

    `included` maps lines to #includes, of a file of the project the first that is read.
    """

    path: Path
    text: str
    masked: str
    included: dict[int, Include]

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1


@dataclass(slots=True)
class Reading:
    """All files of a source, itself the last; `dropped` are the conditions that do not hold.

    `flags` are names that a build for CUDA defines and no file does, `halves` macros that open or
    close braces: `KIT_NAMESPACE_BEGIN`. `pending` are the files around the one that is being read.
    """

    folders: tuple[Path, ...]
    files: dict[Path, SourceCode] = field(default_factory=dict)
    dropped: list[tuple[Path, int, str]] = field(default_factory=list)
    flags: dict[str, tuple[Path, int]] = field(default_factory=dict)
    halves: dict[str, Macro] = field(default_factory=dict)
    pending: set[Path] = field(default_factory=set)
    macros: dict[str, str | None] = field(default_factory=lambda: dict(PREDEFINED))

    def list_unread(self, *origins: str) -> list[tuple[Path, int, Include]]:
        """List the #includes of these origins whose headers were not read, with their places."""
        return [
            (code.path, line, include)
            for code in self.files.values()
            for line, include in code.included.items()
            if include.origin in origins
        ]

    def searched_headers(self) -> list[Path]:
        """List the headers that were found by their names alone."""
        includes = (include for code in self.files.values() for include in code.included.values())
        return [i.path for i in includes if i.is_searched and i.path is not None]


# where the macros of a build stand, as if they were a file
BUILD = Path("the build")


@dataclass(slots=True)
class _Group:
    # one #if to #endif: is its present branch read, did one hold for certain, is any left open
    outer: bool
    live: bool = False
    is_taken: bool = False
    is_open: bool = False


def read_all(
    path: Path,
    folders: tuple[Path, ...] = (),
    siblings: tuple[Path, ...] = (),
    defined: frozenset[str] = frozenset(),
) -> Reading:
    """Read a source and its headers; raise `KernelError` for what cannot be read or has no end.

    `siblings` are further files of the project; those that cannot be read are left out. `defined`
    are macros that a build defines, `NAME` or `NAME=VALUE`.
    """
    for folder in folders:
        if not folder.is_dir():
            remedy = "give --include a folder of headers"
            raise KernelError("is not a folder", path=folder, remedy=remedy)
    require_cuda(path, source_text(path))
    reading = Reading(folders)
    pairs = [(name, value or "1") for name, _, value in (one.partition("=") for one in defined)]
    reading.macros.update(pairs)
    stated = "".join(f"#define {name} {value}\n" for name, value in sorted(pairs))
    reading.files[BUILD.resolve()] = SourceCode(BUILD, stated, mask(stated), {})
    # a header may go by what its includer has before it
    including = [path]
    for sibling in siblings:
        include = includes_of(including)
        including[:0] = [sibling] if include.search(source_text(sibling)) else []
    for file in dict.fromkeys((*including, *siblings)):
        with nullcontext() if file == path else suppress(KernelError):
            if file.resolve() not in reading.files:
                _read(file, reading, ())
    return reading


def _read(path: Path, reading: Reading, chain: tuple[tuple[Path, int], ...]) -> None:
    reader = _Preprocessor(path, reading, chain)
    whole = path.resolve()
    reading.pending.add(whole)
    reader.read()
    reading.pending.remove(whole)
    text = _whole("\n".join(reader.lines), reading.halves)
    text = _without_scopes_of_others(text, reading.macros)
    text = replace_names(text, mask(text), frozenset(reading.macros))
    reading.files[whole] = SourceCode(path, text, mask(text), reader.included)


def _without_scopes_of_others(text: str, macros: Mapping[str, str | None]) -> str:
    # macros alone in a line that open or close a namespace, of headers that are not there
    lone = (m for m in _LONE_NAME.finditer(mask(text)) if "NAMESPACE" in m[1])
    return apply_edits(text, (Edit(*match.span(), "") for match in lone if match[1] not in macros))


def _whole(text: str, halves: Mapping[str, Macro]) -> str:
    # with macros written out that would leave a definition in pieces
    if not halves:
        return text
    masked, edits, at = mask(text), [], 0
    for match in re.finditer(rf"^[ \t]*#.*|\b({'|'.join(halves)})\b[ \t]*", masked, re.MULTILINE):
        if match[1] is None or match.start() < at:
            continue
        macro, end = halves[match[1]], match.end()
        arguments: tuple[str, ...] = ()
        if macro.parameters is not None:
            start, end = end, closing(masked, end) or 0 if masked.startswith("(", end) else 0
            arguments = listed(text[start:end], 0)[0] if end else ()
        if end:
            made = expand_macro(macro, arguments, halves, with_code=True)
            others = {name: one for name, one in halves.items() if name != match[1]}
            lines = "\n" * masked.count("\n", match.start(), end)
            edits.append(Edit(match.start(), at := end, _whole(made, others) + lines))
    return apply_edits(text, edits)


class _Preprocessor:
    def __init__(self, path: Path, reading: Reading, chain: tuple[tuple[Path, int], ...]) -> None:
        self.path, self.reading, self.chain = path, reading, chain
        text = source_text(path).replace("\r\n", "\n")
        self.lines, self.masked = text.split("\n"), mask(text).split("\n")
        self.groups: list[_Group] = []
        self.included: dict[int, Include] = {}

    @property
    def is_live(self) -> bool:
        return all(group.live for group in self.groups)

    def read(self) -> None:
        at = 0
        while at < len(self.lines):
            end = at + 1
            match = DIRECTIVE.match(self.masked[at])
            if match is not None:
                while end < len(self.lines) and self.lines[end - 1].endswith("\\"):
                    end += 1
                self.directive(match[1], at, end)
            elif not self.is_live:
                self.lines[at] = REMOVED
            at = end
        if self.groups:
            message = "has an #if without its #endif"
            raise KernelError(message, path=self.path, remedy="close it with #endif")

    def directive(self, name: str, at: int, end: int) -> None:
        joined = "\n".join(row.removesuffix("\\") for row in self.masked[at:end])
        match = DIRECTIVE.match(joined)
        rest = match[2].strip() if match else ""
        if name in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            self.condition(name, rest, at, end)
            return
        if not self.is_live:
            self.blank(at, end)
        elif name == "include":
            self.include(at)
        elif name == "define" and (defined := _DEFINE.match(rest)):
            value = defined[3].strip() if not defined[2] else ""
            is_certain = not any(group.is_open for group in self.groups)
            self.reading.macros[defined[1]] = value if is_certain else None
            if defined[3].count("{") != defined[3].count("}"):
                self.reading.halves |= macros_in("\n".join(self.masked[at:end]))
        elif name == "undef":
            self.reading.macros.pop(rest, None)
        elif name == "pragma" and rest == "once":
            self.blank(at, end)

    def condition(self, name: str, rest: str, at: int, end: int) -> None:
        if name in ("if", "ifdef", "ifndef"):
            self.groups.append(_Group(self.is_live))
        elif not self.groups:
            message = f"has an #{name} without its #if"
            raise KernelError(message, path=self.path, line=at + 1, remedy="remove it")
        group = self.groups[-1]
        if name == "endif":
            self.groups.pop()
            if not group.is_open:
                self.blank(at, end)
            return
        asked = {"ifdef": f"defined({rest})", "ifndef": f"!defined({rest})", "else": "1"}
        condition = asked.get(name, rest)
        was_open, value = group.is_open, None
        if not group.outer or group.is_taken:
            value = False
        else:
            value = holds(condition, self.define_flags(condition, at))
            group.is_taken, group.is_open = value is True, was_open or value is None
        group.live = group.outer and value is not False
        if value is not None:
            self.blank(at, end)
            if value and was_open:
                self.lines[at] = "#else"
        elif name == "elif" and not was_open:
            self.lines[at] = self.lines[at].replace("elif", "if", 1)
        if value is False and group.outer:
            self.reading.dropped.append((self.path, at + 1, f"#{name} {rest}".strip()))

    def define_flags(self, condition: str, at: int) -> Mapping[str, str | None]:
        macros = self.reading.macros
        is_flag = PLATFORM_FLAG.fullmatch
        undefined = [name for name in IDENTIFIER.findall(condition) if name not in macros]
        types = [n for n in undefined if TYPE_FLAG.fullmatch(n) and not self.is_choice(at)]
        found = [name for name in undefined if is_flag(name) or name in types]
        for name in found:
            self.reading.flags.setdefault(name, (self.path, at + 1))
        return {**macros, **dict.fromkeys(found, "1")}

    def is_choice(self, at: int) -> bool:
        # is it one of several, of which a build chooses one?
        depth = 0
        for row in self.masked[at:]:
            match = DIRECTIVE.match(row)
            name = match[1] if match else ""
            depth += name.startswith("if") - (name == "endif")
            if depth == 1 and name == "elif":
                return True
            if depth <= 0 and name:
                return name == "elif"
        return False

    def blank(self, at: int, end: int) -> None:
        self.lines[at:end] = [REMOVED] * (end - at)

    def include(self, at: int) -> None:
        parsed = parsed_include(self.lines[at])
        if parsed is None:
            return
        found = resolve_include(*parsed, self.path, self.reading.folders)
        if found.path is None:
            self.included[at + 1] = found
            return
        chain = (*self.chain, (self.path, at + 1))
        whole = found.path.resolve()
        if whole in self.reading.pending:
            start = next(i for i, (path, _) in enumerate(chain) if path.resolve() == whole)
            text = mask(source_text(found.path))
            if not _ONCE.search(text) and not _GUARD.match(text):
                raise _cycle(found.path, chain[start:])
        elif whole not in self.reading.files:
            try:
                _read(found.path, self.reading, chain)
            except KernelError:
                if not found.is_searched:
                    raise
                # a header that was only looked for may be no C++, or for another build
                self.reading.pending.discard(whole)
                found = replace(found, origin="missing", path=None)
            self.included[at + 1] = found


def _cycle(path: Path, chain: tuple[tuple[Path, int], ...]) -> KernelError:
    way = " -> ".join([*(f"{place.name}:{line}" for place, line in chain), path.name])
    return KernelError(
        f"the headers include each other in a circle: {way}",
        path=chain[-1][0],
        line=chain[-1][1],
        remedy=f"put `#pragma once` at the top of {path.name}, or take one of the #includes out",
    )
