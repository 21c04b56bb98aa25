"""What the members of a portfolio work on: the pool, its numbers, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.search.features import ConfigColumns, Vector
from tuner.search.memory import Memory

if TYPE_CHECKING:
    from tuner.search.features import Matrix
    from tuner.search.pool import Pool
    from tuner.search.untried import Untried

Indices = np.ndarray[Any, np.dtype[np.intp]]
# Configs that a model judges: all of a small pool, else a part, redrawn with every fit, and the
# neighbours of the best. Leaving out a third of a pool of 4,362 (convolution_MI250X) halved the
# score at 100.
MOST_CANDIDATES = 6000
NEIGHBOURS_OF = 5
# Axes are taken in units of this many doublings: the columns of a config run over about one unit.
_DOUBLINGS = 10.0


@dataclass(frozen=True, slots=True)
class Ground:
    """The pool of one workload, its untried configs and the memory of all trials.

    A row of `x` is: the columns of a config, the axes of its workload, its value indices.
    """

    pool: Pool
    untried: Untried
    memory: Memory
    columns: ConfigColumns
    axes: Mapping[str, int]
    rng: np.random.Generator

    @property
    def codes(self) -> int:
        """How many columns at the end of a row of `x` are value indices."""
        return len(self.pool.parameters)

    def x(self, indices: Indices) -> Matrix:
        """Return the rows of configs of the pool, on the searcher's own workload."""
        return self.x_of(self.pool.encoded[indices], self.axes)

    def x_of(self, rows: np.ndarray[Any, Any], axes: Mapping[str, int]) -> Matrix:
        """Return the rows of configs, given as value indices, on any workload."""
        own = self.columns.of(rows)
        return np.hstack([own, np.tile(_axis_columns(self.axes, axes), (len(own), 1)), rows])

    def with_products(self, x: Matrix) -> Matrix:
        """Put the products of parameters in the place of the value indices."""
        codes = x[:, x.shape[1] - self.codes :].astype(np.intp)
        return np.hstack([x[:, : x.shape[1] - self.codes], self.columns.products(codes)])

    def is_open(self, index: int) -> bool:
        """Whether a config is untried, or compiled and not proposed."""
        return index in self.untried or index in self.memory.waiting

    def candidates(self) -> Indices:
        """Choose the open configs to judge, in the order of the pool."""
        size = len(self.pool)
        chosen = np.arange(size)
        if size > MOST_CANDIDATES:
            timed = [r for r in self.memory.rows if r.index is not None and r.log_us is not None]
            timed.sort(key=lambda row: (row.group, row.log_us))
            best = [row.index for row in timed[:NEIGHBOURS_OF] if row.index is not None]
            near = [self.pool.neighbours(index) for index in best]
            far = self.rng.integers(size, size=MOST_CANDIDATES)
            waiting = np.array(list(self.memory.waiting), dtype=np.intp)
            chosen = np.unique(np.concatenate([*near, far, waiting]))
        return chosen[[self.is_open(index) for index in chosen.tolist()]]


def _axis_columns(own: Mapping[str, int], others: Mapping[str, int]) -> Vector:
    return np.array([log2(1 + others.get(name, value)) / _DOUBLINGS for name, value in own.items()])
