"""Which configs of a pool have not been proposed yet, and which of them is nearest to a wish."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.model.expressions import Value

if TYPE_CHECKING:
    from tuner.model.config import Parameter
    from tuner.search.pool import Pool


class RemainingConfigs:
    """Hand out each config of a pool once, seeds first; seeds outside the pool are left out.

    Configs that a sampled pool takes up later are there as soon as the pool has them.
    """

    def __init__(self, pool: Pool, seeds: Iterable[Mapping[str, Value]] = ()) -> None:
        self._pool = pool
        valid = (pool.index(seed) for seed in seeds if seed in pool)
        self._seeds = deque(dict.fromkeys(valid))
        self._ranks = [_ranks(parameter) for parameter in pool.parameters]
        # One contiguous row per parameter, of bytes where they suffice: comparing along the
        # configs is then twenty times faster.
        small = all(len(parameter.values) <= 2**8 for parameter in pool.parameters)
        self._columns = np.empty((len(pool.parameters), 0), np.uint8 if small else np.uint16)
        self._taken = np.empty(0, dtype=bool)
        self._held = 0
        self._count = 0
        self._follow()

    def __len__(self) -> int:
        self._follow()
        return self._count

    def __contains__(self, index: int) -> bool:
        self._follow()
        return not self._taken[index]

    def among(
        self, indices: np.ndarray[Any, np.dtype[np.intp]]
    ) -> np.ndarray[Any, np.dtype[np.intp]]:
        """Keep those of several configs that are free."""
        self._follow()
        free: np.ndarray[Any, np.dtype[np.intp]] = indices[~self._taken[indices]]
        return free

    def take(self, index: int) -> int:
        """Mark one config as proposed."""
        self._follow()
        assert not self._taken[index]
        self._taken[index] = True
        self._count -= 1
        return index

    def take_seed(self) -> int | None:
        """Take the next seed that is still free."""
        while self._seeds:
            index = self._seeds.popleft()
            if index in self:
                return self.take(index)
        return None

    def take_random(self, rng: np.random.Generator) -> int:
        """Take any config, all with the same probability."""
        self._follow()
        return self.take(int(rng.choice(np.flatnonzero(~self._taken[: self._held]))))

    def take_nearest(self, row: np.ndarray[Any, np.dtype[np.intp]]) -> int:
        """Take the config that differs from `row` (value indices) in the fewest parameters.

        Among those, the one whose numbers are the fewest steps away, then the first of the pool.
        A sampled pool takes up the row itself and its neighbours first.
        """
        self._pool.look_around(row)
        self._follow()
        columns = self._columns[:, : self._held]
        counts = np.uint8 if len(columns) < 2**8 - 1 else np.uint16
        differing: np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]] = np.zeros(self._held, counts)
        wished = row.tolist()
        for column, value in zip(columns, wished, strict=True):
            differing += column != value
        differing[self._taken[: self._held]] = len(columns) + 1
        closest = np.flatnonzero(differing == differing.min())
        steps = np.zeros(len(closest), dtype=np.int64)
        for column, ranks, value in zip(columns, self._ranks, wished, strict=True):
            steps += np.abs(ranks[column[closest]] - ranks[value])
        return self.take(int(closest[steps.argmin()]))

    def _follow(self) -> None:
        """Add what the pool has taken up since."""
        size = len(self._pool)
        if size == self._held:
            return
        if size > len(self._taken):
            room = size if not self._held else 2 * size
            columns = np.zeros((len(self._columns), room), dtype=self._columns.dtype)
            columns[:, : self._held] = self._columns[:, : self._held]
            self._columns = columns
            self._taken = np.concatenate(
                [self._taken[: self._held], np.zeros(room - self._held, dtype=bool)]
            )
        self._columns[:, self._held : size] = self._pool.encoded[self._held :].T
        self._count += size - self._held
        self._held = size


def _ranks(parameter: Parameter) -> np.ndarray[Any, np.dtype[np.int64]]:
    # Text and switches have no order: any two of their values are equally far apart.
    values = parameter.values
    if any(isinstance(value, bool | str) for value in values):
        return np.zeros(len(values), dtype=np.int64)
    return np.argsort(np.argsort(np.array(values, dtype=float))).astype(np.int64)
