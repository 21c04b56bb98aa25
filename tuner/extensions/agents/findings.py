"""What a search says of a candidate: failures, flat optima, sizes that disagree, constraints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import gcd
from statistics import median

from tuner.extensions.agents.prompts import keys, one_line, percent, settings
from tuner.extensions.agents.ranges import (
    CLEAR,
    FEWEST,
    Observed,
    edges,
    time_of,
)
from tuner.model.config import Config, SearchSpace, format_value
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, Value
from tuner.model.kernel import Workload
from tuner.model.statistics import geometric_mean
from tuner.model.trial import Finding, Status, Trial
from tuner.report.formatting import times
from tuner.space.template import Template

# Larger spaces are judged by so many combinations, spread evenly.
SAMPLE = 4096
GOLDEN = 0.6180339887
# A constraint that rules out less leaves the search its choice.
NOTABLE_SHARE = 0.5
# It costs no trial: worth knowing, never urgent.
WEIGHT = 0.01

Names = Mapping[Workload, Mapping[str, Value]]


def find_tight_condition(space: SearchSpace, names: Names) -> Iterator[Finding]:
    """Find the condition that alone rules out most combinations, where that is half or more.

    `names` has the axes and the device's numbers of every tuned workload.
    """
    configs = list(_sample(space))
    shares = {
        constraint: {
            w: sum(not _holds(constraint, {**values, **config}) for config in configs)
            / len(configs)
            for w, values in names.items()
        }
        for constraint in space.conditions
    }
    if not shares or not names:
        return
    strictest = max(shares, key=lambda one: sum(shares[one].values()))
    share = sum(shares[strictest].values()) / len(names)
    if share < NOTABLE_SHARE:
        return
    most = [w for w, own in shares[strictest].items() if own == max(shares[strictest].values())]
    about = "" if len(configs) == space.size else f" (of {len(configs)} looked at)"
    what = "condition of `prune`" if strictest in space.prune else "constraint"
    yield Finding(
        topic="constraint",
        text=f"The {what} `{one_line(strictest.text)}` alone rules out {percent(share)} of "
        f"the {space.size:,} combinations{about}, most on {keys(most)}; it costs no trial.",
        advice="See that what it rules out could not be fast; if some of it could, loosen the "
        "constraint, or else drop the values that it never lets through.",
        value=100 * share,
        unit="%",
        weight=WEIGHT,
    )


def _sample(space: SearchSpace) -> Iterator[Config]:
    """Spread over the whole product: all of it where it is small."""
    # Steps of the golden ratio of the size: equal steps would always meet the same values of the
    # last parameters.
    step = max(1, int(space.size * GOLDEN))
    while gcd(step, space.size) > 1:
        step += 1
    for number in range(min(space.size, SAMPLE)):
        index = number * step % space.size
        chosen = []
        for parameter in reversed(space.parameters):
            index, position = divmod(index, len(parameter.values))
            chosen.append((parameter.name, parameter.values[position]))
        yield Config.of(reversed(chosen))


def _holds(constraint: Expression, names: Mapping[str, Value]) -> bool:
    try:
        return bool(constraint.evaluate(names))
    except ExpressionError:
        return False  # another constraint has to keep it from being asked


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
    shared = _find_shared_config(judged) if len(judged) >= 2 else None
    if shared is None or shared[1] < 1 + COSTS:
        return
    config, cost, worst = shared
    costs: dict[str, float] = {}
    for name in space.names:
        if name in config and len({one.best.config.get(name) for one in judged}) > 1:
            held = ((one, one.having(name, config[name])) for one in judged)
            costs[name] = geometric_mean(one.slowdown(trials) for one, trials in held)
    name = max(costs, key=lambda known: costs[known], default="")
    if not name or costs[name] <= 1:
        return
    yield Finding(
        topic="dispatch",
        text=f"The best config tried on all workloads ({settings(config)}) takes "
        f"{times(cost)} the time of each workload's own best, most on {worst.key}. "
        f"`{name}` disagrees most: {_by_axis(name, judged)}.",
        advice=f"Keep `{name}` a parameter, for each size gets a config of its own; and consider "
        "different code for these sizes, with parameters of its own.",
        value=cost,
        unit="x",
        weight=SPLIT_WEIGHT * (1 - 1 / cost),
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


def _find_shared_config(judged: Sequence[Observed]) -> tuple[Config, float, Workload] | None:
    """Choose the config that serves all workloads best; with its mean slowdown and its worst one.

    Configs that were stopped early take part: that they lose is what is asked here.
    """
    known = [{t.config: time_of(t) / one.best_us for t in one.correct} for one in judged]
    everywhere = [c for c in known[0] if all(c in slowdowns for slowdowns in known)]
    if not everywhere:
        return None
    best = min(everywhere, key=lambda c: geometric_mean(s[c] for s in known))
    slowdowns = [s[best] for s in known]
    worst = judged[slowdowns.index(max(slowdowns))].workload
    return best, geometric_mean(slowdowns), worst


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


NOTABLE = 0.1
# Configs that differ from a workload's best in no more parameters are near it.
NEAR = 2
# What was lost near the best may hide something better; what was lost elsewhere cost trials.
NEAR_WEIGHT, FAR_WEIGHT = 0.3, 0.1
MOSTLY = 0.5
_NUMBER = re.compile(r"\d+(\.\d+)?")
_ADVICE = {
    Status.CONSTRAINT: "Choose values that the constraints allow together.",
    Status.COMPILE: "Correct the template for these values, or forbid them by a constraint.",
    Status.RESOURCE_LIMIT: "Use less of it in the code, or forbid these configs by a constraint.",
    Status.LAUNCH: "Correct the launch or the addresses, or forbid these configs by a constraint.",
    Status.INCORRECT: "The template is wrong for these values: correct it before anything else.",
    Status.TIMEOUT: "Unroll less, or forbid these configs by a constraint.",
    Status.OTHER_BITS: "Keep the order of accumulation that the default config has.",
}
_LOST = {
    Status.CONSTRAINT: "break a constraint",
    Status.COMPILE: "do not compile",
    Status.RESOURCE_LIMIT: "are over a limit",
    Status.LAUNCH: "are refused at launch or crash",
    Status.INCORRECT: "compute wrong results",
    Status.TIMEOUT: "take too long to compile or to run",
    Status.OTHER_BITS: "give other bits than the default config, which are to be kept",
}


def rejections(
    space: SearchSpace, seen: Sequence[Observed], template: Template
) -> Iterator[Finding]:
    """Find each status that took a tenth of the tried configs; wrong results at any share.

    Needs as many tried configs as other findings need timed ones: that nothing could be timed is
    worth knowing.
    """
    tried = [trial for one in seen for trial in one.tried]
    if len(tried) < FEWEST:
        return
    close = [
        trial
        for one in seen
        if one.enough
        for trial in one.tried
        if 0 < sum(v != one.best.config.get(n) for n, v in trial.config.items()) <= NEAR
    ]
    for status in _LOST:
        lost = [trial for trial in tried if trial.status is status]
        if not lost or (len(lost) / len(tried) < NOTABLE and status is not Status.INCORRECT):
            continue
        near = sum(trial.status is status for trial in close) / len(close) if close else 0.0
        yield _rejection(space, lost, tried, near, template)


def _rejection(
    space: SearchSpace,
    lost: Sequence[Trial],
    tried: Sequence[Trial],
    near: float,
    template: Template,
) -> Finding:
    status, share = lost[0].status, len(lost) / len(tried)
    kinds = [_NUMBER.sub("#", _reason(trial)) for trial in lost]
    commonest, count = Counter(kinds).most_common(1)[0]
    example = lost[kinds.index(commonest)]
    match = re.search(re.escape(str(template.path)) + r":(\d+)", example.reason)
    where, name = "", ""
    if blamed := _find_blamed_value(space, lost, tried):
        name, value, gone = blamed
        place = f"`{name}`={format_value(value)}"
        where = f" {percent(gone)} of what has {place} is lost so."
    close = f" So are {percent(near)} of the configs next to a best one." if near else ""
    # What is wrong comes first, as does what leaves nothing to time.
    urgent = status is Status.INCORRECT or len(lost) == len(tried)
    return Finding(
        topic="rejected",
        text=f"{len(lost)} of {len(tried)} tried configs {_LOST[status]}, {count} "
        f"of them for one reason: {one_line(_reason(example), 200)}.{where}{close}",
        advice=_ADVICE[status],
        value=share,
        unit="of tried configs",
        weight=(1 + share) / 2 if urgent else NEAR_WEIGHT * near + FAR_WEIGHT * share,
        line=int(match[1]) if match else (template.line_of(name) if name else None),
        parameter=name,
    )


def _reason(trial: Trial) -> str:
    lines = [line.strip() for line in trial.reason.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason")


def _find_blamed_value(
    space: SearchSpace, lost: Sequence[Trial], tried: Sequence[Trial]
) -> tuple[str, Value, float] | None:
    """Find the value that loses most beyond the average, where it loses half of its configs."""
    average = len(lost) / len(tried)
    best: tuple[str, Value, float] | None = None
    for parameter in space.parameters:
        if len(parameter.values) < 2:
            continue
        for value in parameter.values:
            held = sum(trial.config.get(parameter.name) == value for trial in tried)
            gone = sum(trial.config.get(parameter.name) == value for trial in lost)
            if held < FEWEST or gone / held < max(MOSTLY, 1.5 * average):
                continue
            if best is None or gone / held > best[2]:
                best = parameter.name, value, gone / held
    return best


def search_findings(
    space: SearchSpace,
    trials: Mapping[Workload, Sequence[Trial]],
    template: Template,
    baselines_us: Mapping[Workload, float],
) -> tuple[Finding, ...]:
    """Say what the trials of a candidate's search teach, the weightiest first.

    `trials` are those of the search stage, by tuned workload; `baselines_us` are median times. A
    workload with fewer than five timed configs takes part in no claim about times.
    """
    seen = [Observed.of(workload, found) for workload, found in trials.items()]
    found = [
        *rejections(space, seen, template),
        *behind(seen, baselines_us),
        *edges(space, seen, template),
        *disagreement(space, seen, template),
        *flatness(seen, baselines_us),
    ]
    return tuple(sorted(found, key=lambda finding: -finding.weight))
