"""Searchers by the names that `--searcher` takes, and the two that draw configs at random."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from tuner import plugins
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import InputError
from tuner.model.expressions import Value
from tuner.model.trial import Trial
from tuner.search.base import Searcher, Strategies
from tuner.search.journal import JournalFile
from tuner.search.pool import Pool, RemainingConfigs

# Below this many valid configs `auto` tries them all; above, a model finds the best in half of the
# trials (benchmarks/simulated_seeds.py).
EXHAUSTIVE_BELOW = 64
DEFAULT_BUDGET = 100

# Configs drawn at a time once a sampled pool has been proposed as a whole.
_DRAWN = 1000


class RandomSearcher:
    """Propose the seeds, then every other config in a random order.

    Of a sampled pool the sample first, then further draws.
    """

    def __init__(self, pool: Pool, seed: int, seeds: Sequence[Mapping[str, Value]] = ()) -> None:
        self._pool = pool
        remaining = RemainingConfigs(pool, seeds)
        first = list(iter(remaining.take_seed, None))
        self._ordered = len(pool)
        shuffled = np.random.default_rng(seed).permutation(self._ordered)
        self._order = deque([*first, *shuffled[remaining.are_free(shuffled)].tolist()])

    def ask(self, count: int) -> Sequence[Config]:
        if len(self._order) < count:
            self._pool.draw_more(max(count, _DRAWN))
            self._order.extend(range(self._ordered, len(self._pool)))
            self._ordered = len(self._pool)
        return [self._pool[self._order.popleft()] for _ in range(min(count, len(self._order)))]

    def tell(self, trial: Trial) -> None:
        """Ignore the trial: the order is fixed."""


def require_listed(pool: Pool) -> None:
    """Raise `InputError` for a space of which only a sample is held."""
    if pool.sampled:
        about = "" if pool.size_is_exact else "about "
        raise InputError(
            f"{about}{pool.estimated_size} valid configs are too many to try every one",
            remedy="leave out values, add constraints, or take another searcher: "
            "`--searcher random` tries as many as `--trials` says",
        )


def make_searcher(
    name: str,
    pool: Pool,
    space: SearchSpace,
    *,
    seed: int,
    budget: int,
    seeds: Sequence[Mapping[str, Value]] = (),
    axes: Mapping[str, int] | None = None,
    journal: JournalFile | None = None,
    study_name: str = "tune",
) -> Searcher:
    """Make the searcher called `name`; `budget` is the number of trials it may plan for.

    `seeds` are proposed first. `axes` are the workload's, by which `auto` learns from others.
    `journal` and `study_name` say where Optuna keeps its study.
    """
    match resolve(name, len(pool), budget).split(":", 1):
        case ["exhaustive"]:
            # Always the same order, shuffled: a search cut short has seen a fair sample.
            require_listed(pool)
            return RandomSearcher(pool, 0, seeds)
        case ["random"]:
            return RandomSearcher(pool, seed, seeds)
        case ["optuna"]:
            from tuner.search.optuna import OptunaSearcher

            return OptunaSearcher(pool, space, seed, seeds, journal=journal, study_name=study_name)
        case ["auto"]:
            from tuner.search.auto.searcher import AutoSearcher

            return AutoSearcher(
                pool,
                space,
                seed,
                budget,
                seeds,
                axes=axes,
                journal=journal,
                study_name=study_name,
            )
        case [family, strategy] if family in plugins.names_of(plugins.SEARCHERS):
            return strategies_of(family).make(pool, space, strategy, seed, budget, seeds)
    raise _unknown_searcher_error(name)


def require_searcher(name: str) -> None:
    """Raise `InputError` for a searcher or a strategy that there isn't, before any measurement."""
    if not plugins.is_searcher(name):
        raise _unknown_searcher_error(name)
    family, colon, strategy = name.partition(":")
    if colon:
        strategies_of(family).require(strategy)


def _unknown_searcher_error(name: str) -> InputError:
    return InputError(f"{name!r} is no searcher", remedy=", ".join(plugins.searchers()))


def strategies_of(family: str) -> Strategies:
    """Import a family of searchers that an extension brings."""
    loaded: Strategies = plugins.load(plugins.SEARCHERS, family, Strategies)
    return loaded


def default_budget(name: str, pool_size: int) -> int:
    """Say how many trials a search takes unless told otherwise: all, or 100 of more."""
    if resolve(name, pool_size) == "exhaustive":
        return pool_size
    return min(DEFAULT_BUDGET, pool_size)


def preload(name: str, pool_size: int, trials: int | None = None) -> None:
    """Import what the searcher of this name needs: a second or two, in which others may work.

    `trials` is as in `learns_from_others`.
    """
    match resolve(name, pool_size, trials):
        case "auto":
            import tuner.search.auto.searcher
        case "optuna":
            import tuner.search.optuna  # noqa: F401


def learns_from_others(name: str, pool_size: int, trials: int | None = None) -> bool:
    """Tell whether the searcher of this name has a use for trials on other workloads.

    `trials` is how many it may take, None where nobody has said.
    """
    return resolve(name, pool_size, trials) == "auto"


def resolve(name: str, pool_size: int, trials: int | None = None) -> str:
    """Replace `auto` by the searcher it stands for: few configs are all tried, if they may be."""
    if name != "auto":
        return name
    few = pool_size < EXHAUSTIVE_BELOW and (trials is None or trials >= pool_size)
    return "exhaustive" if few else "auto"
