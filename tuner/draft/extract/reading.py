"""Read a source and the project's headers that it includes, as a CUDA compiler would see them."""

from __future__ import annotations

import ast
import operator as operators
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.draft.extract.includes import Include, parsed_include, resolved
from tuner.draft.extract.standins import replaced
from tuner.model.errors import KernelError
from tuner.source.syntax import mask

# Left to the compiler: they differ between NVRTC, the CPU device and the architectures.
_OPEN = re.compile(
    r"__CUDA_ARCH\w*|__CUDACC_RTC__|__CUDA_ON_HOST__|__CUDACC_VER_\w+|__cplusplus|__has_\w+"
    r"|__cpp_\w+|NDEBUG|_MSC_VER|_WIN(?:32|64)|__GNUC__|__clang__|__linux__|__x86_64__"
)
# __CUDACC__ is every CUDA compiler's; the headers that NVRTC comes with are of 13.
PREDEFINED = {"__CUDACC__": "1", "CUDA_VERSION": "13000", "CUDART_VERSION": "13000"}
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|\s(\w+))")
_NUMBER = re.compile(r"\b(0[xX][\da-fA-F]+|\d+)[uUlL]*\b")
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operators.add,
    ast.Sub: operators.sub,
    ast.Mult: operators.mul,
    ast.FloorDiv: operators.floordiv,
    ast.Mod: operators.mod,
}
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operators.eq,
    ast.NotEq: operators.ne,
    ast.Lt: operators.lt,
    ast.LtE: operators.le,
    ast.Gt: operators.gt,
    ast.GtE: operators.ge,
}
_MAX_DEPTH = 8


class _OpenError(Exception):
    """Stop where only the compiler knows."""


def holds(condition: str, macros: Mapping[str, str | None]) -> bool | None:
    """Evaluate an #if; None where the compiler has to.

    `macros` maps what is defined to its text, or to None where that is not certain.
    """
    text = " ".join(condition.split())
    text = _DEFINED.sub(lambda match: _defined(match[1] or match[2], macros), text)
    text = _plain(text).replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text).replace("/", "//")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return None
    try:
        value = _value(tree.body, macros, 0)
    except (_OpenError, ArithmeticError):
        return None
    return bool(value)


def is_open(name: str) -> bool:
    """Whether a macro is one that only the compiler knows."""
    return _OPEN.fullmatch(name) is not None


def _defined(name: str, macros: Mapping[str, str | None]) -> str:
    if is_open(name) or (name in macros and macros[name] is None):
        return name
    return "1" if name in macros else "0"


def _value(node: ast.expr, macros: Mapping[str, str | None], depth: int) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return int(value)
        case ast.Name(id=name):
            return _named(name, macros, depth)
        case ast.BoolOp(op=operator, values=values):
            return _joined(isinstance(operator, ast.And), values, macros, depth)
        case ast.UnaryOp(op=operator, operand=operand):
            value = _value(operand, macros, depth)
            return int(not value) if isinstance(operator, ast.Not) else -value
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return int(
                _BINARY[type(sign)](_value(left, macros, depth), _value(right, macros, depth))
            )
        case ast.Compare(left=left, ops=[test], comparators=[right]) if type(test) in _COMPARED:
            compare = _COMPARED[type(test)]
            return int(compare(_value(left, macros, depth), _value(right, macros, depth)))
        case _:
            raise _OpenError


def _named(name: str, macros: Mapping[str, str | None], depth: int) -> int:
    if is_open(name) or depth > _MAX_DEPTH:
        raise _OpenError
    if name not in macros:
        return {"true": 1}.get(name, 0)
    text = macros[name]
    if text is None or not text.strip():
        raise _OpenError
    plain = _plain(text)
    try:
        return _value(ast.parse(plain, mode="eval").body, macros, depth + 1)
    except (SyntaxError, ValueError) as error:
        raise _OpenError from error


def _plain(text: str) -> str:
    return _NUMBER.sub(lambda match: str(_integer(match[1])), text).strip()


def _integer(digits: str) -> int:
    if digits[:2] in ("0x", "0X"):
        return int(digits, 16)
    return int(digits, 8 if re.fullmatch("0[0-7]+", digits) else 10)


def _joined(
    every: bool, values: list[ast.expr], macros: Mapping[str, str | None], depth: int
) -> int:
    # one that decides is enough, whatever the others are
    is_unknown = False
    for value in values:
        try:
            known = bool(_value(value, macros, depth))
        except _OpenError:
            is_unknown = True
            continue
        if known != every:
            return int(known)
    if is_unknown:
        raise _OpenError
    return int(every)


_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)", re.DOTALL)
_DEFINE = re.compile(r"(\w+)(\([^)]*\))?[ \t]*(.*)", re.DOTALL)
_GUARD = re.compile(r"\s*#[ \t]*ifndef[ \t]+(\w+)\s*\n\s*#[ \t]*define[ \t]+\1\b")
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)
# stands in a line that a condition rules out: white space, but not a blank line of the source
REMOVED = "\v"
# begins a line that the source does not have
WRITTEN = "\v"


@dataclass(frozen=True, slots=True)
class Code:
    """One file without the branches that do not hold; lines keep their numbers.

    `included` maps the lines of its #includes to where they lead; a file of the project is there
    only where it was read for the first time.
    """

    path: Path
    text: str
    masked: str
    included: dict[int, Include]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Lines that a preprocessor condition rules out."""

    path: Path
    line: int
    condition: str


@dataclass(slots=True)
class Reading:
    """All files that a source consists of, the source itself last to be complete."""

    folders: tuple[Path, ...]
    files: dict[Path, Code] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    macros: dict[str, str | None] = field(default_factory=lambda: dict(PREDEFINED))


@dataclass(slots=True)
class _Group:
    # one #if to #endif: is its present branch read, did one hold for certain, is any left open
    outer: bool
    live: bool = False
    is_taken: bool = False
    is_open: bool = False


def read_all(path: Path, folders: tuple[Path, ...] = ()) -> Reading:
    """Read a source and what it includes from its project.

    Raises `KernelError` for what cannot be read and for headers that include each other for ever.
    """
    for folder in folders:
        if not folder.is_dir():
            raise KernelError(
                "is not a folder", path=folder, remedy="give --include a folder of headers"
            )
    reading = Reading(folders)
    _read(path, reading, ())
    return reading


def source_text(path: Path) -> str:
    """Read a file as text with plain line ends."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise KernelError("no such file", path=path, remedy="give a .cu file's path") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise KernelError(
            f"cannot be read: {reason}", path=path, remedy="give a .cu file's path"
        ) from error
    if b"\0" in data:
        raise KernelError("is a binary file", path=path, remedy="give the path of CUDA source text")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise KernelError(
            f"is not UTF-8: byte 0x{data[error.start]:02x}",
            path=path,
            line=data.count(b"\n", 0, error.start) + 1,
            remedy="save it as UTF-8",
        ) from error


def _read(path: Path, reading: Reading, chain: tuple[tuple[Path, int], ...]) -> None:
    text = source_text(path)
    reader = _Reader(path, reading, chain, text)
    reader.read()
    pruned = "\n".join(reader.lines)
    pruned = replaced(pruned, mask(pruned), frozenset(reading.macros))
    reading.files[path.resolve()] = Code(path, pruned, mask(pruned), reader.included)


class _Reader:
    def __init__(
        self, path: Path, reading: Reading, chain: tuple[tuple[Path, int], ...], text: str
    ) -> None:
        self.path, self.reading, self.chain = path, reading, chain
        self.lines, self.masked = text.split("\n"), mask(text).split("\n")
        self.groups: list[_Group] = []
        self.included: dict[int, Include] = {}

    @property
    def is_live(self) -> bool:
        return all(group.live for group in self.groups)

    @property
    def is_certain(self) -> bool:
        return not any(group.is_open for group in self.groups)

    def read(self) -> None:
        at = 0
        while at < len(self.lines):
            end = at + 1
            match = _DIRECTIVE.match(self.masked[at])
            if match is not None:
                while end < len(self.lines) and self.lines[end - 1].endswith("\\"):
                    end += 1
                self.directive(match[1], at, end)
            elif not self.is_live:
                self.lines[at] = REMOVED
            at = end
        if self.groups:
            raise KernelError(
                "has an #if without its #endif", path=self.path, remedy="close it with #endif"
            )

    def directive(self, name: str, at: int, end: int) -> None:
        joined = "\n".join(row.removesuffix("\\") for row in self.masked[at:end])
        match = _DIRECTIVE.match(joined)
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
            self.reading.macros[defined[1]] = value if self.is_certain else None
        elif name == "undef":
            self.reading.macros.pop(rest, None)
        elif name == "pragma" and rest == "once":
            self.blank(at, end)

    def condition(self, name: str, rest: str, at: int, end: int) -> None:
        if name in ("if", "ifdef", "ifndef"):
            self.groups.append(_Group(self.is_live))
        elif not self.groups:
            raise KernelError(
                f"has an #{name} without its #if", path=self.path, line=at + 1, remedy="remove it"
            )
        group = self.groups[-1]
        if name == "endif":
            self.groups.pop()
            if not group.is_open:
                self.blank(at, end)
            return
        asked = {"ifdef": f"defined({rest})", "ifndef": f"!defined({rest})", "else": "1"}
        condition = asked.get(name, rest)
        was_open = group.is_open
        value = self.settled(group, condition)
        group.live = group.outer and value is not False
        if value is None:
            if name == "elif" and not was_open:
                self.lines[at] = self.lines[at].replace("elif", "if", 1)
        elif value and was_open:
            self.blank(at, end)
            self.lines[at] = "#else"
        else:
            self.blank(at, end)
        if value is False and group.outer:
            self.reading.dropped.append(Dropped(self.path, at + 1, f"#{name} {rest}".strip()))

    def settled(self, group: _Group, condition: str) -> bool | None:
        if not group.outer or group.is_taken:
            return False
        value = holds(condition, self.reading.macros)
        group.is_taken = value is True
        group.is_open = group.is_open or value is None
        return value

    def blank(self, at: int, end: int) -> None:
        self.lines[at:end] = [REMOVED] * (end - at)

    def include(self, at: int) -> None:
        parsed = parsed_include(self.lines[at])
        if parsed is None:
            return
        found = resolved(*parsed, self.path, self.reading.folders)
        if found.path is None:
            self.included[at + 1] = found
            return
        chain = (*self.chain, (self.path, at + 1))
        whole = found.path.resolve()
        if any(whole == path.resolve() for path, _ in chain):
            if not _is_guarded(found.path):
                raise _cycle(found.path, chain)
        elif whole not in self.reading.files:
            _read(found.path, self.reading, chain)
            self.included[at + 1] = found


def _is_guarded(path: Path) -> bool:
    text = mask(source_text(path))
    return _ONCE.search(text) is not None or _GUARD.match(text) is not None


def _cycle(path: Path, chain: tuple[tuple[Path, int], ...]) -> KernelError:
    start = next(i for i, (place, _) in enumerate(chain) if place.resolve() == path.resolve())
    way = " -> ".join([*(f"{place.name}:{line}" for place, line in chain[start:]), path.name])
    return KernelError(
        f"the headers include each other in a circle: {way}",
        path=chain[-1][0],
        line=chain[-1][1],
        remedy=f"put `#pragma once` at the top of {path.name}, or take one of the #includes out",
    )
