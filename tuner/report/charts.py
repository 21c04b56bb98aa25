"""The report's charts: small functions from plain values to inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, floor, log10
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from tuner.model.statistics import floor_us
from tuner.report import formatting


@dataclass(frozen=True, slots=True)
class Scale:
    """Map values between `low` and `high` to pixels between `start` and `end`; clamps."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, at = log10(low), log10(high), log10(at)
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def canvas(width: int, height: int, label: str, css_class: str = "") -> Element:
    """Start a chart that a screen reader announces by `label`."""
    attributes = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": label}
    if css_class:
        attributes["class"] = css_class
    return Element("svg", attributes)


def markup(root: Element) -> Markup:
    return Markup(tostring(root, encoding="unicode"))


def text(
    parent: Element, at: tuple[float, float], content: str, css_class: str, anchor: str = "start"
) -> Element:
    """Write text whose baseline starts, has its middle or ends `at` a point."""
    where = {"x": _number(at[0]), "y": _number(at[1]), "text-anchor": anchor}
    element = SubElement(parent, "text", {**where, "class": css_class})
    element.text = printable(content)
    return element


def line(
    parent: Element, start: tuple[float, float], end: tuple[float, float], css_class: str
) -> Element:
    (x1, y1), (x2, y2) = start, end
    return _shape(parent, "line", css_class, x1=x1, y1=y1, x2=x2, y2=y2)


def circle(parent: Element, x: float, y: float, radius: float, css_class: str) -> Element:
    return _shape(parent, "circle", css_class, cx=x, cy=y, r=radius)


def diamond(parent: Element, x: float, y: float, radius: float, css_class: str) -> Element:
    corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
    return path(parent, "M" + "L".join(point(*corner) for corner in corners) + "Z", css_class)


def path(parent: Element, commands: str, css_class: str) -> Element:
    return SubElement(parent, "path", {"d": commands, "class": css_class})


def _bar(parent: Element, start: float, end: float, middle: float, css_class: str) -> Element:
    width = max(end - start, 0.0)
    return _shape(parent, "rect", css_class, x=start, y=middle - 7, width=width, height=14, rx=2)


def _shape(parent: Element, tag: str, css_class: str, **sizes: float) -> Element:
    numbers = {name: _number(value) for name, value in sizes.items()}
    return SubElement(parent, tag, {**numbers, "class": css_class})


def axes(
    root: Element, x: Scale, y: Scale, x_ticks: Sequence[float], y_ticks: Sequence[float]
) -> None:
    """Draw a chart's ticks, their grid and the line at the bottom."""
    for tick in y_ticks:
        line(root, (x.start, y(tick)), (x.end, y(tick)), "grid")
        text(root, (x.start - 6, y(tick) + 4), tick_label(tick), "axis", "end")
    for tick in x_ticks:
        text(root, (x(tick), y.start + 15), tick_label(tick), "axis", "middle")
    line(root, (x.start, y.start), (x.end, y.start), "frame")


def tooltip(element: Element, content: str) -> None:
    """Name an element for the pointer and for screen readers."""
    SubElement(element, "title").text = printable(content)


def point(x: float, y: float) -> str:
    return f"{_number(x)} {_number(y)}"


def ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Choose about `count` round values between `low` and `high`."""
    if high <= low:
        return (low,)
    rough = (high - low) / count
    magnitude = 10.0 ** floor(log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Choose 1, 2 and 5 times powers of ten; beyond three decades the powers alone."""
    multiples: Sequence[int] = (1, 2, 5) if log10(high / low) < 3 else (1,)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    values = (m * 10.0**decade for decade in decades for m in multiples)
    return tuple(value for value in values if low <= value <= high)


def tick_label(value: float) -> str:
    """Write a tick without needless zeros."""
    if value != 0 and not 0.001 <= abs(value) < 1e6:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def printable(content: str) -> str:
    """Drop the control characters that XML cannot hold."""
    return "".join(c if c >= " " or c in "\t\n" else "?" for c in content)


WIDTH = 1000
ROW = 26
CHARACTER = 7.8  # width of a 12 px character in a wide font
LONGEST_LABEL = 36


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    note: str


@dataclass(frozen=True, slots=True)
class Speedup:
    label: str
    value: float
    interval: tuple[float, float]
    held_out: bool
    different: bool


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """The fewest bytes and operations of a call on one workload, and what it took.

    `operations` is None where they are not known.
    """

    label: str
    traffic_bytes: int
    operations: int | None
    baseline_us: float
    tuned_us: float
    held_out: bool


def bars(title: str, rows: Sequence[Bar]) -> Markup:
    """Draw labelled horizontal bars on a scale from 0 to the largest."""
    left = _label_width(rows)
    right = 20 + CHARACTER * max((len(row.note) for row in rows), default=0)
    scale = Scale(0, max((row.value for row in rows), default=0) or 1, left, WIDTH - right)
    root = canvas(WIDTH, ROW * len(rows) + 8, title)
    for index, row in enumerate(rows):
        middle = 4 + ROW * index + ROW / 2
        _label(root, left, middle, row.label)
        _bar(root, left, scale(row.value), middle, "bar")
        text(root, (scale(row.value) + 8, middle + 4), row.note, "value")
    return markup(root)


def speedups(
    rows: Sequence[Speedup],
    title: str = "Speedup over the baseline with 95 % intervals",
    one: str = "baseline",
) -> Markup:
    """Draw each workload's speedup with its interval, against the line at 1, named `one`."""
    left, right, foot = _label_width(rows), 180, 38
    bounds = [1.0, *(bound for row in rows for bound in (*row.interval, row.value))]
    low, high = min(bounds), max(bounds)
    pad = 0.06 * (high - low) or 0.05
    logarithmic = high > 4 * low
    low, high = (low / 1.1, high * 1.1) if logarithmic else (low - pad, high + pad)
    x = Scale(low, high, left, WIDTH - right, logarithmic)
    bottom = ROW * len(rows) + 6
    root = canvas(WIDTH, bottom + foot, title)
    for tick in log_ticks(low, high) if logarithmic else ticks(low, high, 6):
        line(root, (x(tick), 4), (x(tick), bottom), "grid")
        text(root, (x(tick), bottom + 15), f"{tick_label(tick)}x", "axis", "middle")
    line(root, (x(1.0), 2), (x(1.0), bottom), "one")
    text(root, (x(1.0), bottom + 31), one, "axis", "middle")
    for index, row in enumerate(rows):
        middle = 4 + ROW * index + ROW / 2
        _label(root, left, middle, row.label)
        line(root, (x(row.interval[0]), middle), (x(row.interval[1]), middle), "whisker")
        for bound in row.interval:
            line(root, (x(bound), middle - 4), (x(bound), middle + 4), "whisker")
        written = f"{formatting.ratio(row.value)} {formatting.interval(row.interval)}"
        marker = _marker(root, x(row.value), middle, row.held_out, row.different)
        tooltip(marker, f"{row.label}: {written}")
        text(root, (WIDTH - 160, middle + 4), written, "value")
    return markup(root)


def throughputs(rows: Sequence[RooflinePoint], streaming_gbps: float) -> Markup:
    """Draw the achieved rate of each workload against the measured streaming rate."""
    left, right, head, foot = _label_width(rows), 280, 20, 24
    rates = [
        [row.traffic_bytes / us / 1e3 for us in (row.baseline_us, row.tuned_us)] for row in rows
    ]
    x = Scale(0, max([streaming_gbps, *chain(*rates)]) * 1.02, left, WIDTH - right)
    bottom = head + ROW * len(rows) + 2
    root = canvas(WIDTH, bottom + foot, "Achieved memory rate against the streaming rate")
    for tick in ticks(0, x.high, 5):
        line(root, (x(tick), head), (x(tick), bottom), "grid")
        text(root, (x(tick), bottom + 16), tick_label(tick), "axis", "middle")
    text(root, (WIDTH - right + 14, bottom + 16), "GB/s", "axis")
    for index, (row, (baseline_gbps, tuned_gbps)) in enumerate(zip(rows, rates, strict=True)):
        middle, tick = head + ROW * index + ROW / 2, x(baseline_gbps)
        _label(root, left, middle, row.label)
        bar = _bar(root, left, x(tuned_gbps), middle, "bar held" if row.held_out else "bar")
        tooltip(bar, f"{row.label}: tuned {tuned_gbps:,.0f} GB/s")
        mark = line(root, (tick, middle - 10), (tick, middle + 10), "before")
        tooltip(mark, f"{row.label}: baseline {baseline_gbps:,.0f} GB/s")
        least, us = floor_us(row.traffic_bytes, streaming_gbps), formatting.microseconds
        share = formatting.percent(tuned_gbps / streaming_gbps)
        note = f"{tuned_gbps:,.0f} ({share}); {us(row.tuned_us)} us, floor {us(least)}"
        text(root, (x.end + 14, middle + 4), note, "value")
    line(root, (x(streaming_gbps), head - 4), (x(streaming_gbps), bottom), "roof")
    label = f"streaming {streaming_gbps:,.0f} GB/s"
    text(root, (x(streaming_gbps), head - 8), label, "axis", "end")
    return markup(root)


def roofline(points: Sequence[RooflinePoint], streaming_gbps: float) -> Markup:
    """Draw rate against arithmetic intensity, both logarithmic, under the memory roof."""
    width, height, left, right, top, bottom = WIDTH, 330, 74, 20, 16, 44
    known = [(one, one.operations) for one in points if one.operations]
    intensities = [count / one.traffic_bytes for one, count in known]
    gflops = [[count / us / 1e3 for us in (one.baseline_us, one.tuned_us)] for one, count in known]
    low, high = min(intensities) / 4, max(intensities) * 4
    x = Scale(low, high, left, width - right, True)
    ceiling = max([high * streaming_gbps, *chain(*gflops)]) * 1.3
    y = Scale(min(chain(*gflops)) / 1.5, ceiling, height - bottom, top, True)
    root = canvas(width, height, "Roofline: rate against arithmetic intensity")
    axes(root, x, y, log_ticks(low, high), log_ticks(y.low, y.high))
    start = max(low, y.low / streaming_gbps)
    line(root, (x(start), y(start * streaming_gbps)), (x(high), y(high * streaming_gbps)), "roof")
    label = f"{streaming_gbps:,.0f} GB/s"
    text(root, (x(high) - 8, y(high * streaming_gbps) + 26), label, "axis", "end")
    middle = (left + width - right) / 2
    text(root, (middle, height - 6), "operations per byte", "axis", "middle")
    text(root, (4, top - 4), "GFLOP/s", "axis")
    for (one, _), intensity, (before, after) in zip(known, intensities, gflops, strict=True):
        line(root, (x(intensity), y(before)), (x(intensity), y(after)), "whisker")
        circle(root, x(intensity), y(before), 3.5, "hollow")
        marker = _marker(root, x(intensity), y(after), one.held_out, True)
        tooltip(marker, f"{one.label}: {after:,.0f} GFLOP/s")
    return markup(root)


def _marker(root: Element, x: float, y: float, held_out: bool, filled: bool) -> Element:
    css_class = "marker" if filled else "marker unsure"
    if held_out:
        return diamond(root, x, y, 5.5, f"{css_class} held")
    return circle(root, x, y, 4, css_class)


def _label(root: Element, left: float, middle: float, label: str) -> None:
    short = label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"
    element = text(root, (left - 10, middle + 4), short, "label", "end")
    if short != label:
        tooltip(element, label)


def _label_width(rows: Sequence[Bar | Speedup | RooflinePoint]) -> float:
    longest = max((len(row.label) for row in rows), default=0)
    return 16 + CHARACTER * min(longest, LONGEST_LABEL)
