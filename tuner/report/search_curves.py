"""The chart of search methods over one space: how near the best found so far is to the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from markupsafe import Markup

from tuner.comparing.scores import Floats
from tuner.report import svg

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
    x = svg.Scale(1, max(trials, 2), left, width - right)
    y = svg.Scale(_lowest(curves, random_share), 1.0, height - bottom, top + 8)
    root = svg.canvas(width, height, _summary(label, curves), "" if large else "small")
    svg.axes(root, x, y, svg.ticks(0, x.high, 5)[1:], svg.ticks(y.low, 1.0, 4))
    svg.text(root, ((left + width - right) / 2, height - 4), "trials", "axis", "middle")
    optimum = svg.line(root, (left, y(1.0)), (width - right, y(1.0)), "optimum")
    svg.tooltip(optimum, "the optimum")
    steps = _steps(trials)
    for index, curve in enumerate(curves):
        low, high = (np.quantile(curve.shares, q, axis=0) for q in (0.25, 0.75))
        there = "L".join(_points(high, steps, x, y))
        back = "L".join(reversed(_points(low, steps, x, y)))
        svg.path(root, f"M{there}L{back}Z", f"band c{index % COLORS}")
    dashes = svg.path(root, _line(random_share, steps, x, y), "expected")
    svg.tooltip(dashes, "random search expects")
    for index, curve in enumerate(curves):
        middle = np.median(curve.shares, axis=0)
        drawn = svg.path(root, _line(middle, steps, x, y), f"median c{index % COLORS}")
        svg.tooltip(drawn, f"{curve.name}: {middle[-1]:.3f} after {trials} trials")
    return svg.markup(root)


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


def _points(shares: Floats, steps: Sequence[int], x: svg.Scale, y: svg.Scale) -> list[str]:
    return [svg.point(x(step + 1), y(float(shares[step]))) for step in steps]


def _line(shares: Floats, steps: Sequence[int], x: svg.Scale, y: svg.Scale) -> str:
    return "M" + "L".join(_points(shares, steps, x, y))
