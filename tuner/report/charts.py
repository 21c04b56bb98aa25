"""The report's charts: scales and sizes from plain values; the templates `*.svg.j2` draw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, floor, log10
from typing import Literal

from markupsafe import Markup

from tuner.model.statistics import floor_us
from tuner.model.trial import Result
from tuner.report.formatting import coordinate
from tuner.report.pages import draw

WIDTH = 1000
_PANELS = 4  # side by side
CHARACTER = 7.8  # width of a 12 px character in a wide font
LONGEST_LABEL = 36  # as svg.j2 cuts them


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


DotKind = Literal["winner", "finalist", "other"]


@dataclass(frozen=True, slots=True)
class Dot:
    """One program: its times alone and in the surroundings, both over the winner's."""

    name: str
    kind: DotKind
    alone: float
    around: float


@dataclass(frozen=True, slots=True)
class Panel:
    label: str
    dots: tuple[Dot, ...]


def around(panels: Sequence[Panel]) -> Markup:
    """Draw small charts, four in a row: cost in the surroundings against time alone.

    Both axes of a chart have one scale: on its diagonal the two say the same. The baseline and
    peers that are far behind all finalists stand at the edge.
    """
    placed = []
    for index, panel in enumerate(panels):
        own = [v for d in panel.dots if d.kind != "other" for v in (d.alone, d.around)]
        others = [v for d in panel.dots if d.kind == "other" for v in (d.alone, d.around)]
        low, high = min([*own, *others, 1.0]), max(own)
        high = max(high, 1.02)
        high = max([high, *(v for v in others if v <= 2.0 * high - 1.0)])
        pad = 0.08 * (high - low)
        column, row = index % _PANELS, index // _PANELS
        left, top = 44 + 250 * column, 26 + 236 * row
        x = Scale(low - pad, high + pad, left, left + 180)
        y = Scale(low - pad, high + pad, top + 160, top)
        placed.append((panel, x, y, ticks(x.low, x.high, 3)))
    return draw("around", panels=placed, rows=-(-len(panels) // _PANELS))


def path(points: Iterable[tuple[float, float]]) -> str:
    """Write the commands of a line through points."""
    return "M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points)


def bars(title: str, rows: Sequence[Bar]) -> Markup:
    """Draw labelled horizontal bars on a scale from 0 to the largest."""
    right = 20 + CHARACTER * max((len(row.note) for row in rows), default=0)
    most = max((row.value for row in rows), default=0) or 1
    x = Scale(0, most, _label_width([row.label for row in rows]), WIDTH - right)
    return draw("bars", label=title, rows=rows, x=x)


def speedups(
    rows: Sequence[Speedup],
    title: str = "Speedup over the baseline with 95 % intervals",
    one: str = "baseline",
) -> Markup:
    """Draw each workload's speedup with its interval, against the line at 1, named `one`."""
    bounds = [1.0, *(bound for row in rows for bound in (*row.interval, row.value))]
    low, high = min(bounds), max(bounds)
    pad = 0.06 * (high - low) or 0.05
    logarithmic = high > 4 * low
    low, high = (low / 1.1, high * 1.1) if logarithmic else (low - pad, high + pad)
    x = Scale(low, high, _label_width([row.label for row in rows]), WIDTH - 180, logarithmic)
    chosen = log_ticks(low, high) if logarithmic else ticks(low, high, 6)
    return draw("speedups", label=title, one=one, rows=rows, x=x, ticks=chosen)


def throughputs(
    results: Sequence[Result], traffic_bytes: Mapping[str, int], streaming_gbps: float
) -> Markup:
    """Draw the achieved rate of each workload against the measured streaming rate."""
    times_us = [_bounded_us(one) for one in results]
    rates = [_per_ns(traffic_bytes[one.workload.key], one) for one in results]
    width = _label_width([str(one.workload) for one in results])
    x = Scale(0, max([streaming_gbps, *chain(*rates)]) * 1.02, width, WIDTH - 280)
    floors_us = [floor_us(traffic_bytes[one.workload.key], streaming_gbps) for one in results]
    return draw(
        "throughputs",
        rows=list(zip(results, times_us, rates, floors_us, strict=True)),
        x=x,
        ticks=ticks(0, x.high, 5),
        streaming_gbps=streaming_gbps,
    )


def roofline(
    results: Sequence[Result],
    traffic_bytes: Mapping[str, int],
    operations: Mapping[str, int],
    streaming_gbps: float,
    compute_roof: tuple[str, float] | None = None,
) -> Markup:
    """Draw rate against arithmetic intensity, both logarithmic, under the roofs.

    That of the declared peak (its name and GFLOP/s) is drawn where the memory's reaches it.
    """
    keys = [one.workload.key for one in results]
    intensities = [operations[key] / traffic_bytes[key] for key in keys]
    gflops = [_per_ns(operations[one.workload.key], one) for one in results]
    low, high = min(intensities) / 4, max(intensities) * 4
    ceiling = max([high * streaming_gbps, *chain(*gflops)]) * 1.3
    x = Scale(low, high, 74, WIDTH - 20, True)
    y = Scale(min(chain(*gflops)) / 1.5, ceiling, 286, 16, True)
    return draw(
        "roofline",
        points=list(zip(results, intensities, gflops, strict=True)),
        x=x,
        y=y,
        x_ticks=log_ticks(low, high),
        y_ticks=log_ticks(y.low, y.high),
        streaming_gbps=streaming_gbps,
        compute_roof=compute_roof if compute_roof and compute_roof[1] < ceiling else None,
    )


def _per_ns(amount: int, result: Result) -> list[float]:
    return [amount / us / 1e3 for us in _bounded_us(result)]


def _bounded_us(result: Result) -> tuple[float, float]:
    # Between neighbours inputs lie in the L2: no roof bounds that, so these are the times alone.
    baseline_us, tuned_us = result.alone_baseline_us, result.alone_us
    return baseline_us or result.baseline_us, tuned_us or result.tuned_us


def _label_width(labels: Sequence[str]) -> float:
    return 16 + CHARACTER * min(max(map(len, labels), default=0), LONGEST_LABEL)
