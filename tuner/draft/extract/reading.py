"""Read a source and the project's headers that it includes, as a CUDA compiler would see them."""

from __future__ import annotations

import ast
import operator as operators
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.draft.extract.headers import Include, parsed_include, replaced, resolved
from tuner.model.errors import KernelError
from tuner.source.reader import source_text
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
_OPERATORS: dict[type[ast.operator] | type[ast.cmpop], Callable[[int, int], int]] = {
    ast.Add: operators.add,
    ast.Sub: operators.sub,
    ast.Mult: operators.mul,
    ast.FloorDiv: operators.floordiv,
    ast.Mod: operators.mod,
    ast.Eq: operators.eq,
    ast.NotEq: operators.ne,
    ast.Lt: operators.lt,
    ast.LtE: operators.le,
    ast.Gt: operators.gt,
    ast.GtE: operators.ge,
}
_MAX_DEPTH = 8


def holds(condition: str, macros: Mapping[str, str | None]) -> bool | None:
    """Evaluate an #if; None where the compiler has to.

    `macros` maps what is defined to its text, or to None where that is not certain.
    """
    text = " ".join(condition.split())
    text = _DEFINED.sub(lambda match: _defined(match[1] or match[2], macros), text)
    text = text.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text).replace("/", "//")
    try:
        value = _evaluated(text, macros, 0)
    except ArithmeticError:
        return None
    return None if value is None else bool(value)


def _defined(name: str, macros: Mapping[str, str | None]) -> str:
    if _OPEN.fullmatch(name) or (name in macros and macros[name] is None):
        return name
    return "1" if name in macros else "0"


def _evaluated(text: str, macros: Mapping[str, str | None], depth: int) -> int | None:
    plain = _NUMBER.sub(lambda match: str(_integer(match[1])), text).strip()
    try:
        return _value(ast.parse(plain, mode="eval").body, macros, depth)
    except (SyntaxError, ValueError):
        return None


def _integer(digits: str) -> int:
    if digits[:2] in ("0x", "0X"):
        return int(digits, 16)
    return int(digits, 8 if re.fullmatch("0[0-7]+", digits) else 10)


def _value(node: ast.expr, macros: Mapping[str, str | None], depth: int) -> int | None:
    match node:
        case ast.Constant(value=int(number)):
            return int(number)
        case ast.Name(id=name):
            if _OPEN.fullmatch(name) or depth > _MAX_DEPTH:
                return None
            if name not in macros:
                return int(name == "true")
            return _evaluated(macros[name] or "", macros, depth + 1)
        case ast.BoolOp(op=operator, values=values):
            # one that decides is enough, whatever the others are
            decides, is_open = isinstance(operator, ast.Or), False
            for value in (_value(value, macros, depth) for value in values):
                if value is not None and bool(value) == decides:
                    return int(decides)
                is_open = is_open or value is None
            return None if is_open else int(not decides)
        case ast.UnaryOp(op=operator, operand=operand):
            known = _value(operand, macros, depth)
            if known is None:
                return None
            return int(not known) if isinstance(operator, ast.Not) else -known
        case (
            ast.BinOp(left=left, op=sign, right=right)
            | ast.Compare(left=left, ops=[sign], comparators=[right])
        ) if type(sign) in _OPERATORS:
            first, second = _value(left, macros, depth), _value(right, macros, depth)
            if first is None or second is None:
                return None
            return int(_OPERATORS[type(sign)](first, second))
        case _:
            return None


_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)", re.DOTALL)
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

    `included` maps the lines of its #includes to where they lead; a file of the project is there
    only where it was read for the first time.
    """

    path: Path
    text: str
    masked: str
    included: dict[int, Include]


@dataclass(slots=True)
class Reading:
    """All files that a source consists of, the source itself last to be complete.

    `dropped` are the conditions that do not hold, with their places.
    """

    folders: tuple[Path, ...]
    files: dict[Path, SourceCode] = field(default_factory=dict)
    dropped: list[tuple[Path, int, str]] = field(default_factory=list)
    macros: dict[str, str | None] = field(default_factory=lambda: dict(PREDEFINED))

    def unread(self, *origins: str) -> list[tuple[Path, int, Include]]:
        """List the #includes of these origins whose headers were not read, with their places."""
        return [
            (code.path, line, include)
            for code in self.files.values()
            for line, include in code.included.items()
            if include.origin in origins
        ]


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


def _read(path: Path, reading: Reading, chain: tuple[tuple[Path, int], ...]) -> None:
    reader = _Preprocessor(path, reading, chain)
    reader.read()
    text = "\n".join(reader.lines)
    text = replaced(text, mask(text), frozenset(reading.macros))
    reading.files[path.resolve()] = SourceCode(path, text, mask(text), reader.included)


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
            self.reading.dropped.append((self.path, at + 1, f"#{name} {rest}".strip()))

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
