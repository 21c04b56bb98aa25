"""The report's charts: small functions from plain values to inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from markupsafe import Markup

from tuner.report import svg, wording

WIDTH = 1000
ROW = 26
CHARACTER = 7.8  # width of a 12 px character in a wide font
LONGEST_LABEL = 36


@dataclass(frozen=True, slots=True)
class Bar:
    """One labelled value with what is written beside it."""

    label: str
    value: float
    note: str


@dataclass(frozen=True, slots=True)
class Speedup:
    """One workload's speedup and its 95 % interval."""

    label: str
    value: float
    interval: tuple[float, float]
    held_out: bool
    different: bool


@dataclass(frozen=True, slots=True)
class Throughput:
    """What one workload moves per second, and the least time that its traffic takes."""

    label: str
    baseline_gbps: float
    tuned_gbps: float
    floor_us: float
    tuned_us: float
    held_out: bool


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One workload by arithmetic intensity (operations per byte) and rate (GFLOP/s)."""

    label: str
    intensity: float
    baseline_gflops: float
    tuned_gflops: float
    held_out: bool


def bars(title: str, rows: Sequence[Bar]) -> Markup:
    """Draw labelled horizontal bars on a scale from 0 to the largest."""
    left = _label_width([row.label for row in rows])
    right = 20 + CHARACTER * max((len(row.note) for row in rows), default=0)
    scale = svg.Scale(0, max((row.value for row in rows), default=0) or 1, left, WIDTH - right)
    root = svg.canvas(WIDTH, ROW * len(rows) + 8, title)
    for index, row in enumerate(rows):
        middle = 4 + ROW * index + ROW / 2
        _label(root, left, middle, row.label)
        svg.rectangle(root, (left, middle - 7), scale(row.value) - left, 14, "bar")
        svg.text(root, (scale(row.value) + 8, middle + 4), row.note, "value")
    return svg.markup(root)


def speedups(
    rows: Sequence[Speedup],
    title: str = "Speedup over the baseline with 95 % intervals",
    one: str = "baseline",
) -> Markup:
    """Draw each workload's speedup with its interval, against the line at 1, named `one`."""
    left, right, foot = _label_width([row.label for row in rows]), 180, 38
    bounds = [1.0, *(bound for row in rows for bound in (*row.interval, row.value))]
    low, high = min(bounds), max(bounds)
    pad = 0.06 * (high - low) or 0.05
    logarithmic = high > 4 * low
    low, high = (low / 1.1, high * 1.1) if logarithmic else (low - pad, high + pad)
    x = svg.Scale(low, high, left, WIDTH - right, logarithmic)
    bottom = ROW * len(rows) + 6
    root = svg.canvas(WIDTH, bottom + foot, title)
    for tick in svg.log_ticks(low, high) if logarithmic else svg.ticks(low, high, 6):
        svg.line(root, (x(tick), 4), (x(tick), bottom), "grid")
        svg.text(root, (x(tick), bottom + 15), f"{svg.tick_label(tick)}x", "axis", "middle")
    svg.line(root, (x(1.0), 2), (x(1.0), bottom), "one")
    svg.text(root, (x(1.0), bottom + 31), one, "axis", "middle")
    for index, row in enumerate(rows):
        _speedup_row(root, row, x, 4 + ROW * index + ROW / 2, left)
    return svg.markup(root)


def throughputs(rows: Sequence[Throughput], streaming_gbps: float) -> Markup:
    """Draw the achieved rate of each workload against the measured streaming rate."""
    left, right, head, foot = _label_width([row.label for row in rows]), 280, 20, 24
    rates = [rate for row in rows for rate in (row.tuned_gbps, row.baseline_gbps)]
    x = svg.Scale(0, max([streaming_gbps, *rates]) * 1.02, left, WIDTH - right)
    bottom = head + ROW * len(rows) + 2
    root = svg.canvas(WIDTH, bottom + foot, "Achieved memory rate against the streaming rate")
    for tick in svg.ticks(0, x.high, 5):
        svg.line(root, (x(tick), head), (x(tick), bottom), "grid")
        svg.text(root, (x(tick), bottom + 16), svg.tick_label(tick), "axis", "middle")
    svg.text(root, (WIDTH - right + 14, bottom + 16), "GB/s", "axis")
    for index, row in enumerate(rows):
        _throughput_row(root, row, streaming_gbps, x, head + ROW * index + ROW / 2)
    svg.line(root, (x(streaming_gbps), head - 4), (x(streaming_gbps), bottom), "roof")
    label = f"streaming {streaming_gbps:,.0f} GB/s"
    svg.text(root, (x(streaming_gbps), head - 8), label, "axis", "end")
    return svg.markup(root)


def roofline(points: Sequence[RooflinePoint], streaming_gbps: float) -> Markup:
    """Draw rate against arithmetic intensity, both logarithmic, under the memory roof."""
    width, height, left, right, top, bottom = WIDTH, 330, 74, 20, 16, 44
    intensities = [point.intensity for point in points]
    rates = [rate for p in points for rate in (p.baseline_gflops, p.tuned_gflops)]
    low, high = min(intensities) / 4, max(intensities) * 4
    x = svg.Scale(low, high, left, width - right, True)
    ceiling = max([high * streaming_gbps, *rates]) * 1.3
    y = svg.Scale(min(rates) / 1.5, ceiling, height - bottom, top, True)
    root = svg.canvas(width, height, "Roofline: rate against arithmetic intensity")
    svg.axes(root, x, y, svg.log_ticks(low, high), svg.log_ticks(y.low, y.high))
    start = max(low, y.low / streaming_gbps)
    svg.line(
        root, (x(start), y(start * streaming_gbps)), (x(high), y(high * streaming_gbps)), "roof"
    )
    label = f"{streaming_gbps:,.0f} GB/s"
    svg.text(root, (x(high) - 8, y(high * streaming_gbps) + 26), label, "axis", "end")
    middle = (left + width - right) / 2
    svg.text(root, (middle, height - 6), "operations per byte", "axis", "middle")
    svg.text(root, (4, top - 4), "GFLOP/s", "axis")
    for one in points:
        before, after = y(one.baseline_gflops), y(one.tuned_gflops)
        svg.line(root, (x(one.intensity), before), (x(one.intensity), after), "whisker")
        svg.circle(root, x(one.intensity), before, 3.5, "hollow")
        marker = _marker(root, x(one.intensity), after, one.held_out, True)
        svg.tooltip(marker, f"{one.label}: {one.tuned_gflops:,.0f} GFLOP/s")
    return svg.markup(root)


def _speedup_row(root: Element, row: Speedup, x: svg.Scale, middle: float, left: float) -> None:
    _label(root, left, middle, row.label)
    low, high = row.interval
    svg.line(root, (x(low), middle), (x(high), middle), "whisker")
    for bound in row.interval:
        svg.line(root, (x(bound), middle - 4), (x(bound), middle + 4), "whisker")
    marker = _marker(root, x(row.value), middle, row.held_out, row.different)
    written = f"{wording.ratio(row.value)} {wording.interval(row.interval)}"
    svg.tooltip(marker, f"{row.label}: {written}")
    svg.text(root, (WIDTH - 160, middle + 4), written, "value")


def _throughput_row(
    root: Element, row: Throughput, streaming_gbps: float, x: svg.Scale, middle: float
) -> None:
    _label(root, x.start, middle, row.label)
    css_class = "bar held" if row.held_out else "bar"
    bar = svg.rectangle(root, (x.start, middle - 7), x(row.tuned_gbps) - x.start, 14, css_class)
    svg.tooltip(bar, f"{row.label}: tuned {row.tuned_gbps:,.0f} GB/s")
    tick = x(row.baseline_gbps)
    mark = svg.line(root, (tick, middle - 10), (tick, middle + 10), "before")
    svg.tooltip(mark, f"{row.label}: baseline {row.baseline_gbps:,.0f} GB/s")
    share = wording.percent(row.tuned_gbps / streaming_gbps)
    times = f"{wording.microseconds(row.tuned_us)} us, floor {wording.microseconds(row.floor_us)}"
    note = f"{row.tuned_gbps:,.0f} ({share}); {times}"
    svg.text(root, (x.end + 14, middle + 4), note, "value")


def _marker(root: Element, x: float, y: float, held_out: bool, filled: bool) -> Element:
    css_class = "marker" if filled else "marker unsure"
    if held_out:
        return svg.diamond(root, x, y, 5.5, f"{css_class} held")
    return svg.circle(root, x, y, 4, css_class)


def _label(root: Element, left: float, middle: float, label: str) -> None:
    short = label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"
    element = svg.text(root, (left - 10, middle + 4), short, "label", "end")
    if short != label:
        svg.tooltip(element, label)


def _label_width(labels: Sequence[str]) -> float:
    longest = max((len(label) for label in labels), default=0)
    return 16 + CHARACTER * min(longest, LONGEST_LABEL)
