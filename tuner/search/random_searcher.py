"""Search by drawing configs at random, without replacement."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tuner.expressions import Value
from tuner.search.untried import Untried

if TYPE_CHECKING:
    from tuner.search.pool import Pool
    from tuner.space import Config
    from tuner.trial import Trial


# Configs drawn at a time once a sampled pool has been proposed as a whole.
_DRAWN = 1000


class RandomSearcher:
    """Propose the seeds, then every other config in a random order.

    Of a sampled pool the sample first, then further draws.
    """

    def __init__(self, pool: Pool, seed: int, seeds: Sequence[Mapping[str, Value]] = ()) -> None:
        self._pool = pool
        untried = Untried(pool, seeds)
        first = []
        while (index := untried.take_seed()) is not None:
            first.append(index)
        self._ordered = len(pool)
        shuffled = np.random.default_rng(seed).permutation(self._ordered)
        self._order = deque([*first, *untried.among(shuffled).tolist()])

    def ask(self, count: int) -> Sequence[Config]:
        """Propose the next `count` configs of the order."""
        if len(self._order) < count:
            self._pool.draw_more(max(count, _DRAWN))
            self._order.extend(range(self._ordered, len(self._pool)))
            self._ordered = len(self._pool)
        return [self._pool[self._order.popleft()] for _ in range(min(count, len(self._order)))]

    def tell(self, trial: Trial) -> None:
        """Ignore the trial: the order is fixed."""
