"""YAML 1.2 with the place of every value, and without the parts that readers disagree about.

All that reads or edits the text of a search space starts from a `Document`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from errno import EFBIG
from functools import lru_cache
from math import isinf
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionStartEvent, Event
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tuner.model.bounds import CONTROL
from tuner.model.errors import InputError, SpaceError
from tuner.process.files import read_regular

Data = None | bool | int | float | str | list["Data"] | dict[str, "Data"]
Location = tuple[str | int, ...]
# An item of a list, or a key with its value.
_Piece = tuple[Node, Node | None]

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
    root = _compose(text, path, f"start with `version: 1`; {page} has a complete example")
    reader = _Reader(path)
    data = reader.value(root, (), root)
    assert isinstance(data, dict)
    return Document(path, text, data, reader.places)


class _Composer(Composer):
    """Compose trees of nodes, without what a value would need others for, and not too deep."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        line, anchor, tag = _line(event), event.anchor, getattr(event, "tag", None)
        if isinstance(event, AliasEvent):
            message = f"`*{anchor}` (an alias) is not allowed"
            raise SpaceError(message, line=line, remedy="write the value out")
        if anchor:
            message = f"`&{anchor}` (an anchor) is not allowed"
            raise SpaceError(message, line=line, remedy="write each value out")
        if tag:
            message = f"`{tag}` (a tag) is not allowed"
            raise SpaceError(message, line=line, remedy="delete the tag; quotes make a text")
        # As early as here: ruamel's time grows with the square of the depth.
        if isinstance(event, CollectionStartEvent) and self.depth >= MAX_DEPTH:
            message = f"nested more than {MAX_DEPTH} deep"
            raise SpaceError(message, line=line, remedy="no key needs that")
        return super().compose_node(parent, index)


def _compose(text: str, path: Path, start: str) -> MappingNode:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        root = yaml.compose(text)
    except SpaceError as error:
        error.path = path
        raise
    except MarkedYAMLError as error:
        raise _syntax_error(error, path) from error
    except (YAMLError, OverflowError, ValueError) as error:
        # ruamel lets the errors of `chr` and `int` through: "\UFFFFFFFF"
        raise SpaceError(f"not YAML: {error}", path=path, line=1) from error
    if root is None:
        raise SpaceError("the file is empty", path=path, line=1, remedy=start)
    if not isinstance(root, MappingNode):
        message = "the file is not a mapping of keys to values"
        raise SpaceError(message, path=path, line=_line(root), remedy=start)
    return root


def _syntax_error(error: MarkedYAMLError, path: Path) -> SpaceError:
    problem = f"not YAML: {error.problem or error.context or 'it cannot be read'}"
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
    elif "cannot start any token" in problem:
        remedy = "put this text in quotes"
    elif "another document" in problem:
        problem, remedy = "a second document starts here", "keep one; delete what follows `---`"
    return SpaceError(problem, path=path, line=mark.line + 1 if mark else None, remedy=remedy)


@dataclass(slots=True)
class _Reader:
    path: Path
    places: dict[Location, TextPosition] = field(default_factory=dict)

    def mapping(self, node: MappingNode, location: Location) -> dict[str, Data]:
        result: dict[str, Data] = {}
        pairs = deque(node.value)
        while pairs:
            key, value = pairs.popleft()
            if not isinstance(key, ScalarNode):
                self.fail("this key is not a name", key, "write `name: value`")
            self.require_visible(key)
            name = str(key.value)
            here = (*location, name)
            if name == "<<":
                self.fail("`<<` (a merge) is not allowed", key, "write the keys out")
            if name in result:
                message = f"the key `{name}` is repeated: line {self.places[here].line} has it too"
                self.fail(message, key, "keep one of the two")
            if node.flow_style:
                value = _join_pieces(value, pairs)
            result[name] = self.value(value, here, key)
        return result

    def value(self, node: Node, location: Location, key: Node) -> Data:
        is_plain = isinstance(node, ScalarNode) and not node.style
        # An empty value has no line of its own: ruamel puts it where the next token is.
        has_line = isinstance(node, ScalarNode) and (node.style or node.value)
        self.places[location] = TextPosition(
            line=_line(node if has_line else key),
            at=key.start_mark.index,
            start=node.start_mark.index,
            end=node.end_mark.index,
            plain=str(node.value) if is_plain else None,
        )
        if isinstance(node, MappingNode):
            return self.mapping(node, location)
        if isinstance(node, ScalarNode):
            self.require_visible(node)
            return self.resolve(node) if is_plain else str(node.value)
        assert isinstance(node, SequenceNode)
        items: deque[_Piece] = deque((item, None) for item in node.value)
        result: list[Data] = []
        while items:
            item, _ = items.popleft()
            if node.flow_style:
                item = _join_pieces(item, items)
            result.append(self.value(item, (*location, len(result)), item))
        return result

    def require_visible(self, node: ScalarNode) -> None:
        """Refuse what only an escape in quotes can write."""
        if hidden := CONTROL.search(node.value):
            message = f"a text with the control character {hidden[0]!a}"
            self.fail(message, node, "write visible characters")

    def resolve(self, node: ScalarNode) -> Data:
        text = str(node.value)
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text) or _BASED.fullmatch(text):
            if len(text) > MAX_DIGITS:
                self.fail(f"the number `{text[:40]}` is too large", node, _NUMBERS)
            return int(text, 0)
        if _DISPUTED.fullmatch(text):
            self.fail(f"`{text}` is not the same number to every reader", node, _NUMBERS)
        if _INFINITE.fullmatch(text) or (_FLOAT.fullmatch(text) and isinf(float(text))):
            self.fail(f"`{text}` is not a finite number", node, _NUMBERS)
        return float(text) if _FLOAT.fullmatch(text) else text

    def fail(self, message: str, node: Node, remedy: str) -> NoReturn:
        raise SpaceError(message, path=self.path, line=_line(node), remedy=remedy)


def _join_pieces(first: Node, following: deque[_Piece]) -> Node:
    """Put an expression together that a flow collection has cut at its commas; take its pieces.

    `[ceil_div(T, rows)]` is two items to YAML, and `{value: max(a, b)}` is two keys. An open
    parenthesis makes no sense at the end of either, so it runs on to its closing one.
    """
    if not isinstance(first, ScalarNode) or first.style:
        return first
    joined, last, taken = str(first.value), first, 0
    still_open = joined.count("(") - joined.count(")")
    for piece, value in following:
        if still_open <= 0 or taken > MAX_PIECES or len(joined) > MAX_JOINED:
            break
        of_mapping = value is not None
        if not isinstance(piece, ScalarNode) or piece.style:
            return first
        if of_mapping and (not isinstance(value, ScalarNode) or value.style or value.value):
            return first
        joined, last, taken = f"{joined}, {piece.value}", piece, taken + 1
        still_open += piece.value.count("(") - piece.value.count(")")
    if still_open > 0 or not taken:
        return first
    for _ in range(taken):
        following.popleft()
    return ScalarNode(first.tag, joined, first.start_mark, last.end_mark)


def _line(place: Event | Node) -> int:
    return int(place.start_mark.line) + 1
