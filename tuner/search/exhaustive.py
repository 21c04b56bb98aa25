"""Search by trying every config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.expressions import Value
from tuner.search.random_searcher import RandomSearcher

if TYPE_CHECKING:
    from tuner.search.pool import Pool


class ExhaustiveSearcher(RandomSearcher):
    """Propose every config once, in an order that does not depend on the run's seed.

    The order is shuffled, so that a search cut short has seen a fair sample of every parameter
    and its rate of progress says how long the rest takes.
    """

    def __init__(self, pool: Pool, seeds: Sequence[Mapping[str, Value]] = ()) -> None:
        super().__init__(pool, seed=0, seeds=seeds)
