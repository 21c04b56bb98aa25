"""Which configs of a pool have not been proposed yet, and which of them is nearest to a wish."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.expressions import Value

if TYPE_CHECKING:
    from tuner.search.pool import Pool
    from tuner.space import Parameter


class Untried:
    """Hand out each config of a pool once, seeds first; seeds outside the pool are left out."""

    def __init__(self, pool: Pool, seeds: Iterable[Mapping[str, Value]] = ()) -> None:
        # one contiguous row per parameter: comparing along the configs is ten times faster
        self._columns = np.ascontiguousarray(pool.encoded.T)
        self._free = np.ones(len(pool), dtype=bool)
        self._count = len(pool)
        valid = (pool.index(seed) for seed in seeds if seed in pool)
        self._seeds = deque(dict.fromkeys(valid))
        self._ranks = [_ranks(parameter) for parameter in pool.parameters]

    def __len__(self) -> int:
        return self._count

    def __contains__(self, index: int) -> bool:
        return bool(self._free[index])

    def take(self, index: int) -> int:
        """Mark one config as proposed."""
        assert self._free[index]
        self._free[index] = False
        self._count -= 1
        return index

    def take_seed(self) -> int | None:
        """Take the next seed that is still free."""
        while self._seeds:
            index = self._seeds.popleft()
            if self._free[index]:
                return self.take(index)
        return None

    def take_random(self, rng: np.random.Generator) -> int:
        """Take any config, all with the same probability."""
        return self.take(int(rng.choice(np.flatnonzero(self._free))))

    def take_nearest(self, row: np.ndarray[Any, np.dtype[np.intp]]) -> int:
        """Take the config that differs from `row` (value indices) in the fewest parameters.

        Among those, the one whose numbers are the fewest steps away, then the first of the pool.
        """
        differing = np.zeros(len(self._free), dtype=np.uint16)
        for column, value in zip(self._columns, row, strict=True):
            differing += column != value
        differing[~self._free] = len(self._columns) + 1
        closest = np.flatnonzero(differing == differing.min())
        steps = np.zeros(len(closest), dtype=np.int64)
        for column, ranks, value in zip(self._columns, self._ranks, row, strict=True):
            steps += np.abs(ranks[column[closest]] - ranks[value])
        return self.take(int(closest[steps.argmin()]))


def _ranks(parameter: Parameter) -> np.ndarray[Any, np.dtype[np.int64]]:
    # Text and switches have no order: any two of their values are equally far apart.
    values = parameter.values
    if any(isinstance(value, bool | str) for value in values):
        return np.zeros(len(values), dtype=np.int64)
    return np.argsort(np.argsort(np.array(values, dtype=float))).astype(np.int64)
