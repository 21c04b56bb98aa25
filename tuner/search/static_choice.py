"""Configs that were compiled ahead, and the choice among them by what the compiler said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.search.auto.context import Row, group_numbers, targets
from tuner.search.auto.models import Kernel, Posterior, fit_kernel
from tuner.search.auto.strategies import (
    LEAST_GROWTH,
    MOST_FITTED,
    GaussianStrategy,
    expected_improvement,
    least,
)

if TYPE_CHECKING:
    from tuner.search.auto.context import SearchContext
    from tuner.search.auto.features import Matrix, Vector
    from tuner.search.base import Features

# Configs that are compiled for each one that is timed.
AHEAD = 2
# Before this many trials with features, compiled configs are proposed in the order of naming.
LEAST_TRIALS = 10


class Compiled:
    """Hold the shortlist, and take from it what is expected to improve the most."""

    def __init__(self, ground: SearchContext, gaussian: GaussianStrategy) -> None:
        self._ground, self._gaussian = ground, gaussian
        self._named = ground.memory.waiting
        self._kernel: Kernel | None = None
        self._fitted = 0

    def wanted(self, count: int) -> int:
        """Say how many configs to name before `count` are asked for."""
        return AHEAD * count

    def name(self, row: Row) -> None:
        """Put a config on the list, taken from the untried ones."""
        assert row.index is not None
        self._named[row.index] = row

    def foresee(self, index: int, features: Features) -> None:
        """Note what the compiler says of a config."""
        self._named[index].features = features

    def drop(self, index: int) -> None:
        """Forget a config that can't run, or was proposed."""
        self._named.pop(index, None)

    def take(self) -> int | None:
        """Take a compiled config off the list; None while there is none."""
        ready = [index for index, row in self._named.items() if row.features is not None]
        if not ready:
            return None
        told = [
            row
            for row in self._ground.memory.rows
            if row.says_something and row.features is not None
        ]
        seeds = [index for index in ready if self._named[index].is_seed]
        if seeds or len(told) < LEAST_TRIALS:
            chosen = (seeds or ready)[0]
        else:
            # what a feature means differs between workloads: it is believed after own trials
            own = sum(not row.group for row in told)
            known = own >= LEAST_TRIALS
            if known:
                gains, means = self._judged(ready, told)
            else:
                gains = self._gaussian.gains_of(ready)
                means = np.zeros(len(gains))
            # where nothing is expected of any, the one that should be fastest
            chosen = ready[int(np.lexsort((means.round(9), -gains.round(9)))[0])]
        self.drop(chosen)
        return chosen

    def _judged(self, ready: list[int], told: list[Row]) -> tuple[Vector, Vector]:
        """Return the expected gain and the expected value of compiled configs."""
        memory = self._ground.memory
        under_way = [r for r in memory.rows if r.status is None and r.features is not None]
        judged = [self._named[index] for index in ready]
        x = self._x([*told, *under_way, *judged])
        count, tried = len(told), len(told) + len(under_way)
        z, scales = targets(told)
        if self._kernel is None or count >= self._fitted + LEAST_GROWTH:
            last = slice(max(0, count - MOST_FITTED), count)
            groups = group_numbers(told)[last]
            self._kernel = fit_kernel(x[last], self._ground.codes, z[last], groups, self._kernel)
            self._fitted = count
        posterior = Posterior(self._kernel, x[tried:])
        posterior.extend(x[:tried], group_numbers([*told, *under_way]))
        mean, deviation = posterior.predict(z, np.arange(tried) < count)
        gains = expected_improvement(least(told, z), mean, deviation) * float(scales[0])
        return gains, mean

    def _x(self, rows: list[Row]) -> Matrix:
        """Put the features, each over its range in these rows, in front of the other columns."""
        names = sorted(rows[0].features or ())
        table = np.array([_levels(row, names) for row in rows])
        low, span = table.min(0), np.ptp(table, axis=0)
        scaled = np.divide(table - low, span, out=np.zeros_like(table), where=span > 0)
        return np.hstack([scaled, np.array([row.x for row in rows])])


def _levels(row: Row, names: list[str]) -> Vector:
    if row.levels is None:
        features = row.features or {}
        values = np.array([features.get(name, 0.0) for name in names])
        # amounts of instructions or bytes run over several powers of ten
        row.levels = np.sign(values) * np.log1p(np.abs(values))
    return row.levels
