"""The chart of one workload's search: the best time so far, and where each candidate began."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from markupsafe import Markup

from tuner.report import svg, wording

CHARACTER = 6.4  # width of an 11 px character in a wide font


def convergence(
    label: str,
    times_us: Sequence[float | None],
    ranked_only: Sequence[bool],
    baseline_us: float | None,
    begins: Sequence[tuple[int, str]] = (),
) -> Markup:
    """Draw the best time so far against the number of trials, over all trials as dots.

    `times_us` has None for a trial without a time. `ranked_only` marks those stopped early, which
    never become the best. `begins` names the candidates with the number of trials before theirs.
    """
    head = 18 if begins else 0
    width, height, left, right, top, bottom = 380, 210 + head, 52, 12, 14 + head, 34
    best = _best_so_far(times_us, ranked_only)
    low, high = _time_range(times_us, best, baseline_us)
    x = svg.Scale(0, max(len(times_us), 1), left, width - right)
    y = svg.Scale(low, high, height - bottom, top)
    shown = best[-1][1] if best else None
    summary = f"best {wording.microseconds(shown)} us" if shown else "no correct trial"
    root = svg.canvas(width, height, f"Convergence for {label}: {summary}", "small")
    svg.axes(root, x, y, svg.ticks(0, x.high, 4), svg.ticks(y.low, y.high, 4))
    svg.text(root, ((left + width - right) / 2, height - 4), "trials", "axis", "middle")
    _begins(root, x, (top, height - bottom), begins)
    svg.path(root, _dots(times_us, x, y), "dots")
    if baseline_us is not None:
        svg.line(root, (left, y(baseline_us)), (width - right, y(baseline_us)), "baseline")
    if best:
        svg.path(root, _steps(best, len(times_us), x, y), "best")
    above = sum(time is not None and time > y.high for time in times_us)
    if above:
        svg.text(root, (width - right, top - 3), f"{above} slower, off the scale", "axis", "end")
    return svg.markup(root)


def _begins(
    root: Element,
    x: svg.Scale,
    span: tuple[float, float],
    begins: Sequence[tuple[int, str]],
) -> None:
    """Mark where each candidate begins; a name that would run into the last is left out."""
    free = 0.0
    for before, name in begins:
        at = x(before)
        mark = svg.line(root, (at, span[0] - 24), (at, span[1]), "begin")
        svg.tooltip(mark, f"{name} begins after {before} trials")
        width = CHARACTER * len(name)
        if at >= free and at + width < x.end + 12:
            svg.text(root, (at + 3, span[0] - 18), name, "axis")
            free = at + width + 6


def _time_range(
    times_us: Sequence[float | None],
    best: Sequence[tuple[int, float]],
    baseline_us: float | None,
) -> tuple[float, float]:
    """Frame the baseline and the course of the best; the slowest trials may fall outside."""
    baseline = [] if baseline_us is None else [baseline_us]
    known = [*baseline, *(time for time in times_us if time is not None)]
    if not known:
        return 0.0, 1.0
    lowest = min(known)
    start = [min(best[0][1], 4 * lowest)] if best else []
    highest = max([lowest, *baseline, *start])
    pad = 0.08 * (highest - lowest) or 0.05 * highest
    return max(lowest - pad, 0.0), highest + pad


def _best_so_far(
    times_us: Sequence[float | None], ranked_only: Sequence[bool]
) -> list[tuple[int, float]]:
    best: list[tuple[int, float]] = []
    for index, (time, skip) in enumerate(zip(times_us, ranked_only, strict=True), start=1):
        if time is not None and not skip and (not best or time < best[-1][1]):
            best.append((index, time))
    return best


def _dots(times_us: Sequence[float | None], x: svg.Scale, y: svg.Scale) -> str:
    """One point per pixel: thousands of trials stay a few kilobytes."""
    pixels = {
        (round(x(index)), round(y(time)))
        for index, time in enumerate(times_us, start=1)
        if time is not None and time <= y.high
    }
    return "".join(f"M{svg.point(*pixel)}h0" for pixel in sorted(pixels))


def _steps(best: Sequence[tuple[int, float]], end: int, x: svg.Scale, y: svg.Scale) -> str:
    commands = [f"M{svg.point(x(best[0][0]), y(best[0][1]))}"]
    for (_, before), (index, after) in pairwise(best):
        commands.append(f"L{svg.point(x(index), y(before))}L{svg.point(x(index), y(after))}")
    return "".join(commands) + f"L{svg.point(x(end), y(best[-1][1]))}"
