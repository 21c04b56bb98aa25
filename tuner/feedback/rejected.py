"""What a search says of the configs that it lost: to which limit, error or wrong result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.expressions import Value
from tuner.feedback.observed import FEWEST, Observed
from tuner.feedback.wording import one_line, percent
from tuner.findings import Finding
from tuner.space import SearchSpace, format_value
from tuner.template import Template
from tuner.trial import Status, Trial

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
    Status.LIMIT: "Use less of it in the code, or forbid these configs by a constraint.",
    Status.LAUNCH: "Correct the launch or the addresses, or forbid these configs by a constraint.",
    Status.WRONG: "The template is wrong for these values: correct it before anything else.",
    Status.TIMEOUT: "Unroll less, or forbid these configs by a constraint.",
}
_LOST = {
    Status.CONSTRAINT: "break a constraint",
    Status.COMPILE: "do not compile",
    Status.LIMIT: "are over a limit",
    Status.LAUNCH: "are refused at launch or crash",
    Status.WRONG: "compute wrong results",
    Status.TIMEOUT: "take too long to compile or to run",
}


@dataclass(frozen=True, slots=True)
class _Loss:
    """The trials of one status, among all that were tried."""

    status: Status
    lost: Sequence[Trial]
    tried: int
    near: float


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
    for status in _LOST:
        lost = [trial for trial in tried if trial.status is status]
        if not lost or (len(lost) / len(tried) < NOTABLE and status is not Status.WRONG):
            continue
        loss = _Loss(status, lost, len(tried), _share_near_best(seen, status))
        yield _finding(space, loss, tried, template)


def _share_near_best(seen: Sequence[Observed], status: Status) -> float:
    """Compute which share of the configs next to a workload's best have this status."""
    near = [
        trial
        for one in seen
        if one.enough
        for trial in one.tried
        if 0 < _distance(trial.config, one.best.config) <= NEAR
    ]
    return sum(trial.status is status for trial in near) / len(near) if near else 0.0


def _distance(one: Mapping[str, Value], other: Mapping[str, Value]) -> int:
    return sum(one[name] != other.get(name) for name in one)


def _finding(
    space: SearchSpace, loss: _Loss, tried: Sequence[Trial], template: Template
) -> Finding:
    share = len(loss.lost) / loss.tried
    kinds = Counter(_kind(trial) for trial in loss.lost)
    commonest, count = kinds.most_common(1)[0]
    example = next(trial for trial in loss.lost if _kind(trial) == commonest)
    blamed = _blamed(space, loss.lost, tried)
    place = f"`{blamed[0]}`={format_value(blamed[1])}" if blamed else ""
    where = f" {percent(blamed[2])} of what has {place} is lost so." if blamed else ""
    close = f" So are {percent(loss.near)} of the configs next to a best one." if loss.near else ""
    name = blamed[0] if blamed else ""
    return Finding(
        topic="rejected",
        text=f"{len(loss.lost)} of {loss.tried} tried configs {_LOST[loss.status]}, {count} "
        f"of them for one reason: {one_line(_reason(example), 200)}.{where}{close}",
        advice=_ADVICE[loss.status],
        value=share,
        unit="of tried configs",
        weight=_severity(loss, share),
        line=_line_in(example, template) or (template.line_of(name) if name else None),
        parameter=name,
    )


def _severity(loss: _Loss, share: float) -> float:
    if loss.status is Status.WRONG or len(loss.lost) == loss.tried:
        return (1 + share) / 2  # first make it right
    return NEAR_WEIGHT * loss.near + FAR_WEIGHT * share


def _reason(trial: Trial) -> str:
    """Take the line of a reason that says most: the first one with an error, or the first."""
    lines = [line.strip() for line in trial.reason.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason")


def _kind(trial: Trial) -> str:
    return _NUMBER.sub("#", _reason(trial))


def _line_in(trial: Trial, template: Template) -> int | None:
    """Find the template's line that the reason names."""
    match = re.search(re.escape(str(template.path)) + r":(\d+)", trial.reason)
    return int(match[1]) if match else None


def _blamed(
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
