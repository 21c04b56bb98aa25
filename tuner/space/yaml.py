"""YAML 1.2 with a line for every value, and without the parts that readers disagree about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isinf
from pathlib import Path
from typing import NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from tuner.model.errors import SpaceError

Data = None | bool | int | float | str | list["Data"] | dict[str, "Data"]
Location = tuple[str | int, ...]

# Reading takes up to 3 s for this many; a large space has a tenth.
MAX_BYTES = 100_000
MAX_DEPTH = 16
MAX_DIGITS = 19
# An expression has no more.
MAX_JOINED = 2000
MAX_PIECES = 200

_START = "start with `version: 1`; docs/search-spaces.md has a complete example"
_NUMBERS = "write 8, -8, 0x1f, 0.5 or 1e-3; a text goes in quotes"
_BOOLEANS = {"true": True, "True": True, "TRUE": True}
_BOOLEANS |= {"false": False, "False": False, "FALSE": False}
_NULLS = {"", "~", "null", "Null", "NULL"}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_BASED = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# What YAML 1.1 readers take for numbers, each to a value of its own: octal 010, 1_000, 12:30.
_DISPUTED = re.compile(r"[-+]?(0[0-9]+|0b[01_]+|[0-9][0-9_]*_[0-9_]*|[0-9]+(:[0-5]?[0-9])+)")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class TextPosition:
    """Where a value was written; `plain` is its text where it was an unquoted scalar."""

    line: int
    plain: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """The data of one file, and the place of every value by its location in the data."""

    path: Path
    data: dict[str, Data]
    places: Mapping[Location, TextPosition]

    def line(self, *location: str | int) -> int:
        """Find the line of a value, or of the nearest thing around it."""
        while location and location not in self.places:
            location = location[:-1]
        return self.places[location].line if location in self.places else 1

    def plain(self, *location: str | int) -> str | None:
        """Return the text of an unquoted scalar as it was written, else None."""
        place = self.places.get(location)
        return place.plain if place else None

    def error(self, message: str, *location: str | int, remedy: str | None = None) -> SpaceError:
        """Make the error for the value at `location`."""
        return SpaceError(message, path=self.path, line=self.line(*location), remedy=remedy)


def read(path: Path) -> Document:
    """Read a file that holds one mapping; raise `SpaceError` for anything doubtful in it."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise SpaceError("no such file", path=path) from error
    except OSError as error:
        raise SpaceError(f"cannot be read: {error.strerror}", path=path) from error
    if len(content) > MAX_BYTES:
        size = path.stat().st_size
        raise SpaceError(f"{size} bytes, over the {MAX_BYTES} allowed", path=path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpaceError("not UTF-8 text", path=path, line=line) from error
    return parse(text, path)


def parse(text: str, path: Path) -> Document:
    """Read `text` as the content of `path`."""
    _check_characters(text, path)
    return _Builder(path, _events(text, path)).document()


def _check_characters(text: str, path: Path) -> None:
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("%"):
            raise SpaceError(
                "a YAML directive", path=path, line=number, remedy="delete it: nothing needs one"
            )
        indent = line[: len(line) - len(line.lstrip())]
        if "\t" in indent and line.strip():
            raise SpaceError(
                "a tab in the indentation", path=path, line=number, remedy="indent with spaces"
            )
        for character in line.rstrip("\r"):
            if not character.isprintable() and character != "\t":
                raise SpaceError(
                    f"the character U+{ord(character):04X} is not printable",
                    path=path,
                    line=number,
                    remedy="delete it, or write a plain space",
                )


def _events(text: str, path: Path) -> list[Event]:
    try:
        return list(_shallow(YAML(typ="safe", pure=True).parse(text), path))
    except MarkedYAMLError as error:
        raise _syntax_error(error, path) from error
    except (YAMLError, OverflowError, ValueError) as error:
        # ruamel lets the errors of `chr` and `int` through: "\UFFFFFFFF"
        raise SpaceError(f"not YAML: {error}", path=path, line=1) from error


def _shallow(events: Iterable[Event], path: Path) -> Iterator[Event]:
    # Far over the bound, and here already: ruamel's time grows with the square of the depth.
    depth = 0
    for event in events:
        depth += isinstance(event, CollectionStartEvent)
        depth -= isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH + 2:
            message = f"nested more than {MAX_DEPTH} deep"
            raise SpaceError(message, path=path, line=_line(event), remedy="no key needs that")
        yield event


def _syntax_error(error: MarkedYAMLError, path: Path) -> SpaceError:
    problem = str(error.problem or error.context or "not YAML")
    mark = error.problem_mark
    opened = "end of stream" in problem or "flow" in str(error.context)
    if opened and error.context_mark and mark and error.context_mark.line < mark.line:
        problem += f" on line {mark.line + 1}; what starts here may not be closed"
        mark = error.context_mark
    remedy = (
        "check brackets, quotes and indentation here; an expression with brackets, quotes, `: ` "
        "or ` #` in it needs quotes around the whole"
    )
    if "mapping values are not allowed" in problem:
        remedy = "put a text that contains `: ` in quotes; indent the keys of one mapping alike"
    if "cannot start any token" in problem:
        remedy = "put this text in quotes"
    line = mark.line + 1 if mark else None
    return SpaceError(f"not YAML: {problem}", path=path, line=line, remedy=remedy)


@dataclass(slots=True)
class _Builder:
    path: Path
    events: list[Event]
    position: int = 0
    places: dict[Location, TextPosition] = field(default_factory=dict)

    def document(self) -> Document:
        starts = [event for event in self.events if isinstance(event, DocumentStartEvent)]
        if not starts:
            raise SpaceError("the file is empty", path=self.path, line=1, remedy=_START)
        if starts[0].version or starts[0].tags:
            self._fail(
                "a YAML directive is not allowed", starts[0], "delete the line that starts with %"
            )
        if len(starts) > 1:
            self._fail(
                "a second document starts here", starts[1], "keep one; delete what follows `---`"
            )
        self.position = self.events.index(starts[0]) + 1
        first = self._next()
        if not isinstance(first, MappingStartEvent):
            self._fail("the file is not a mapping of keys to values", first, _START)
        self.places[()] = TextPosition(_line(first))
        return Document(self.path, self._mapping(first, ()), self.places)

    def _mapping(self, start: CollectionStartEvent, location: Location) -> dict[str, Data]:
        result: dict[str, Data] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            if not isinstance(event, ScalarEvent):
                self._fail("this key is not a name", event, "write `name: value`")
            key = str(event.value)
            here = (*location, key)
            if key == "<<":
                self._fail("`<<` (a merge) is not allowed", event, "write the keys out")
            if key in result:
                message = f"the key `{key}` is repeated: line {self.places[here].line} has it too"
                self._fail(message, event, "keep one of the two")
            self.places[here] = TextPosition(_line(event))
            result[key] = self._value(self._next(), here, start)
        return result

    def _sequence(self, start: CollectionStartEvent, location: Location) -> list[Data]:
        result: list[Data] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            here = (*location, len(result))
            self.places[here] = TextPosition(_line(event))
            result.append(self._value(event, here, start))
        return result

    def _value(self, event: Event, location: Location, parent: CollectionStartEvent) -> Data:
        if len(location) > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep", event, "no key needs that")
        if isinstance(event, MappingStartEvent):
            return self._mapping(event, location)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(event, location)
        if not isinstance(event, ScalarEvent):
            self._fail("a value is needed here", event, _START)
        text = str(event.value)
        if event.style:
            self.places[location] = TextPosition(_line(event))
            return text
        if parent.flow_style:
            text = self._joined(text, in_mapping=isinstance(parent, MappingStartEvent))
        # An empty value has no place of its own: ruamel puts it where the next token is.
        line = _line(event) if text else self.places[location].line
        self.places[location] = TextPosition(line, text)
        return self._resolve(text, event)

    def _joined(self, text: str, *, in_mapping: bool) -> str:
        # `[ceil_div(T, rows)]` is two items to YAML, and `{value: max(a, b)}` is two keys. An
        # open parenthesis makes no sense at the end of either, so it runs on to its closing one.
        position = self.position
        joined = text
        still_open = text.count("(") - text.count(")")
        while still_open > 0:
            event = self.events[position]
            if not isinstance(event, ScalarEvent) or event.style:
                return text
            joined += f", {event.value}"
            still_open += event.value.count("(") - event.value.count(")")
            if len(joined) > MAX_JOINED or position - self.position > MAX_PIECES:
                return text
            position += 1
            if in_mapping:
                empty = self.events[position]
                if not isinstance(empty, ScalarEvent) or empty.style or empty.value:
                    return text
                position += 1
        self.position = position
        return joined

    def _resolve(self, text: str, event: Event) -> Data:
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text) or _BASED.fullmatch(text):
            if len(text) > MAX_DIGITS:
                self._fail(f"the number `{text[:40]}` is too large", event, _NUMBERS)
            return int(text, 0)
        if _DISPUTED.fullmatch(text):
            self._fail(f"`{text}` is not the same number to every reader", event, _NUMBERS)
        if _INFINITE.fullmatch(text) or (_FLOAT.fullmatch(text) and isinf(float(text))):
            self._fail(f"`{text}` is not a finite number", event, _NUMBERS)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _next(self) -> Event:
        event = self.events[self.position]
        self.position += 1
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if isinstance(event, AliasEvent):
            self._fail(f"`*{anchor}` (an alias) is not allowed", event, "write the value out")
        if anchor:
            self._fail(f"`&{anchor}` (an anchor) is not allowed", event, "write each value out")
        if tag:
            self._fail(
                f"`{tag}` (a tag) is not allowed", event, "delete the tag; quotes make a text"
            )
        return event

    def _fail(self, found: str, event: Event, remedy: str) -> NoReturn:
        raise SpaceError(found, path=self.path, line=_line(event), remedy=remedy)


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1
