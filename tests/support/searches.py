"""Spaces and trials that are made up, and a loop that asks a searcher and tells it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.expressions import Expression, Value
from tuner.model.kernel import Workload
from tuner.model.trial import Measurement, Status, Trial
from tuner.search.base import Searcher

NO_WORKLOAD = Workload(())
Timing = Callable[[Config], float | None]


def make_space(parameters: Mapping[str, Sequence[Value]], *constraints: str) -> SearchSpace:
    return SearchSpace(
        tuple(Parameter(name, tuple(values)) for name, values in parameters.items()),
        tuple(Expression.parse(text) for text in constraints),
    )


def make_trial(
    config: Config,
    time_us: float | None,
    workload: Workload = NO_WORKLOAD,
    *,
    early: bool = False,
    status: Status = Status.RESOURCE_LIMIT,
) -> Trial:
    """Make a trial of this time; where there is none, one that ended with `status`."""
    if time_us is None:
        return Trial("c", workload, config, status, "failed")
    measurement = Measurement((time_us,), 1, 1, stopped_early=early)
    return Trial("c", workload, config, Status.CORRECT, measurement=measurement)


def drive(
    searcher: Searcher, timing: Timing, count: int = 10**6, *, batch: int = 4, late: int = 0
) -> list[Config]:
    """Ask for up to `batch` configs at a time, with `late` others outstanding."""
    asked: list[Config] = []
    outstanding: deque[Config] = deque()
    while len(asked) < count and (configs := searcher.ask(min(batch, count - len(asked)))):
        asked += configs
        outstanding.extend(configs)
        while len(outstanding) > late:
            config = outstanding.popleft()
            searcher.tell(make_trial(config, timing(config)))
    return asked
