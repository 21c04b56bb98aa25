"""What a search says of the parameters' values: what each costs, and which to add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import TypeGuard

from tuner.extensions.agents.prompts import keys
from tuner.model.config import Parameter, SearchSpace, format_value
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, Value
from tuner.model.hardware import CUDA_BLOCK
from tuner.model.kernel import LaunchSpec, Workload
from tuner.model.statistics import geometric_mean
from tuner.model.trial import Finding, Status, Trial, fastest
from tuner.report.formatting import times
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
    judged = [one for one in seen if one.enough]
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
            threads = (_threads(launches, parameter.name, following, one) for one, _ in won)
            if max(threads) > CUDA_BLOCK[0]:
                continue
            yield _edge(space, parameter, (end, neighbour, following), won, judged, template)


def _threads(launches: Sequence[LaunchSpec], name: str, value: Value, one: Observed) -> int:
    """Count the threads of the largest block with another value of a parameter; 0: not known."""
    names, threads = {**one.workload.values, **one.best.config, name: value}, 0
    for launch in launches:
        with suppress(ExpressionError):  # it asks for the device's numbers, which nobody has here
            threads = max(threads, prod(size.integer(names) for size in launch.block))
    return threads


def value_costs(space: SearchSpace, seen: Sequence[Observed]) -> Iterator[tuple[str, str]]:
    """Tell of each parameter what its tried values cost, over all trials.

    A value has its best and its median time over the workload's best, as a geometric mean over the
    workloads where it was timed, and how many trials it had; failed ones are counted by status.
    """
    for parameter in space.parameters:
        told = list(filter(None, (_cost(parameter.name, v, seen) for v in parameter.values)))
        if len(told) > 1:
            yield parameter.name, "; ".join(told)


def _cost(name: str, value: Value, seen: Sequence[Observed]) -> str:
    tried = [trial for one in seen for trial in one.tried if trial.config.get(name) == value]
    if not tried:
        return ""
    timed = [(one, found) for one in seen if (found := one.having(name, value))]
    figures = ""
    if timed:
        best = geometric_mean(time_of(f[0]) / time_of(one.correct[0]) for one, f in timed)
        middle = geometric_mean(
            median(map(time_of, f)) / time_of(one.correct[0]) for one, f in timed
        )
        figures = f" x{best:.2f}/{middle:.2f}"
    failed = Counter(trial.status for trial in tried if trial.status is not Status.CORRECT)
    lost = f" ({', '.join(f'{n} {status}' for status, n in failed.items())})" if failed else ""
    return f"{format_value(value)}{figures} of {len(tried)}{lost}"


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


def _win(one: Observed, name: str, end: float, neighbour: float) -> tuple[Observed, float] | None:
    if one.best.config.get(name) != end:
        return None
    others = one.having(name, neighbour)
    if len(others) < FEWEST_OF_A_VALUE or one.slowdown(others) < 1 + CLEAR:
        return None
    return one, one.slowdown(others)


def _edge(
    space: SearchSpace,
    parameter: Parameter,
    edge: tuple[float, float, float],
    won: Sequence[tuple[Observed, float]],
    judged: Sequence[Observed],
    template: Template,
) -> Finding:
    name, (end, neighbour, following) = parameter.name, edge
    gain = geometric_mean(ratio for _, ratio in won)
    which = "largest" if end > neighbour else "smallest"
    broken = _forbids(space, name, following, [one for one, _ in won])
    advice = f"Add {format_value(following)} to `{name}`" + (
        f", and loosen `{broken}`, which forbids it." if broken else "."
    )
    return Finding(
        topic="edge",
        text=f"`{name}`={format_value(end)}, its {which} value, wins on {len(won)} of "
        f"{len(judged)} workloads, where the best with {format_value(neighbour)} takes "
        f"{times(gain)} its time ({keys(one.workload for one, _ in won)}).",
        advice=advice,
        value=end,
        weight=(1 - 1 / gain) * len(won) / len(judged),
        line=template.line_of(name),
        parameter=name,
    )


def _forbids(space: SearchSpace, name: str, value: Value, won: Sequence[Observed]) -> str | None:
    for constraint in space.conditions:
        if name in constraint.names and all(_breaks(constraint, name, value, o) for o in won):
            return constraint.text
    return None


def _breaks(constraint: Expression, name: str, value: Value, one: Observed) -> bool:
    names = {**one.workload.values, **one.best.config, name: value}
    if not constraint.names <= names.keys():
        return False  # it asks for the device's numbers, which nobody has here
    try:
        return not constraint.evaluate(names)
    except ExpressionError:
        return True
