"""What a search says of the parameters' values: which to add, and which to drop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from tuner.extensions.agents.prompts import join_names, keys, percent, values
from tuner.model.config import Parameter, SearchSpace, format_value
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, Value
from tuner.model.kernel import Workload
from tuner.model.statistics import geometric_mean
from tuner.model.trial import Finding, Status, Trial, fastest
from tuner.report.formatting import times
from tuner.search.importance import average, importance
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

    def top(self, share: float) -> tuple[Trial, ...]:
        """List the fastest share of the correct trials, and all that are about as fast as best."""
        least = max(FEWEST, round(share * len(self.correct)))
        near = sum(time_of(trial) <= self.best_us * (1 + CLEAR) for trial in self.timed)
        return self.timed[: max(least, near)]


def time_of(trial: Trial) -> float:
    """Return the time of a trial that has one; raise `ValueError` for another."""
    if trial.time_us is None:
        raise ValueError(f"a trial with the status {trial.status} has no time")
    return trial.time_us


# A value that was hardly tried cannot be compared with another.
FEWEST_OF_A_VALUE = 3
TOP = 0.1
# Were a value as good as the others, it would be in the top so often. That it is there not once
# then has a probability of about exp(-4), under 2 %.
EXPECTED = 4.0
IDLE = 0.01
# In multiples of the share that each parameter would have if all mattered alike.
DECIDES = 2.5
NOTEWORTHY = 1.5
# Advice that saves measurements and no time of the kernel stands behind all that does.
SAVES_TRIALS = 0.01


def edges(space: SearchSpace, seen: Sequence[Observed], template: Template) -> Iterator[Finding]:
    """Find numbers whose first or last value wins clearly, on two workloads or on the only one."""
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
            yield _edge(space, parameter, (end, neighbour, following), won, judged, template)


def find_unused_values(
    space: SearchSpace, seen: Sequence[Observed], template: Template
) -> Iterator[Finding]:
    """Find values that were tried often and are nowhere among the fastest configs."""
    judged = [one for one in seen if one.enough]
    tops = [(one, one.top(TOP)) for one in judged]
    found: dict[str, list[Value]] = {}
    for parameter in space.parameters:
        for value in parameter.values:
            name = parameter.name
            if any(trial.config.get(name) == value for _, top in tops for trial in top):
                continue
            expected = sum(
                len(top) * len(one.having(name, value)) / len(one.correct) for one, top in tops
            )
            if expected >= EXPECTED:
                found.setdefault(name, []).append(value)
    if not found:
        return
    correct = [trial for one in judged for trial in one.correct]
    spent = {n: sum(t.config.get(n) in known for t in correct) for n, known in found.items()}
    ranked = sorted(found, key=lambda name: -spent[name])
    either = sum(any(t.config.get(n) in known for n, known in found.items()) for t in correct)
    share = either / len(correct)
    listed = "; ".join(f"`{name}` {values(found[name])}" for name in ranked)
    yield Finding(
        topic="unused",
        text=f"Never among the fastest {percent(TOP)} on any of {len(judged)} workloads: {listed}. "
        f"{percent(share)} of the correct trials went there.",
        advice="Drop these values, so that the search looks where the fast configs are.",
        value=share,
        unit="of correct trials",
        weight=SAVES_TRIALS * share,
        line=template.line_of(ranked[0]),
        parameter=ranked[0],
    )


def decisive(space: SearchSpace, seen: Sequence[Observed], template: Template) -> Iterator[Finding]:
    """Find the one or two parameters that decide, and those that change nothing."""
    judged = [one for one in seen if one.enough]
    shares = average([importance(one.correct) for one in judged])
    if not shares:
        return
    equal = 1 / len(shares)
    chosen = [one for one in shares[:2] if one[1] >= NOTEWORTHY * equal]
    if shares[0][1] >= min(DECIDES * equal, (1 + equal) / 2):
        yield _importance(chosen or [shares[0]], judged, template)
    known = dict(shares)
    idle = [
        parameter
        for parameter in space.parameters
        if known.get(parameter.name, 0.0) < 0.5 / len(shares)
        and _changes_nothing(parameter, judged)
    ]
    if idle:
        yield _idle(idle, judged, template)


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


def _importance(
    chosen: Sequence[tuple[str, float]], judged: Sequence[Observed], template: Template
) -> Finding:
    name = chosen[0][0]
    listed = " and ".join(f"`{n}` ({percent(share)})" for n, share in chosen)
    bests = list(dict.fromkeys(one.best.config[name] for one in judged if name in one.best.config))
    share = sum(share for _, share in chosen)
    if len(bests) == 1:
        advice = f"`{name}` {values(bests)} wins everywhere: write it into the template"
    elif len(numbers := sorted(value for value in bests if _is_number(value))) == len(bests):
        advice = f"Give `{name}` finer values around {values(numbers)}"
    else:
        advice = f"Work on what `{name}` does in the code, for it pays at some sizes only"
    return Finding(
        topic="importance",
        text=f"What separates the fast configs from the others is mostly {listed}; the winners "
        f"have {name} {values(bests)}.",
        advice=advice + "; spend nothing on parameters that matter less.",
        value=share,
        unit="of importance",
        weight=SAVES_TRIALS * share,
        line=template.line_of(name),
        parameter=name,
    )


def _changes_nothing(parameter: Parameter, judged: Sequence[Observed]) -> bool:
    """Tell whether every value has a config about as fast as the best, on every workload."""
    if len(parameter.values) < 2:
        return False
    for one in judged:
        for value in parameter.values:
            found = one.having(parameter.name, value)
            if len(found) < FEWEST_OF_A_VALUE or one.slowdown(found) > 1 + IDLE:
                return False
    return bool(judged)


def _idle(idle: Sequence[Parameter], judged: Sequence[Observed], template: Template) -> Finding:
    worst = max(
        one.slowdown(one.having(parameter.name, value)) - 1
        for parameter in idle
        for one in judged
        for value in parameter.values
    )
    listed = join_names(f"`{parameter.name}`" for parameter in idle)
    return Finding(
        topic="idle",
        text=f"With each value of {listed} some config is within {percent(max(worst, 0.0))} of the "
        f"best, on all {len(judged)} workloads: nothing depends on it.",
        advice=f"Drop {listed}, with one value written into the template, and use the "
        "measurements for something else.",
        value=max(worst, 0.0),
        unit="of the best time",
        weight=SAVES_TRIALS * (1 - 1 / len(idle[0].values)),
        line=template.line_of(idle[0].name),
        parameter=idle[0].name,
    )
