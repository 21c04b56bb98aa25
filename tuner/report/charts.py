"""The report's charts: scales and sizes from plain values; the templates `*.svg.j2` draw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, floor, inf, log10

from markupsafe import Markup

from tuner.model.statistics import floor_us, geometric_mean
from tuner.model.trial import Result
from tuner.report.formatting import coordinate
from tuner.report.pages import draw

# That of a telephone's screen, so that nothing has to be scrolled there.
WIDTH = 420
CHARACTER = 7.2  # width of a 12 px character in a wide font
# Times that are further above the best are drawn at the edge.
HIGHEST = 2.5


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


def path(points: Iterable[tuple[float, float]]) -> str:
    """Write the commands of a line through points."""
    return "M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points)


def bars(title: str, rows: Sequence[Bar]) -> Markup:
    """Draw horizontal bars on a scale from 0 to the largest, each under its label and its note."""
    most = max((row.value for row in rows), default=0) or 1
    lengths = [int((WIDTH - CHARACTER * len(row.note)) / CHARACTER) - 1 for row in rows]
    return draw("bars", label=title, rows=rows, lengths=lengths, x=Scale(0, most, 0, WIDTH))


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
    x = Scale(low, high, 8, WIDTH - 8, logarithmic)
    chosen = log_ticks(low, high) if logarithmic else ticks(low, high, 4)
    return draw("speedups", label=title, one=one, rows=rows, x=x, ticks=chosen)


def throughputs(
    results: Sequence[Result], traffic_bytes: Mapping[str, int], streaming_gbps: float
) -> Markup:
    """Draw the achieved rate of each workload against the measured streaming rate."""
    times_us = [_bounded_us(result) for result in results]
    rates = [_per_ns(traffic_bytes[one.workload.key], one) for one in results]
    x = Scale(0, max([streaming_gbps, *chain(*rates)]) * 1.02, 0, WIDTH)
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
    keys = [result.workload.key for result in results]
    intensities = [operations[key] / traffic_bytes[key] for key in keys]
    gflops = [_per_ns(operations[one.workload.key], one) for one in results]
    low, high = min(intensities) / 4, max(intensities) * 4
    ceiling = max([high * streaming_gbps, *chain(*gflops)]) * 1.3
    x = Scale(low, high, 52, WIDTH - 10, True)
    y = Scale(min(chain(*gflops)) / 1.5, ceiling, 256, 18, True)
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


def courses(
    lines: Sequence[tuple[str, Sequence[float]]], begins: Sequence[tuple[int, str]] = ()
) -> Markup:
    """Draw the best so far over the last best against trials: a line a workload, and their mean.

    `begins` names candidates with the number of trials before theirs.
    """
    most = max((len(values) for _, values in lines), default=1)
    known = [value for _, values in lines for value in values if value < inf]
    x = Scale(0, max(most, 1), 44, WIDTH - 10)
    y = Scale(1.0, min(max([1.02, *known]), HIGHEST), 226, 30)

    def steps(values: Sequence[float]) -> str:
        places: list[tuple[float, float]] = []
        for trial, value in enumerate(values, start=1):
            if value < inf and (not places or y(value) != places[-1][1]):
                places += [(x(trial), places[-1][1])] if places else []
                places.append((x(trial), y(value)))
        return path([*places, (x(len(values)), places[-1][1])]) if places else ""

    # Behind its last trial a workload stays where it is.
    longer = [[*values, *[values[-1]] * (most - len(values))] for _, values in lines if values]
    means = [
        geometric_mean(column) if all(one < inf for one in column) else inf
        for column in zip(*longer, strict=True)
    ]
    return draw(
        "courses",
        label=f"Best time so far over the last best, of {len(lines)} workloads, against trials",
        x=x,
        y=y,
        x_ticks=ticks(0, x.high, 4),
        y_ticks=ticks(1.0, y.high, 4),
        lines=[(name, steps(values)) for name, values in lines],
        mean=steps(means),
        begins=begins,
    )


def occupancies(
    trials: Sequence[tuple[float, float]], winners: Sequence[tuple[float, float]]
) -> Markup:
    """Draw times over the best of their workload against occupancy, the winners as marks."""
    x = Scale(0.0, 1.0, 44, WIDTH - 16)
    y = Scale(1.0, min(max([1.02, *(time for _, time in trials)]), HIGHEST), 226, 18)
    # One point per pixel: thousands of trials stay a few kilobytes.
    pixels = {(round(x(share)), round(y(time))) for share, time in trials}
    return draw(
        "occupancies",
        x=x,
        y=y,
        x_ticks=ticks(0.0, 1.0, 4),
        y_ticks=ticks(1.0, y.high, 4),
        dots="".join(f"M{column} {row}h0" for column, row in sorted(pixels)),
        winners=winners,
    )
