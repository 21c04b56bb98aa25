"""The chart of one workload's programs by time and energy, with the front of the best of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

from markupsafe import Markup

from tuner.report import svg, wording

WIDTH = 560
PAD = 0.08


@dataclass(frozen=True, slots=True)
class Point:
    """One program: microseconds and net millijoules per call, with the range of its windows."""

    label: str
    time_us: float
    net_mj: float
    range_mj: tuple[float, float]
    baseline: bool = False
    on_front: bool = False
    chosen: bool = False


def pareto(label: str, points: Sequence[Point]) -> Markup:
    """Draw energy against time: the baseline hollow, the chosen a diamond, the front a line."""
    width, height, left, right, top, bottom = WIDTH, 320, 62, 16, 24, 44
    x = _scale([point.time_us for point in points], left, width - right)
    energies = [bound for point in points for bound in (*point.range_mj, point.net_mj)]
    y = _scale(energies, height - bottom, top)
    front = sorted((p for p in points if p.on_front), key=lambda point: point.time_us)
    summary = f"Energy against time for {label}: {len(points)} programs, {len(front)} on the front"
    root = svg.canvas(width, height, summary, "small")
    svg.axes(root, x, y, svg.ticks(x.low, x.high, 5), svg.ticks(y.low, y.high, 5))
    middle = ((left + width - right) / 2, height - 6)
    svg.text(root, middle, "time per call, us", "axis", "middle")
    svg.text(root, (4, top - 10), "energy per call above idle, mJ", "axis")
    for one, following in pairwise(front):
        start, end = (x(one.time_us), y(one.net_mj)), (x(following.time_us), y(following.net_mj))
        # In steps: between two programs there is none that would do what a slope promises.
        svg.line(root, start, (end[0], start[1]), "roof")
        svg.line(root, (end[0], start[1]), end, "roof")
    for point in points:
        _draw(root, point, x(point.time_us), y)
    return svg.markup(root)


def _draw(root: Element, point: Point, at: float, y: svg.Scale) -> None:
    low, high = point.range_mj
    svg.line(root, (at, y(low)), (at, y(high)), "whisker")
    middle = y(point.net_mj)
    if point.baseline:
        marker = svg.circle(root, at, middle, 5, "hollow")
        anchor, shift = ("end", -8) if at > WIDTH / 2 else ("start", 8)
        svg.text(root, (at + shift, middle - 7), "baseline", "axis", anchor)
    elif point.chosen:
        marker = svg.diamond(root, at, middle, 6.5, "marker held")
    else:
        marker = svg.circle(root, at, middle, 4, "marker" if point.on_front else "marker unsure")
    written = f"{wording.microseconds(point.time_us)} us, {millijoules(point.net_mj)} mJ"
    svg.tooltip(marker, f"{point.label}: {written}")


def millijoules(value: float) -> str:
    """Write an energy with three or four significant digits, without a unit."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _scale(values: Sequence[float], start: float, end: float) -> svg.Scale:
    low, high = min(values), max(values)
    pad = PAD * (high - low) or PAD * abs(high) or 1.0
    return svg.Scale(low - pad, high + pad, start, end)
