"""Search by drawing configs at random, without replacement."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tuner.model.errors import InputError
from tuner.model.expressions import Value
from tuner.search.pool import RemainingConfigs

if TYPE_CHECKING:
    from tuner.model.config import Config
    from tuner.model.trial import Trial
    from tuner.search.pool import Pool

# Configs drawn at a time once a sampled pool has been proposed as a whole.
_DRAWN = 1000


class RandomSearcher:
    """Propose the seeds, then every other config in a random order.

    Of a sampled pool the sample first, then further draws.
    """

    def __init__(self, pool: Pool, seed: int, seeds: Sequence[Mapping[str, Value]] = ()) -> None:
        self._pool = pool
        remaining = RemainingConfigs(pool, seeds)
        first = []
        while (index := remaining.take_seed()) is not None:
            first.append(index)
        self._ordered = len(pool)
        shuffled = np.random.default_rng(seed).permutation(self._ordered)
        self._order = deque([*first, *remaining.among(shuffled).tolist()])

    def ask(self, count: int) -> Sequence[Config]:
        if len(self._order) < count:
            self._pool.draw_more(max(count, _DRAWN))
            self._order.extend(range(self._ordered, len(self._pool)))
            self._ordered = len(self._pool)
        return [self._pool[self._order.popleft()] for _ in range(min(count, len(self._order)))]

    def tell(self, trial: Trial) -> None:
        """Ignore the trial: the order is fixed."""


class ExhaustiveSearcher(RandomSearcher):
    """Propose every config once, in an order that does not depend on the run's seed.

    Raises `InputError` for a space that is too large to list.

    The order is shuffled, so that a search cut short has seen a fair sample of every parameter
    and its rate of progress says how long the rest takes.
    """

    def __init__(self, pool: Pool, seeds: Sequence[Mapping[str, Value]] = ()) -> None:
        require_listed(pool)
        super().__init__(pool, seed=0, seeds=seeds)


def require_listed(pool: Pool) -> None:
    """Raise `InputError` for a space of which only a sample is held."""
    if pool.sampled:
        about = "" if pool.size_is_exact else "about "
        raise InputError(
            f"{about}{pool.estimated_size} valid configs are too many to try every one",
            remedy="leave out values, add constraints, or take another searcher: "
            "`--searcher random` tries as many as `--trials` says",
        )
