"""One search over a recorded space, told what the loop would tell it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tuner.comparing.spaces import RecordedSpace
from tuner.search.factory import make_searcher
from tuner.space import Config


@dataclass(frozen=True, slots=True)
class Run:
    """The best time after each evaluation, and the seconds that the searcher took in all."""

    found_us: tuple[float, ...]
    seconds: float


def replay(space: RecordedSpace, searcher: str, *, seed: int, trials: int, batch: int = 1) -> Run:
    """Search a recorded space once; failed configs count as evaluations.

    `batch` configs are asked for at a time and told in the order of asking. Until a config is
    correct the best time is that of the worst; where the searcher ends early it stays what it is.
    The space's default is proposed first, as in a session.
    """
    best = space.worst_us
    found: list[float] = []
    started_s = time.perf_counter()
    method = make_searcher(
        searcher, space.pool, space.space, seed=seed, budget=trials, seeds=_seeds(space)
    )
    while len(found) < trials:
        configs = method.ask(min(batch, trials - len(found)))
        if not configs:
            break
        for config in configs:
            trial = space.trials[config]
            best = best if trial.time_us is None else min(best, trial.time_us)
            found.append(best)
            method.tell(trial)
    seconds = time.perf_counter() - started_s
    return Run((*found, *[best] * (trials - len(found))), seconds)


def _seeds(space: RecordedSpace) -> tuple[Config, ...]:
    default = space.space.default
    return () if default is None or default not in space.pool else (default,)
