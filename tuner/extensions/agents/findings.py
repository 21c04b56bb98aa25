"""What a search says of a candidate: failures, ends of ranges, sizes that disagree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from statistics import median
from typing import TypeGuard

from tuner.extensions.agents.prompts import keys, one_line, percent
from tuner.model.config import Config, SearchSpace, format_value
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, Value
from tuner.model.hardware import CUDA_BLOCK
from tuner.model.kernel import LaunchSpec, Workload
from tuner.model.statistics import geometric_mean
from tuner.model.trial import Finding, Status, Trial, fastest
from tuner.report.formatting import pairs, times
from tuner.space.template import Template

# Fewer timed configs of a workload say nothing of it.
FEWEST = 5
# Search times of two configs that are closer than this are called equal: they were taken at
# different moments, between which the clocks drift by a percent and a half.
CLEAR = 0.02


@dataclass(frozen=True, slots=True)
class Observed:
    """What a search saw on one workload.

    `tried` leaves out what a recording had no answer for. `correct` are all trials with a time,
    fastest first; `timed` those of them that were not stopped early. The few samples of a config
    that was stopped early do for saying that others are faster, and for no more.
    """

    workload: Workload
    tried: tuple[Trial, ...]
    correct: tuple[Trial, ...]
    timed: tuple[Trial, ...]

    @classmethod
    def of(cls, workload: Workload, trials: Iterable[Trial]) -> Observed:
        tried = tuple(trial for trial in trials if trial.status is not Status.NOT_RECORDED)
        correct = tuple(fastest(tried))
        return cls(workload, tried, correct, tuple(fastest(tried, full=True)))

    @property
    def enough(self) -> bool:
        """Whether so many configs were timed that something can be said."""
        return len(self.timed) >= FEWEST

    @property
    def best(self) -> Trial:
        """The fastest config that was timed in full; only where there is `enough`."""
        return self.timed[0]

    @property
    def best_us(self) -> float:
        return time_of(self.best)

    def having(self, name: str, value: Value) -> tuple[Trial, ...]:
        """List the correct trials with one value of a parameter, fastest first."""
        return tuple(t for t in self.correct if t.config.get(name) == value)

    def slowdown(self, trials: Sequence[Trial]) -> float:
        """Divide the time of the first of these trials by the best's."""
        return time_of(trials[0]) / self.best_us


def time_of(trial: Trial) -> float:
    """Return the time of a trial that has one; raise `ValueError` for another."""
    if trial.time_us is None:
        raise ValueError(f"a trial with the status {trial.status} has no time")
    return trial.time_us


# A value that was hardly tried cannot be compared with another.
FEWEST_OF_A_VALUE = 3


def edges(
    space: SearchSpace,
    seen: Sequence[Observed],
    template: Template,
    launches: Sequence[LaunchSpec] = (),
) -> Iterator[Finding]:
    """Find numbers whose first or last value wins clearly, on two workloads or on the only one.

    A value for which a block of `launches` would have more threads than there may be is none.
    """
    judged = [observed for observed in seen if observed.enough]
    for parameter in space.parameters:
        numbers = [v for v in parameter.values if _is_number(v)]
        if len(numbers) < max(2, len(parameter.values)):
            continue
        ordered: list[float] = sorted(set(numbers))
        for end, neighbour in ((ordered[-1], ordered[-2]), (ordered[0], ordered[1])):
            following = _beyond(end, neighbour)
            won = [w for o in judged if (w := _win(o, parameter.name, end, neighbour))]
            if following is None or len(won) < min(2, len(judged)) or not won:
                continue
            threads = (
                _threads(launches, parameter.name, following, observed) for observed, _ in won
            )
            if max(threads) > CUDA_BLOCK[0]:
                continue
            name, gain = parameter.name, geometric_mean(ratio for _, ratio in won)
            which = "largest" if end > neighbour else "smallest"
            broken = _forbids(space, name, following, [observed for observed, _ in won])
            loosen = f", and loosen `{broken}`, which forbids it." if broken else "."
            yield Finding(
                topic="edge",
                text=f"`{name}`={format_value(end)}, its {which} value, wins on {len(won)} of "
                f"{len(judged)} workloads, where the best with {format_value(neighbour)} takes "
                f"{times(gain)} its time ({keys(observed.workload for observed, _ in won)}).",
                advice=f"Add {format_value(following)} to `{name}`{loosen}",
                value=end,
                weight=(1 - 1 / gain) * len(won) / len(judged),
                line=template.line_of(name),
                parameter=name,
            )


def _threads(launches: Sequence[LaunchSpec], name: str, value: Value, observed: Observed) -> int:
    """Count the threads of the largest block with another value of a parameter; 0: not known."""
    names, threads = {**observed.workload.values, **observed.best.config, name: value}, 0
    for launch in launches:
        with suppress(ExpressionError):  # it asks for the device's numbers, which nobody has here
            threads = max(threads, prod(size.integer(names) for size in launch.block))
    return threads


@dataclass(frozen=True, slots=True)
class ValueCost:
    """What a tried value of a parameter costs.

    `best` and `middle` are its best and median time over the workload's best, as a geometric mean
    over the workloads where it was timed; `failed` counts the others of its trials by status.
    """

    value: Value
    trials: int
    best: float | None
    middle: float | None
    failed: Mapping[Status, int]

    def __str__(self) -> str:
        figures = "" if self.best is None else f" x{self.best:.2f}/{self.middle:.2f}"
        lost = ", ".join(f"{n} {status}" for status, n in self.failed.items())
        return f"{format_value(self.value)}{figures} of {self.trials}{f' ({lost})' * bool(lost)}"


def value_costs(
    space: SearchSpace, seen: Sequence[Observed], template: Template
) -> Iterator[tuple[str, str]]:
    """Tell of each parameter what its tried values cost, over all trials.

    Those that say nothing are only named at the end: where all values are as fast, and minimums of
    blocks in launch bounds where registers limit nothing.
    """
    idle, equal = _idle_minimums(template, seen), set[str]()
    for parameter in space.parameters:
        costs = [c for v in parameter.values if (c := _cost(parameter.name, v, seen)) is not None]
        if len(costs) > 1 and _are_equal(costs):
            equal.add(parameter.name)
        elif len(costs) > 1 and parameter.name not in idle:
            yield parameter.name, "; ".join(map(str, costs))
    for names, why in (
        (equal, "all values are as fast"),
        (idle - equal, "registers limit nothing"),
    ):
        if named := [name for name in space.names if name in names]:
            yield ", ".join(named), why


_MINIMUM = re.compile(r"__launch_bounds__\s*\([^,;]*,\s*@\{\s*(\w+)\s*\}@")


def _idle_minimums(template: Template, seen: Sequence[Observed]) -> set[str]:
    timed = [trial for observed in seen for trial in observed.correct]
    held = [trial.occupancy.limiter if trial.occupancy else "registers" for trial in timed]
    spills = any(trial.resources and trial.resources.spill_bytes for trial in timed)
    return set() if "registers" in held or spills else {*_MINIMUM.findall(template.text)}


def _are_equal(costs: Sequence[ValueCost]) -> bool:
    if any(cost.failed or cost.trials < FEWEST_OF_A_VALUE for cost in costs):
        return False
    figures = ([cost.best or 1.0 for cost in costs], [cost.middle or 1.0 for cost in costs])
    return all(max(each) <= (1 + CLEAR) * min(each) for each in figures)


def _cost(name: str, value: Value, seen: Sequence[Observed]) -> ValueCost | None:
    tried = [
        trial for observed in seen for trial in observed.tried if trial.config.get(name) == value
    ]
    if not tried:
        return None
    failed = Counter[Status](t.status for t in tried if t.status is not Status.CORRECT)
    timed = [(observed, trials) for observed in seen if (trials := observed.having(name, value))]
    if not timed:
        return ValueCost(value, len(tried), None, None, failed)
    best = geometric_mean(time_of(f[0]) / time_of(observed.correct[0]) for observed, f in timed)
    middle = geometric_mean(
        median(map(time_of, f)) / time_of(observed.correct[0]) for observed, f in timed
    )
    return ValueCost(value, len(tried), best, middle, failed)


def _is_number(value: Value) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _beyond(end: float, neighbour: float) -> float | None:
    """Continue a list by the ratio of its last two values, or else by their difference.

    None where that leads out of the positive numbers: a count of 1 is no edge.
    """
    if neighbour and end:
        ratio = end / neighbour
        following = end * ratio
        whole = isinstance(end, int)
        if ratio > 0 and (not whole or following.is_integer()):
            return int(following) if whole else following
    following = 2 * end - neighbour
    return following if following > 0 else None


def _win(
    observed: Observed, name: str, end: float, neighbour: float
) -> tuple[Observed, float] | None:
    if observed.best.config.get(name) != end:
        return None
    others = observed.having(name, neighbour)
    if len(others) < FEWEST_OF_A_VALUE or observed.slowdown(others) < 1 + CLEAR:
        return None
    return observed, observed.slowdown(others)


def _forbids(space: SearchSpace, name: str, value: Value, won: Sequence[Observed]) -> str | None:
    for constraint in space.conditions:
        if name in constraint.names and all(_breaks(constraint, name, value, o) for o in won):
            return constraint.text
    return None


def _breaks(constraint: Expression, name: str, value: Value, observed: Observed) -> bool:
    names = {**observed.workload.values, **observed.best.config, name: value}
    if not constraint.names <= names.keys():
        return False  # it asks for the device's numbers, which nobody has here
    try:
        return not constraint.evaluate(names)
    except ExpressionError:
        return True


# A dispatch table has most of what a split kernel has; only the rest is the agent's to gain.
SPLIT_WEIGHT = 0.5
COSTS = 0.03


def disagreement(
    space: SearchSpace, seen: Sequence[Observed], template: Template
) -> Iterator[Finding]:
    """Find that no config serves all workloads, and which parameter and axis that is due to."""
    judged = [observed for observed in seen if observed.enough]
    shared = _find_shared_config(judged) if len(judged) >= 2 else None
    if shared is None or shared[1] < 1 + COSTS:
        return
    config, cost, worst = shared
    costs: dict[str, float] = {}
    for name in space.names:
        if name in config and len({observed.best.config.get(name) for observed in judged}) > 1:
            held = ((observed, observed.having(name, config[name])) for observed in judged)
            costs[name] = geometric_mean(observed.slowdown(trials) for observed, trials in held)
    name = max(costs, key=lambda known: costs[known], default="")
    if not name or costs[name] <= 1:
        return
    yield Finding(
        topic="dispatch",
        text=f"The best config tried on all workloads ({pairs(config)}) takes "
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
    known = [
        {t.config: time_of(t) / observed.best_us for t in observed.correct} for observed in judged
    ]
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
    for observed in sorted(judged, key=lambda o: o.workload.values[axis]):
        sizes.setdefault(observed.best.config[name], []).append(observed.workload.values[axis])
    listed = (
        f"{format_value(value)} wins at {axis} {', '.join(map(str, dict.fromkeys(found)))}"
        for value, found in sizes.items()
    )
    return "; ".join(listed)


def _changes(name: str, axis: str, judged: Sequence[Observed]) -> tuple[int, int]:
    """Count how often the winning value changes along an axis; one of equal sizes says nothing."""
    winners: dict[int, list[str]] = {}
    for observed in judged:
        size = observed.workload.values[axis]
        winners.setdefault(size, []).append(format_value(observed.best.config[name]))
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
    tried = [trial for observed in seen for trial in observed.tried]
    if len(tried) < FEWEST:
        return
    close = [
        trial
        for observed in seen
        if observed.enough
        for trial in observed.tried
        if 0 < sum(v != observed.best.config.get(n) for n, v in trial.config.items()) <= NEAR
    ]
    for status, how in _LOST.items():
        lost = [trial for trial in tried if trial.status is status]
        if not lost or (len(lost) / len(tried) < NOTABLE and status not in _URGENT):
            continue
        near = sum(trial.status is status for trial in close) / len(close) if close else 0.0
        beside = f" So are {percent(near)} of the configs next to a best one." if near else ""
        share, kinds = len(lost) / len(tried), [_NUMBER.sub("#", _reason(t)) for t in lost]
        commonest, count = Counter(kinds).most_common(1)[0]
        example = lost[kinds.index(commonest)]
        match = re.search(re.escape(str(template.path)) + r":(\d+)", example.reason)
        # What is wrong comes first, as does what leaves nothing to time.
        urgent = status in _URGENT or len(lost) == len(tried)
        yield Finding(
            topic="rejected",
            text=f"{len(lost)} of {len(tried)} tried configs {how}, {count} "
            f"of them for one reason: {one_line(_reason(example), 200)}.{beside}",
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
