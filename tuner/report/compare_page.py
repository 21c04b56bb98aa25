"""The page of a comparison: the table of scores and the curves, in one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path

import numpy as np
from markupsafe import Markup

from tuner.report import charts
from tuner.report.html import render_page, write_page
from tuner.search.comparison import Floats, SearcherComparison, SearcherScore, SpaceResult, half
from tuner.search.recorded_spaces import recording_name

# The style sheet has so many colors.
COLORS = 8
# More points than a chart is pixels wide would only make the file longer.
MOST_POINTS = 300


@dataclass(frozen=True, slots=True)
class Curve:
    """One method: the share of the optimum after each evaluation, one row per seed."""

    name: str
    shares: Floats


def search_curves(
    label: str, curves: Sequence[Curve], random_share: Floats, *, large: bool = False
) -> Markup:
    """Draw the median of each method with the band of its quartiles, and what random expects.

    The optimum is the line at 1.
    """
    width, height = (1000, 340) if large else (380, 230)
    left, right, top, bottom = 52, 12, 14, 34
    trials = len(random_share)
    x = charts.Scale(1, max(trials, 2), left, width - right)
    y = charts.Scale(_lowest(curves, random_share), 1.0, height - bottom, top + 8)
    root = charts.canvas(width, height, _summary(label, curves), "" if large else "small")
    charts.axes(root, x, y, charts.ticks(0, x.high, 5)[1:], charts.ticks(y.low, 1.0, 4))
    charts.text(root, ((left + width - right) / 2, height - 4), "trials", "axis", "middle")
    optimum = charts.line(root, (left, y(1.0)), (width - right, y(1.0)), "optimum")
    charts.tooltip(optimum, "the optimum")
    steps = _steps(trials)
    for index, curve in enumerate(curves):
        low, high = (np.quantile(curve.shares, q, axis=0) for q in (0.25, 0.75))
        there = "L".join(_points(high, steps, x, y))
        back = "L".join(reversed(_points(low, steps, x, y)))
        charts.path(root, f"M{there}L{back}Z", f"band c{index % COLORS}")
    dashes = charts.path(root, _line(random_share, steps, x, y), "expected")
    charts.tooltip(dashes, "random search expects")
    for index, curve in enumerate(curves):
        middle = np.median(curve.shares, axis=0)
        drawn = charts.path(root, _line(middle, steps, x, y), f"median c{index % COLORS}")
        charts.tooltip(drawn, f"{curve.name}: {middle[-1]:.3f} after {trials} trials")
    return charts.markup(root)


def _summary(label: str, curves: Sequence[Curve]) -> str:
    ends = (f"{curve.name} {np.median(curve.shares[:, -1]):.3f}" for curve in curves)
    return f"Share of the optimum for {label}: {', '.join(ends)}"


def _lowest(curves: Sequence[Curve], random_share: Floats) -> float:
    """Frame all but the first tenth of the evaluations, where every method still guesses."""
    start = len(random_share) // 10
    lowest = min(
        [float(random_share[start:].min())]
        + [float(np.quantile(curve.shares[:, start:], 0.25, axis=0).min()) for curve in curves]
    )
    return min(floor(lowest * 20) / 20, 0.95)


def _steps(trials: int) -> list[int]:
    chosen = np.linspace(0, trials - 1, min(trials, MOST_POINTS)).round().astype(int)
    return sorted(set(chosen.tolist()))


def _points(shares: Floats, steps: Sequence[int], x: charts.Scale, y: charts.Scale) -> list[str]:
    return [charts.point(x(step + 1), y(float(shares[step]))) for step in steps]


def _line(shares: Floats, steps: Sequence[int], x: charts.Scale, y: charts.Scale) -> str:
    return "M" + "L".join(_points(shares, steps, x, y))


def write_comparison(comparison: SearcherComparison, path: Path, command: str = "") -> None:
    write_page(render_comparison(comparison, command), path)


def render_comparison(comparison: SearcherComparison, command: str = "") -> str:
    """Make the page's HTML; every text from outside is escaped."""
    settings = comparison.settings
    return render_page(
        "compare.html.j2",
        ("style.css", "compare.css"),
        settings=settings,
        half=half(settings.trials),
        rows=rows_of(comparison),
        legend=[(name, index % COLORS) for index, name in enumerate(settings.searchers)],
        overview=_overview(comparison) if len(comparison.results) > 1 else None,
        charts=[_chart(result) for result in comparison.results],
        spaces=comparison.results,
        command=command,
    )


def rows_of(comparison: SearcherComparison) -> list[tuple[str, Mapping[str, SearcherScore]]]:
    """List the rows of the table: each recording, and the mean of several."""
    recordings = comparison.by_recording()
    rows: list[tuple[str, Mapping[str, SearcherScore]]] = [
        (recording_name(Path(path)), scores) for path, scores in recordings.items()
    ]
    return rows if len(rows) == 1 else [*rows, ("all", comparison.overall())]


def _chart(result: SpaceResult) -> tuple[str, Markup]:
    optimum_us = result.space.optimum_us
    curves = [Curve(one.searcher, optimum_us / one.found_us) for one in result.methods]
    label = result.space.label
    return label, search_curves(label, curves, optimum_us / result.random_us)


def _overview(comparison: SearcherComparison) -> Markup:
    results = comparison.results
    curves = [
        Curve(
            name, np.mean([r.space.optimum_us / r.methods[index].found_us for r in results], axis=0)
        )
        for index, name in enumerate(comparison.settings.searchers)
    ]
    random = np.mean([r.space.optimum_us / r.random_us for r in results], axis=0)
    return search_curves(f"{len(results)} spaces", curves, random, large=True)
