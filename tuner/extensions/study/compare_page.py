"""The page of a comparison: the table of scores and the curves, in one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from markupsafe import Markup

from tuner.extensions.study.comparison import (
    Floats,
    SearcherComparison,
    SearcherScore,
    SpaceResult,
    half,
)
from tuner.report import charts
from tuner.report.pages import draw, render_page

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
    trials = len(random_share)
    x = charts.Scale(1, max(trials, 2), 52, width - 12)
    # Frame all but the first tenth of the evaluations, where every method still guesses.
    start = len(random_share) // 10
    lowest = min(
        [float(random_share[start:].min())]
        + [float(np.quantile(curve.shares[:, start:], 0.25, axis=0).min()) for curve in curves]
    )
    y = charts.Scale(min(floor(lowest * 20) / 20, 0.95), 1.0, height - 34, 22)
    steps = sorted(set(np.linspace(0, trials - 1, min(trials, MOST_POINTS)).round().astype(int)))

    def places(shares: Floats) -> list[tuple[float, float]]:
        return [(x(step + 1), y(float(shares[step]))) for step in steps]

    low, median, high = (
        [np.quantile(curve.shares, q, axis=0) for curve in curves] for q in (0.25, 0.5, 0.75)
    )
    ends = [f"{curve.name} {middle[-1]:.3f}" for curve, middle in zip(curves, median, strict=True)]
    told = [
        f"{curve.name}: {middle[-1]:.3f} after {trials} trials"
        for curve, middle in zip(curves, median, strict=True)
    ]
    return draw(
        "curves",
        label=f"Share of the optimum for {label}: {', '.join(ends)}",
        width=width,
        height=height,
        large=large,
        x=x,
        y=y,
        x_ticks=charts.ticks(0, x.high, 5)[1:],
        y_ticks=charts.ticks(y.low, 1.0, 4),
        bands=[
            charts.path([*places(top), *reversed(places(bottom))])
            for top, bottom in zip(high, low, strict=True)
        ],
        expected=charts.path(places(random_share)),
        medians=[
            (charts.path(places(middle)), title) for middle, title in zip(median, told, strict=True)
        ],
        colors=COLORS,
    )


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
        charts=[
            (result.space.label, search_curves(result.space.label, *curves_of(result)))
            for result in comparison.results
        ],
        spaces=comparison.results,
        command=command,
    )


def rows_of(comparison: SearcherComparison) -> list[tuple[str, Mapping[str, SearcherScore]]]:
    """List the rows of the table: each recording, and the mean of several."""
    recordings = comparison.by_recording()
    names = {str(result.space.path): result.space.name for result in comparison.results}
    rows: list[tuple[str, Mapping[str, SearcherScore]]] = [
        (names[path], scores) for path, scores in recordings.items()
    ]
    return rows if len(rows) == 1 else [*rows, ("all", comparison.overall())]


def curves_of(result: SpaceResult) -> tuple[list[Curve], Floats]:
    """Return each method's curve on a space, and what random search expects there."""
    optimum_us = result.space.optimum_us
    curves = [Curve(method.searcher, optimum_us / method.found_us) for method in result.methods]
    return curves, optimum_us / result.random_us


def _overview(comparison: SearcherComparison) -> Markup:
    curves, expected = zip(*map(curves_of, comparison.results), strict=True)
    means = [
        Curve(of_all[0].name, np.mean([one.shares for one in of_all], axis=0))
        for of_all in zip(*curves, strict=True)
    ]
    label = f"{len(comparison.results)} spaces"
    return search_curves(label, means, np.mean(expected, axis=0), large=True)
