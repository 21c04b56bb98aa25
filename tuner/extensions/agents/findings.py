"""What a search says of a candidate: failures, ends of ranges, sizes that disagree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tuner.extensions.agents.prompts import one_line, percent, settings
from tuner.extensions.agents.ranges import FEWEST, Observed, edges, time_of
from tuner.model.config import Config, SearchSpace, format_value
from tuner.model.expressions import Value
from tuner.model.kernel import LaunchSpec, Workload
from tuner.model.statistics import geometric_mean
from tuner.model.trial import Finding, Status, Trial
from tuner.report.formatting import times
from tuner.space.template import Template

# A dispatch table has most of what a split kernel has; only the rest is the agent's to gain.
SPLIT_WEIGHT = 0.5
COSTS = 0.03


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
_NUMBER = re.compile(r"\d+(\.\d+)?")
_ADVICE = {
    Status.CONSTRAINT: "Choose values that the constraints allow together.",
    Status.COMPILE: "Correct the template for these values, or forbid them by a constraint.",
    Status.RESOURCE_LIMIT: "Use less of it in the code, or forbid these configs by a constraint.",
    Status.LAUNCH: "Correct the launch or the addresses, or forbid these configs by a constraint.",
    Status.INCORRECT: "The template is wrong for these values: correct it before anything else.",
    Status.TIMEOUT: "Unroll less, or forbid these configs by a constraint.",
    Status.OTHER_BITS: "Keep the order of accumulation that the kept bits come from.",
    Status.NOT_INVARIANT: "Add a row up in an order that its own size decides, without atomics.",
}
_LOST = {
    Status.CONSTRAINT: "break a constraint",
    Status.COMPILE: "do not compile",
    Status.RESOURCE_LIMIT: "are over a limit",
    Status.LAUNCH: "are refused at launch or crash",
    Status.INCORRECT: "compute wrong results",
    Status.TIMEOUT: "take too long to compile or to run",
    Status.OTHER_BITS: "give other bits than those that are to be kept",
    Status.NOT_INVARIANT: "give rows whose bits depend on how many there are, or on other rows",
}
# Nothing else that is said of a template counts before it.
_URGENT = (Status.INCORRECT, Status.NOT_INVARIANT)


def rejections(seen: Sequence[Observed], template: Template) -> Iterator[Finding]:
    """Find each status that took a tenth of the tried configs; wrong or varying at any share.

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
        if not lost or (len(lost) / len(tried) < NOTABLE and status not in _URGENT):
            continue
        near = sum(trial.status is status for trial in close) / len(close) if close else 0.0
        yield _rejection(lost, tried, near, template)


def _rejection(
    lost: Sequence[Trial], tried: Sequence[Trial], near: float, template: Template
) -> Finding:
    status, share = lost[0].status, len(lost) / len(tried)
    kinds = [_NUMBER.sub("#", _reason(trial)) for trial in lost]
    commonest, count = Counter(kinds).most_common(1)[0]
    example = lost[kinds.index(commonest)]
    match = re.search(re.escape(str(template.path)) + r":(\d+)", example.reason)
    close = f" So are {percent(near)} of the configs next to a best one." if near else ""
    # What is wrong comes first, as does what leaves nothing to time.
    urgent = status in _URGENT or len(lost) == len(tried)
    return Finding(
        topic="rejected",
        text=f"{len(lost)} of {len(tried)} tried configs {_LOST[status]}, {count} "
        f"of them for one reason: {one_line(_reason(example), 200)}.{close}",
        advice=_ADVICE[status],
        value=share,
        unit="of tried configs",
        weight=(1 + share) / 2 if urgent else NEAR_WEIGHT * near + FAR_WEIGHT * share,
        line=int(match[1]) if match else None,
    )


def _reason(trial: Trial) -> str:
    lines = [line.strip() for line in trial.reason.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason")


def search_findings(
    space: SearchSpace,
    trials: Mapping[Workload, Sequence[Trial]],
    template: Template,
    launches: Sequence[LaunchSpec] = (),
    *,
    comparable: bool = True,
) -> tuple[Finding, ...]:
    """Say what the trials of a candidate's search teach, the weightiest first.

    `trials` are those of the search stage, by tuned workload. One with fewer than five timed
    configs takes part in no claim about times, nor does any whose times are not `comparable`.
    """
    seen = [Observed.of(workload, found) for workload, found in trials.items()]
    found = [
        *rejections(seen, template),
        *(edges(space, seen, template, launches) if comparable else ()),
        *(disagreement(space, seen, template) if comparable else ()),
    ]
    return tuple(sorted(found, key=lambda finding: -finding.weight))
