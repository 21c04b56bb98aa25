"""The tree of candidates as a picture: round by round to the right, faster ones higher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import Element, SubElement

from markupsafe import Markup

from tuner.report import svg, wording

DESCRIPTION = "candidates-description"
WIDTH = 1000
LEFT, RIGHT, TOP, HEIGHT = 64, 24, 30, 250
NARROWEST, WIDEST = 46.0, 150.0  # of one round
LONGEST_NAME = 9

# `failed` is a round without a candidate, `unknown` a candidate without a time.
Shape = Literal["candidate", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What one round left in the picture; `round` 0 is what the run began with.

    `base` is the name that it was built on, "" where there is none. `told` says in a few words
    what became of it.
    """

    round: int
    name: str
    base: str
    shape: Shape
    told: str
    speedup: float | None = None
    won: bool = False


def tree(marks: Sequence[Mark]) -> Markup:
    """Draw candidates by round and speedup, with a line to what each was built on.

    Failed rounds lie in a row of their own below the scale; winners and what they grew from stand
    out.
    """
    placed = _Places.of(marks)
    root = svg.canvas(placed.width, placed.height, "The tree of candidates", placed.css_class)
    root.set("aria-describedby", DESCRIPTION)
    svg.tooltip(root, "The tree of candidates")
    described = SubElement(root, "desc", {"id": DESCRIPTION})
    described.text = svg.printable(" ".join(_sentence(mark) for mark in marks))
    _scales(root, placed, marks)
    lineage = _lineage(marks)
    by_name = {mark.name: mark for mark in marks if mark.shape != "failed"}
    for mark in marks:
        if base := by_name.get(mark.base):
            _edge(root, placed, base, mark, mark.shape != "failed" and mark.name in lineage)
    for mark in marks:
        _node(root, placed, mark)
    return svg.markup(root)


@dataclass(frozen=True, slots=True)
class _Places:
    x: svg.Scale
    y: svg.Scale
    below: float | None

    @classmethod
    def of(cls, marks: Sequence[Mark]) -> _Places:
        columns = max((mark.round for mark in marks), default=0) + 1
        step = min(max((WIDTH - LEFT - RIGHT) / columns, NARROWEST), WIDEST)
        first = LEFT + step / 2
        x = svg.Scale(0, max(columns - 1, 1), first, first + step * max(columns - 1, 1))
        known = [1.0, *(mark.speedup for mark in marks if mark.speedup is not None)]
        low, high = min(known), max(known)
        logarithmic = high > 4 * low
        pad = 0.12 * (high - low) or 0.1
        low, high = (low / 1.15, high * 1.15) if logarithmic else (low - pad, high + pad)
        y = svg.Scale(low, high, TOP + HEIGHT, TOP, logarithmic)
        lost = any(mark.speedup is None for mark in marks)
        return cls(x, y, TOP + HEIGHT + 34 if lost else None)

    @property
    def width(self) -> int:
        return max(WIDTH, round(self.x.end + NARROWEST / 2 + RIGHT))

    @property
    def css_class(self) -> str:
        return "tree wide" if self.width > 1.3 * WIDTH else "tree"

    @property
    def foot(self) -> float:
        return TOP + HEIGHT + (50 if self.below is not None else 14)

    @property
    def height(self) -> int:
        return round(self.foot + 40)

    def at(self, mark: Mark) -> tuple[float, float]:
        if mark.speedup is None:
            return self.x(mark.round), self.below or 0.0
        return self.x(mark.round), self.y(mark.speedup)


def _scales(root: Element, placed: _Places, marks: Sequence[Mark]) -> None:
    x, y = placed.x, placed.y
    right = placed.width - RIGHT
    for tick in svg.log_ticks(y.low, y.high) if y.logarithmic else svg.ticks(y.low, y.high, 5):
        svg.line(root, (LEFT, y(tick)), (right, y(tick)), "grid")
        svg.text(root, (LEFT - 8, y(tick) + 4), f"{svg.tick_label(tick)}x", "axis", "end")
    svg.line(root, (LEFT, y(1.0)), (right, y(1.0)), "one")
    svg.text(root, (right, y(1.0) - 5), "baseline", "axis", "end")
    if placed.below is not None:
        svg.text(root, (LEFT - 8, placed.below + 4), "no result", "axis", "end")
    for number in sorted({mark.round for mark in marks}):
        label = str(number) if number else "start"
        svg.text(root, (x(number), placed.foot + 14), label, "axis", "middle")
    middle = (x.start + x(max((mark.round for mark in marks), default=0))) / 2
    svg.text(root, (middle, placed.foot + 32), "round", "axis", "middle")


def _edge(root: Element, placed: _Places, base: Mark, mark: Mark, won: bool) -> None:
    start, end = placed.at(base), placed.at(mark)
    css_class = "edge won" if won else "edge lost" if mark.speedup is None else "edge"
    middle = (start[0] + end[0]) / 2
    curve = " ".join(svg.point(*at) for at in ((middle, start[1]), (middle, end[1]), end))
    svg.path(root, f"M{svg.point(*start)}C{curve}", css_class)


def _node(root: Element, placed: _Places, mark: Mark) -> None:
    x, y = placed.at(mark)
    if mark.shape == "failed":
        drawn = svg.path(root, f"M{svg.point(x - 5, y - 5)}l10 10m0 -10l-10 10", "cross")
    elif mark.speedup is None:
        drawn = svg.circle(root, x, y, 5, "node unknown")
    else:
        drawn = svg.circle(root, x, y, 7 if mark.won else 5, "node won" if mark.won else "node")
        css_class = "name won" if mark.won else "name"
        svg.text(root, (x, y - 13), _short(mark.name), css_class, "middle")
        svg.text(root, (x, y + 23), wording.ratio(mark.speedup), css_class, "middle")
    svg.tooltip(drawn, _sentence(mark))


def _lineage(marks: Sequence[Mark]) -> frozenset[str]:
    """Collect the winners and all that they grew from."""
    bases: Mapping[str, str] = {m.name: m.base for m in marks if m.shape != "failed"}
    found: set[str] = set()
    for mark in marks:
        name = mark.name if mark.won else ""
        while name and name not in found:
            found.add(name)
            name = bases.get(name, "")
    return frozenset(found)


def _sentence(mark: Mark) -> str:
    built = f" built on {mark.base}" if mark.base else ""
    which = f"Round {mark.round}, " if mark.round else ""
    return f"{which}{mark.name}{built}: {mark.told}."


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
