"""Search by trying every config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.expressions import Value
from tuner.search.random_searcher import RandomSearcher

if TYPE_CHECKING:
    from tuner.search.pool import Pool


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
        raise InputError(
            f"{pool.estimated_size} valid configs are too many to try every one",
            remedy="leave out values, add constraints, or take another searcher: "
            "`--searcher random` tries as many as `--trials` says",
        )
