"""Search by drawing configs at random, without replacement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tuner.expressions import Value
from tuner.search.untried import Untried

if TYPE_CHECKING:
    from tuner.search.pool import Pool
    from tuner.space import Config
    from tuner.trial import Trial


class RandomSearcher:
    """Propose the seeds, then every other config of the pool in a random order."""

    def __init__(self, pool: Pool, seed: int, seeds: Sequence[Mapping[str, Value]] = ()) -> None:
        self._pool = pool
        untried = Untried(pool, seeds)
        first = []
        while (index := untried.take_seed()) is not None:
            first.append(index)
        shuffled = np.random.default_rng(seed).permutation(len(pool))
        self._order = iter([*first, *(i for i in shuffled.tolist() if i in untried)])

    def ask(self, count: int) -> Sequence[Config]:
        """Propose the next `count` configs of the order."""
        return [self._pool[index] for _, index in zip(range(count), self._order, strict=False)]

    def tell(self, trial: Trial) -> None:
        """Ignore the trial: the order is fixed."""
