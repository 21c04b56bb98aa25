"""One value more in a parameter's list, in the text of a search space; the rest stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.events import (
    Event,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from tuner.errors import SpaceError
from tuner.expressions import Value
from tuner.space import format_value

_DASH = re.compile(r"[ \t]*-[ \t]+")


@dataclass(frozen=True, slots=True)
class Item:
    """One value of a list as the file writes it: its text's place, and whether dashes list it."""

    text: str
    start: int
    end: int
    dashed: bool


def add_value(text: str, parameter: str, value: Value, *, beside: Value) -> str:
    """Write `value` next to the value `beside` of a parameter, on the side where its order goes on.

    Comments and layout stay. Raises `SpaceError` where the text does not list `beside`.
    """
    items = list(_items(text, parameter))
    places = [i for i, item in enumerate(items) if _is(item.text, beside)]
    if not places:
        raise SpaceError(
            f"`{parameter}` has no value {format_value(beside)}", path=Path("space.yaml")
        )
    place, new = places[0], format_value(value)
    item, before = items[place], place == 0 and len(items) > 1
    if not item.dashed:
        at, piece = (item.start, f"{new}, ") if before else (item.end, f", {new}")
        return text[:at] + piece + text[at:]
    start = text.rfind("\n", 0, item.start) + 1
    end = text.find("\n", item.end)
    end = len(text) if end < 0 else end + 1
    dash = _DASH.match(text, start)
    line = f"{dash[0] if dash else '  - '}{new}\n"
    if before:
        return text[:start] + line + text[start:]
    joint = "" if text[:end].endswith("\n") else "\n"
    return text[:end] + joint + line + text[end:]


def comment_on(text: str, line: int) -> str:
    """Return the comment at the end of a line, counted from 1; "" where it has none."""
    rows = text.splitlines()
    return rows[line - 1].partition(" #")[2].strip() if 0 < line <= len(rows) else ""


def _is(text: str, value: Value) -> bool:
    try:
        return int(text, 0) == value
    except ValueError:
        return text == format_value(value)


def _items(text: str, parameter: str) -> Iterator[Item]:
    events = YAML(typ="safe", pure=True).parse(text)
    started = (event for event in events if isinstance(event, MappingStartEvent))
    for place, event in _listed(events, next(started), ()):
        if place == ("parameters", parameter):
            start, end = event.start_mark.index, event.end_mark.index
            line = text.rfind("\n", 0, start) + 1
            dashed = _DASH.fullmatch(text, line, start) is not None
            yield Item(str(event.value), start, end, dashed)


def _listed(
    events: Iterator[Event], event: Event, place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ScalarEvent]]:
    if isinstance(event, MappingStartEvent):
        while isinstance(key := next(events), ScalarEvent):
            yield from _listed(events, next(events), (*place, str(key.value)))
    elif isinstance(event, SequenceStartEvent):
        while not isinstance(item := next(events), SequenceEndEvent):
            if isinstance(item, ScalarEvent):
                yield place, item
            else:
                yield from _listed(events, item, (*place, ""))
