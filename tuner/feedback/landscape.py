"""What a search says of the whole space: how flat it is, and whether one config serves all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tuner.expressions import Value
from tuner.feedback.observed import CLEAR, FEWEST, Observed, time_of
from tuner.feedback.wording import keys, percent, settings, times
from tuner.findings import Finding
from tuner.kernel import Workload
from tuner.space import Config, SearchSpace, format_value
from tuner.statistics import geometric_mean
from tuner.template import Template

FLAT = 0.25
FLAT_WEIGHT = 0.5
# A dispatch table has most of what a split kernel has; only the rest is the agent's to gain.
SPLIT_WEIGHT = 0.5
COSTS = 0.03


def flatness(seen: Sequence[Observed], baselines_us: Mapping[Workload, float]) -> Iterator[Finding]:
    """Find that a quarter of all correct configs are about as fast as the best."""
    judged = [one for one in seen if len(one.correct) >= 2 * FEWEST and one.enough]
    if not judged:
        return
    near = [sum(time_of(t) <= one.best_us * (1 + CLEAR) for t in one.timed) for one in judged]
    shares = [count / len(one.correct) for count, one in zip(near, judged, strict=True)]
    share = median(shares)
    if share < FLAT:
        return
    spread = median(one.slowdown(one.correct[len(one.correct) // 2 :]) for one in judged)
    ratios = [baselines_us[o.workload] / o.best_us for o in judged if o.workload in baselines_us]
    gain = (
        f" The best is {times(geometric_mean(ratios))} as fast as the baseline." if ratios else ""
    )
    yield Finding(
        topic="flat",
        text=f"{sum(near)} of {sum(len(one.correct) for one in judged)} correct configs are within "
        f"{percent(CLEAR)} of their workload's best, and the median config takes {times(spread)} "
        f"its time: the optimum is flat.{gain}",
        advice="More values of these parameters will not pay: change the algorithm, what is read "
        "and when, or how the work is divided.",
        value=share,
        unit="of correct configs",
        weight=FLAT_WEIGHT * share,
    )


def disagreement(
    space: SearchSpace, seen: Sequence[Observed], template: Template
) -> Iterator[Finding]:
    """Find that no config serves all workloads, and which parameter and axis that is due to."""
    judged = [one for one in seen if one.enough]
    shared = _shared(judged)
    if len(judged) < 2 or shared is None or shared.cost < 1 + COSTS:
        return
    costs = {n: c for n in space.names if (c := _cost_of(n, shared.config, judged)) is not None}
    name = max(costs, key=lambda known: costs[known], default="")
    if not name or costs[name] <= 1:
        return
    yield Finding(
        topic="dispatch",
        text=f"The best config tried on all workloads ({settings(shared.config)}) takes "
        f"{times(shared.cost)} the time of each workload's own best, most on {shared.worst.key}. "
        f"`{name}` disagrees most: {_by_axis(name, judged)}.",
        advice=f"Keep `{name}` a parameter, for each size gets a config of its own; and consider "
        "different code for these sizes, with parameters of its own.",
        value=shared.cost,
        unit="x",
        weight=SPLIT_WEIGHT * (1 - 1 / shared.cost),
        line=template.line_of(name),
        parameter=name,
    )


def behind(seen: Sequence[Observed], baselines_us: Mapping[Workload, float]) -> Iterator[Finding]:
    """Find the workloads on which the best config is slower than the baseline."""
    judged = [one for one in seen if one.enough and one.workload in baselines_us]
    ratios = {one.workload: baselines_us[one.workload] / one.best_us for one in judged}
    lost = sorted((w for w in ratios if ratios[w] < 1 - CLEAR), key=lambda w: ratios[w])
    if not lost:
        return
    worst = ratios[lost[0]]
    yield Finding(
        topic="behind",
        text=f"The best config is slower than the baseline on {len(lost)} of {len(judged)} "
        f"workloads ({keys(lost)}); at worst it is {times(worst)} as fast.",
        advice="Compare with what the baseline does there, and let a parameter choose it.",
        value=worst,
        unit="x",
        weight=(1 - geometric_mean(ratios[w] for w in lost)) * len(lost) / len(judged),
    )


@dataclass(frozen=True, slots=True)
class _Shared:
    """The config that serves all workloads best, with its mean slowdown and where it is worst."""

    config: Config
    cost: float
    worst: Workload


def _shared(judged: Sequence[Observed]) -> _Shared | None:
    """Choose among the configs that are correct on all workloads; None where none was tried there.

    Configs that were stopped early take part: that they lose is what is asked here.
    """
    if not judged:
        return None
    known = [{t.config: time_of(t) / one.best_us for t in one.correct} for one in judged]
    everywhere = [c for c in known[0] if all(c in slowdowns for slowdowns in known)]
    if not everywhere:
        return None
    best = min(everywhere, key=lambda c: geometric_mean(s[c] for s in known))
    slowdowns = [s[best] for s in known]
    worst = judged[slowdowns.index(max(slowdowns))].workload
    return _Shared(best, geometric_mean(slowdowns), worst)


def _cost_of(name: str, shared: Config, judged: Sequence[Observed]) -> float | None:
    """Compute what holding one parameter to the shared config's value costs; None if unknown."""
    if name not in shared or len({one.best.config.get(name) for one in judged}) < 2:
        return None
    held = [(one, one.having(name, shared[name])) for one in judged]
    return geometric_mean(one.slowdown(trials) for one, trials in held)


def _by_axis(name: str, judged: Sequence[Observed]) -> str:
    """List which value wins at which sizes of the axis that orders the values best."""
    axes = [axis for axis, _ in judged[0].workload.axes]
    axis = min(axes, key=lambda known: _changes(name, known, judged))
    sizes: dict[Value, list[int]] = {}
    for one in sorted(judged, key=lambda o: o.workload.values[axis]):
        sizes.setdefault(one.best.config[name], []).append(one.workload.values[axis])
    listed = (
        f"{format_value(value)} wins at {axis} {', '.join(map(str, dict.fromkeys(found)))}"
        for value, found in sizes.items()
    )
    return "; ".join(listed)


def _changes(name: str, axis: str, judged: Sequence[Observed]) -> tuple[int, int]:
    """Count how often the winning value changes along an axis; one of equal sizes says nothing."""
    winners: dict[int, list[str]] = {}
    for one in judged:
        size = one.workload.values[axis]
        winners.setdefault(size, []).append(format_value(one.best.config[name]))
    ordered = [winners[size] for size in sorted(winners)]
    mixed = sum(len(set(found)) - 1 for found in ordered)
    leading = [max(sorted(set(found)), key=found.count) for found in ordered]
    turns = sum(a != b for a, b in pairwise(leading))
    return mixed + max(0, turns - 1), mixed
