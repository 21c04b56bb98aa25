"""Write definitions of several files as one text, and remember where each line came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.extract.items import Item
from tuner.extract.reading import REMOVED, WRITTEN

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


def add_items(text: Text, items: Sequence[Item]) -> None:
    """Append definitions in their namespaces and under their conditions, a blank line between."""
    namespace: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    before: Item | None = None
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


def _add(text: Text, item: Item) -> None:
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


def _in_a_row(before: Item | None, item: Item) -> bool:
    if before is None:
        return True
    short = "\n" not in item.text.strip() and "\n" not in before.text.strip()
    return short and before.path == item.path and item.line - before.line <= 1


def qualified(text: str, items: Sequence[Item]) -> str:
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
