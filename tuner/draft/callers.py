"""The way from `main` to a launch, and the values that host code passes along it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from tuner.draft.host_launch import HostLaunch
from tuner.source import SourceFile
from tuner.source.assignments import Assigned, assigned
from tuner.source.calls import Call, HostFunction, calls_of, functions_of
from tuner.source.facts import IDENTIFIER, Lines, Span
from tuner.source.text import closing, number

_MAX_DEPTH = 12
_MAX_FRAMES = 4
_MAX_PATHS = 8
_CAST = re.compile(
    r"^(?:\((?:const\s+)?(?:unsigned|signed|int|long|size_t|u?int\d*_t|float|double|[\w:]+\s*\*)"
    r"(?:\s+\w+|\s*\*)*\s*\)|(?:static|reinterpret|const)_cast<[^<>]*>)\s*(?=[\w(&-])"
)
_WHOLE_FLOAT = re.compile(r"(\d+)(?:\.0*)?(?:[eE]\+?(\d{1,2}))?[fF]?")


@dataclass(frozen=True, slots=True)
class Frame:
    """One function on the way, up to the call that leads on.

    `variables` have one value there; `passed` maps its parameters to texts of the next frame,
    which is its caller's.
    """

    span: Span
    line: int
    variables: Mapping[str, Assigned]
    passed: Mapping[str, str]


# the launch's own function first, the outermost caller last
Path = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number that the source states, and the line where."""

    value: int
    line: int


def paths_to(launch: HostLaunch) -> tuple[Path, ...]:
    """List the ways on which host code reaches the launch: one where nobody in the file calls it.

    There are none without a launch.
    """
    if launch.site is None:
        return ()
    functions, calls = functions_of(launch.source), calls_of(launch.source)
    found = _paths(launch.source, launch.site.at, launch.site.line, functions, calls, 0)
    return tuple(islice(found, _MAX_PATHS))


def _paths(
    source: SourceFile,
    at: int,
    line: int,
    functions: tuple[HostFunction, ...],
    calls: tuple[Call, ...],
    depth: int,
) -> Iterator[Path]:
    around = [f for f in functions if f.span[0] <= at < f.span[1]]
    spans = tuple(function.span for function in functions)
    variables = assigned(source.masked, spans, at)
    if not around:
        yield (Frame((0, at), line, variables, {}),)
        return
    own = max(around, key=lambda function: function.span[0])
    callers = [
        call
        for call in calls
        if call.name == own.name
        and len(call.arguments) <= len(own.parameters)
        and not own.span[0] <= call.at < own.span[1]
    ]
    if not callers or depth >= _MAX_FRAMES:
        yield (Frame(own.span, line, variables, {}),)
        return
    for call in callers:
        passed = dict(zip(own.parameters, call.arguments, strict=False))
        frame = Frame(own.span, line, variables, passed)
        for rest in _paths(source, call.at, call.line, functions, calls, depth + 1):
            yield (frame, *rest)


@dataclass(frozen=True, slots=True)
class Host:
    """What the names mean on one way to the launch; level 0 is the launch's own function."""

    source: SourceFile
    path: Path

    def line_of(self, level: int) -> int:
        """Give the line of the call, or the launch, that a level makes."""
        return self.path[level].line

    def followed(self, text: str, level: int = 0) -> tuple[str, int]:
        """Follow a name through variables and callers; return what it stands for, and the level."""
        for _ in range(_MAX_DEPTH):
            text = plain(text)
            frame = self.path[level]
            if text in frame.variables:
                text = frame.variables[text].text
            elif text in frame.passed and level + 1 < len(self.path):
                text, level = frame.passed[text], level + 1
            else:
                break
        return text, level

    def number(self, text: str, level: int = 0) -> Number | None:
        """Compute a whole number from what the source states, where it does."""
        return self._number(text, level, self.path[level].line, 0)

    def _number(self, text: str, level: int, line: int, depth: int) -> Number | None:
        text = plain(text)
        value = _literal(text)
        if value is not None:
            return Number(value, line)
        if depth > _MAX_DEPTH:
            return None
        if IDENTIFIER.fullmatch(text):
            return self._named(text, level, depth)
        chosen = _alternatives(text)
        if chosen is not None:
            return self._chosen(*chosen, level, line, depth)
        return self._computed(text, level, line, depth)

    def _named(self, name: str, level: int, depth: int) -> Number | None:
        frame = self.path[level]
        if name in frame.variables:
            variable = frame.variables[name]
            line = Lines(self.source.text).at(variable.at)
            return self._number(variable.text, level, line, depth + 1)
        if name in frame.passed and level + 1 < len(self.path):
            line = self.path[level + 1].line
            return self._number(frame.passed[name], level + 1, line, depth + 1)
        constants = [c for c in self.source.constants if c.name == name]
        if len(constants) == 1:
            return self._number(constants[0].value, level, constants[0].line, depth + 1)
        return None

    def _chosen(
        self, test: str, first: str, second: str, level: int, line: int, depth: int
    ) -> Number | None:
        # `argc > 1 ? atoi(argv[1]) : 1 << 20`: the one that needs no command line
        holds = number(test)
        if holds is not None:
            return self._number(first if holds else second, level, line, depth + 1)
        known = [self._number(text, level, line, depth + 1) for text in (first, second)]
        stated = [found for found in known if found is not None]
        return stated[0] if len(stated) == 1 else None

    def _computed(self, text: str, level: int, line: int, depth: int) -> Number | None:
        pieces: list[str] = []
        end = 0
        for match in IDENTIFIER.finditer(text):
            # `4u` and `0x10` hold letters that are no names
            if match.start() and text[match.start() - 1].isdigit():
                continue
            found = self._number(match[0], level, line, depth + 1)
            if found is None:
                return None
            pieces += [text[end : match.start()], str(found.value)]
            end = match.end()
        value = _literal("".join([*pieces, text[end:]]))
        return None if value is None else Number(value, line)


def plain(text: str) -> str:
    """Strip casts and the parentheses around a whole expression."""
    text = text.strip()
    for _ in range(_MAX_DEPTH):
        if text.startswith("(") and closing(text, 0) == len(text):
            text = text[1:-1].strip()
        elif match := _CAST.match(text):
            text = text[match.end() :].strip()
        else:
            break
    return text


def _literal(text: str) -> int | None:
    value = number(text)
    if value is not None and not isinstance(value, bool):
        return value
    whole = _WHOLE_FLOAT.fullmatch(text)
    return int(whole[1]) * 10 ** int(whole[2] or 0) if whole else None


def _alternatives(text: str) -> tuple[str, str, str] | None:
    question = _outside(text, "?", 0)
    colon = _outside(text, ":", question + 1) if question is not None else None
    if question is None or colon is None:
        return None
    return text[:question], text[question + 1 : colon], text[colon + 1 :]


def _outside(text: str, character: str, start: int) -> int | None:
    position = start
    while position < len(text):
        if text[position] == character and text[position : position + 2] != "::":
            return position
        inside = closing(text, position) if text[position] in "([{" else None
        position = inside or position + (2 if text[position : position + 2] == "::" else 1)
    return None
