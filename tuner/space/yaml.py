"""YAML 1.2 with the place of every value, and without the parts that readers disagree about.

All that reads or edits the text of a search space starts from a `Document`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from errno import EFBIG
from functools import lru_cache
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

from tuner.model.errors import InputError, SpaceError
from tuner.process.files import read_regular

Data = None | bool | int | float | str | list["Data"] | dict[str, "Data"]
Location = tuple[str | int, ...]

# Reading takes up to 3 s for this many; a large space has a tenth.
MAX_BYTES = 100_000
MAX_DEPTH = 16
MAX_DIGITS = 19
# An expression has no more.
MAX_JOINED = 2000
MAX_PIECES = 200

_PAGE = "docs/search-spaces.md"
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
    """Where a value was written, as character offsets into the text.

    `at` is where its key begins, or it itself in a list; `start` and `end` bound the value.
    `plain` is its text where it was an unquoted scalar.
    """

    line: int
    at: int
    start: int
    end: int
    plain: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """The data of one file, and the place of every value by its location in the data."""

    path: Path
    text: str
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


def read(path: Path, page: str = _PAGE) -> Document:
    """Read a file that holds one mapping; raise `SpaceError` for anything doubtful in it.

    `page` is where an error sends the user for a complete example.
    """
    return parse(read_text(path, MAX_BYTES, SpaceError, "file"), path, page)


def read_text(path: Path, most_bytes: int, failure: type[InputError], what: str) -> str:
    """Read a file of UTF-8; raise `failure` where it cannot be, with the line of what is not."""
    try:
        content = read_regular(path, most_bytes)
    except FileNotFoundError as error:
        raise failure(f"no such {what}", path=path) from error
    except OSError as error:
        if error.errno == EFBIG:
            size = path.stat().st_size
            raise failure(f"{size} bytes, over the {most_bytes} allowed", path=path) from error
        raise failure(f"cannot be read: {error.strerror}", path=path) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise failure("not UTF-8 text", path=path, line=line) from error


# A report and its dispatch table read each candidate's space several times.
@lru_cache(maxsize=32)
def parse(text: str, path: Path, page: str = _PAGE) -> Document:
    """Read `text` as the content of `path`; whoever gets it leaves `data` as it is."""
    _check_characters(text, path)
    return _Builder(path, text, _events(text, path), page).document()


def _check_characters(text: str, path: Path) -> None:
    for number, line in enumerate(text.split("\n"), 1):
        hidden = [c for c in line.rstrip("\r") if not c.isprintable() and c != "\t"]
        indent = line[: len(line) - len(line.lstrip())]
        if line.startswith("%"):
            message, remedy = "a YAML directive", "delete it: nothing needs one"
        elif "\t" in indent and line.strip():
            message, remedy = "a tab in the indentation", "indent with spaces"
        elif hidden:
            message = f"the character U+{ord(hidden[0]):04X} is not printable"
            remedy = "delete it, or write a plain space"
        else:
            continue
        raise SpaceError(message, path=path, line=number, remedy=remedy)


def _events(text: str, path: Path) -> list[Event]:
    try:
        return list(_shallow(YAML(typ="safe", pure=True).parse(text), path))
    except MarkedYAMLError as error:
        raise _syntax_error(error, path) from error
    except (YAMLError, OverflowError, ValueError) as error:
        # ruamel lets the errors of `chr` and `int` through: "\UFFFFFFFF"
        raise SpaceError(f"not YAML: {error}", path=path, line=1) from error


def _shallow(events: Iterable[Event], path: Path) -> Iterator[Event]:
    # As early as here: ruamel's time grows with the square of the depth.
    depth = 0
    for event in events:
        depth += isinstance(event, CollectionStartEvent)
        depth -= isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
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
    text: str
    events: list[Event]
    page: str
    position: int = 0
    places: dict[Location, TextPosition] = field(default_factory=dict)

    @property
    def start(self) -> str:
        return f"start with `version: 1`; {self.page} has a complete example"

    def document(self) -> Document:
        starts = [event for event in self.events if isinstance(event, DocumentStartEvent)]
        if not starts:
            raise SpaceError("the file is empty", path=self.path, line=1, remedy=self.start)
        if len(starts) > 1:
            remedy = "keep one; delete what follows `---`"
            self._fail("a second document starts here", starts[1], remedy)
        self.position = self.events.index(starts[0]) + 1
        first = self._next()
        if not isinstance(first, MappingStartEvent):
            self._fail("the file is not a mapping of keys to values", first, self.start)
        self.places[()] = _position(first)
        return Document(self.path, self.text, self._mapping(first, ()), self.places)

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
            self.places[here] = _position(event)
            result[key] = self._value(self._next(), here, start)
        self._end(location, event)
        return result

    def _sequence(self, start: CollectionStartEvent, location: Location) -> list[Data]:
        result: list[Data] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            here = (*location, len(result))
            self.places[here] = _position(event)
            result.append(self._value(event, here, start))
        self._end(location, event)
        return result

    def _end(self, location: Location, event: Event) -> None:
        self.places[location] = replace(self.places[location], end=event.end_mark.index)

    def _value(self, event: Event, location: Location, parent: CollectionStartEvent) -> Data:
        place = replace(
            self.places[location], start=event.start_mark.index, end=event.end_mark.index
        )
        self.places[location] = place
        if isinstance(event, MappingStartEvent):
            return self._mapping(event, location)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(event, location)
        if not isinstance(event, ScalarEvent):
            self._fail("a value is needed here", event, self.start)
        text = str(event.value)
        if event.style:
            self.places[location] = replace(place, line=_line(event))
            return text
        last: Event = event
        if parent.flow_style:
            text, last = self._joined(event, in_mapping=isinstance(parent, MappingStartEvent))
        # An empty value has no line of its own: ruamel puts it where the next token is.
        line = _line(event) if text else place.line
        self.places[location] = replace(place, line=line, end=last.end_mark.index, plain=text)
        return self._resolve(text, event)

    def _joined(self, first: ScalarEvent, *, in_mapping: bool) -> tuple[str, ScalarEvent]:
        # `[ceil_div(T, rows)]` is two items to YAML, and `{value: max(a, b)}` is two keys. An
        # open parenthesis makes no sense at the end of either, so it runs on to its closing one.
        text, last, position = str(first.value), first, self.position
        joined = text
        still_open = text.count("(") - text.count(")")
        while still_open > 0:
            following = self.events[position]
            if not isinstance(following, ScalarEvent) or following.style:
                return text, first
            last = following
            joined += f", {last.value}"
            still_open += last.value.count("(") - last.value.count(")")
            if len(joined) > MAX_JOINED or position - self.position > MAX_PIECES:
                return text, first
            position += 1
            if in_mapping:
                empty = self.events[position]
                if not isinstance(empty, ScalarEvent) or empty.style or empty.value:
                    return text, first
                position += 1
        self.position = position
        return joined, last

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
            remedy = "delete the tag; quotes make a text"
            self._fail(f"`{tag}` (a tag) is not allowed", event, remedy)
        return event

    def _fail(self, found: str, event: Event, remedy: str) -> NoReturn:
        raise SpaceError(found, path=self.path, line=_line(event), remedy=remedy)


def _position(event: Event) -> TextPosition:
    start, end = event.start_mark.index, event.end_mark.index
    return TextPosition(_line(event), start, start, end)


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1
