"""Search methods that are only compared with: Optuna's other samplers and a pattern search."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution

from tuner import plugins
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import InputError
from tuner.model.expressions import Value
from tuner.model.trial import Trial
from tuner.search.base import Searcher
from tuner.search.optuna import quiet_optuna
from tuner.search.pool import Pool, RemainingConfigs

# What Helion's documentation gives for a quick search: random configs at first, how many of the
# best are gone on from, and for how many generations. A whole one begins with 100 at random, which
# are all that are compared here.
INITIAL, COPIES, GENERATIONS = 30, 2, 5
# A step that gains less than this share ends a descent.
LEAST_GAIN = 0.001


class SamplerSearcher:
    """Propose what a sampler of Optuna wishes, moved to the nearest untried config.

    Numbers are ranks, which a sampler may take for ordered; texts and switches are categories.
    """

    def __init__(
        self, pool: Pool, sampler: optuna.samplers.BaseSampler, seeds: Sequence[Mapping[str, Value]]
    ) -> None:
        self._pool, self._remaining = pool, RemainingConfigs(pool, seeds)
        with quiet_optuna():
            self._study = optuna.create_study(sampler=sampler)
        self._orders = [_order(parameter.values) for parameter in pool.parameters]
        self._open = {
            p.name: IntDistribution(0, len(p.values) - 1)
            if not any(isinstance(value, bool | str) for value in p.values)
            else CategoricalDistribution(range(len(p.values)))
            for p in pool.parameters
            if len(p.values) > 1
        }
        self._asked: dict[Config, optuna.trial.Trial] = {}

    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs, the seeds first."""
        return [self._propose() for _ in range(min(count, len(self._remaining)))]

    def tell(self, trial: Trial) -> None:
        """Teach what came of a wish: the time of the config nearest to it, or that it failed."""
        asked = self._asked.pop(trial.config)
        with quiet_optuna():
            if trial.time_us is None:
                self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(asked, trial.time_us)

    def _propose(self) -> Config:
        index = self._remaining.take_seed()
        parameters = self._pool.parameters
        with quiet_optuna(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if index is not None:
                row = self._pool.encoded[index].tolist()
                ranks = [order.index(i) for order, i in zip(self._orders, row, strict=True)]
                names = (parameter.name for parameter in parameters)
                self._study.enqueue_trial(dict(zip(names, ranks, strict=True)))
            asked = self._study.ask(self._open)
        if index is None:
            wished = [
                order[asked.params.get(parameter.name, 0)]
                for order, parameter in zip(self._orders, parameters, strict=True)
            ]
            index = self._remaining.take_nearest(np.array(wished))
        config = self._pool[index]
        self._asked[config] = asked
        return config


def _order(values: Sequence[Value]) -> list[int]:
    """List the positions of values by rank."""
    if any(isinstance(value, bool | str) for value in values):
        return list(range(len(values)))
    return [int(i) for i in np.argsort(np.array(values, dtype=float), kind="stable")]


class PatternSearcher:
    """Helion's pattern search, written from its documentation.

    Random configs, then from each of the best a descent: all configs that differ in one parameter
    by one step are tried, and the best of them is gone on from while it gains. What is left of the
    budget begins anew.
    """

    def __init__(self, pool: Pool, seed: int, seeds: Sequence[Mapping[str, Value]]) -> None:
        self._pool, self._remaining = pool, RemainingConfigs(pool, seeds)
        self._rng = np.random.default_rng(seed)
        self._times: dict[int, float] = {}
        self._steps = self._search()
        self._queue: deque[int] = deque()

    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs of one generation."""
        while not self._queue and len(self._remaining):
            self._queue.extend(next(self._steps))
        return [self._pool[self._queue.popleft()] for _ in range(min(count, len(self._queue)))]

    def tell(self, trial: Trial) -> None:
        """Learn a time; a failure is no place to go on from."""
        if trial.time_us is not None:
            self._times[self._pool.index(trial.config)] = trial.time_us

    def _search(self) -> Iterator[list[int]]:
        while True:
            first = list(iter(self._remaining.take_seed, None))
            drawn = max(0, min(INITIAL - len(first), len(self._remaining)))
            started = first + [self._remaining.take_random(self._rng) for _ in range(drawn)]
            yield started
            timed = sorted((i for i in started if i in self._times), key=self._times.__getitem__)
            currents = timed[:COPIES]
            for _ in range(GENERATIONS):
                around = {current: self._near(current) for current in currents}
                untried = dict.fromkeys(
                    i for near in around.values() for i in near if i in self._remaining
                )
                yield [self._remaining.take(index) for index in untried]
                currents = [
                    best
                    for current, near in around.items()
                    if (best := min(near, key=self._time, default=current)) != current
                    and self._time(best) < (1 - LEAST_GAIN) * self._time(current)
                ]
                if not currents:
                    break

    def _time(self, index: int) -> float:
        return self._times.get(index, float("inf"))

    def _near(self, index: int) -> list[int]:
        """List the configs that differ in one parameter by one step, or in a text at all."""
        own, encoded = self._pool.encoded[index], self._pool.encoded
        near = []
        for other in self._pool.neighbours(index).tolist():
            (changed, *more) = np.flatnonzero(encoded[other] != own).tolist()
            parameter = self._pool.parameters[changed]
            order = _order(parameter.values)
            a, b = (order.index(int(row[changed])) for row in (own, encoded[other]))
            free = any(isinstance(value, bool | str) for value in parameter.values)
            if not more and (free or abs(a - b) == 1):
                near.append(other)
        return near


@dataclass(frozen=True, slots=True)
class Rivals:
    """Searchers by their names, each made of a pool, a seed and seeds; implements `Strategies`."""

    kind: str
    makers: Mapping[str, Callable[[Pool, int, Sequence[Mapping[str, Value]]], Searcher]]

    def require(self, strategy: str) -> None:
        if strategy not in self.makers:
            raise InputError(f"{strategy!r} is no {self.kind} here", remedy=", ".join(self.makers))

    def make(
        self,
        pool: Pool,
        space: SearchSpace,
        strategy: str,
        seed: int,
        budget: int,
        seeds: Sequence[Mapping[str, Value]] = (),
    ) -> Searcher:
        return self.makers[strategy](pool, seed, seeds)


def _make_nsga2(pool: Pool, seed: int, seeds: Sequence[Mapping[str, Value]]) -> SamplerSearcher:
    sampler = optuna.samplers.NSGAIISampler(population_size=20, seed=seed)
    return SamplerSearcher(pool, sampler, seeds)


SAMPLED = Rivals("sampler", {"nsga2": _make_nsga2})
HELION = Rivals("search of Helion's", {"pattern": PatternSearcher})


def register() -> None:
    """Let these be named where searchers are compared."""
    plugins.OWN[plugins.SEARCHERS] |= {
        "optuna_sampler": "rival_searchers:SAMPLED",
        "helion": "rival_searchers:HELION",
    }
    plugins.points_of.cache_clear()
