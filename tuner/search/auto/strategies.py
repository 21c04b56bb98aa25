"""The methods of a portfolio: each takes an untried config, from the memory that all share."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tuner.search.auto.context import Memory, SearchTrial, group_numbers, targets
from tuner.search.auto.models import CovarianceKernel, Posterior, fit_kernel, promise

if TYPE_CHECKING:
    from tuner.search.auto.context import Indices, SearchContext, Vector
    from tuner.search.optuna import CategoricalTpe

# A kernel is fitted again when there are this many times the rows, and this many more.
GROWTH, LEAST_GROWTH = 1.15, 5
# Rows that a kernel is fitted to, the latest: a fit takes the cube of their number.
MOST_FITTED = 120
# Rows of a posterior: the latest of other workloads, the latest of the own and the best of those.
MOST_SHARED, MOST_LATEST, MOST_BEST = 300, 300, 100
# Configs that the classifier proposes from one forest.
BATCH = 4
BATCH_AHEAD = 16
# Models agree to fewer digits on different processors: the last ones must not decide.
_DIGITS = 9


class Strategy(Protocol):
    """One method of the portfolio."""

    def take(self) -> int | None:
        """Take an untried config; None when there is nothing to say."""
        ...


@dataclass(frozen=True, slots=True)
class Outlook:
    """The incumbent and the candidates, in logs of times; `free` are those not proposed yet."""

    best: float
    mean: Vector
    deviation: Vector
    free: np.ndarray[Any, np.dtype[np.bool_]]


class GaussianStrategy:
    """Take the largest expected improvement under a Gaussian process."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._kernel: CovarianceKernel | None = None
        self._fitted = 0
        self._indices: Indices = np.zeros(0, dtype=np.intp)
        self._rows: list[SearchTrial] = []
        self._posterior: Posterior | None = None

    def take(self) -> int | None:
        return self._take_best(self.gains())

    def polish(self) -> int | None:
        """Take the best of the incumbent's neighbours, which differ in one parameter."""
        gains = self.gains()
        best = self._context.memory.best()
        if best is None or best.index is None:
            return None
        near = np.isin(self._indices, self._context.pool.neighbours(best.index))
        return self._take_best(np.where(near, gains, -1.0))

    def gains(self) -> Vector:
        """Return the expected improvement of every candidate, as a log of a ratio of times."""
        outlook = self.outlook()
        gains = expected_improvement(outlook.best, outlook.mean, outlook.deviation)
        return np.where(outlook.free, np.round(gains, _DIGITS), -1.0)

    def gains_of(self, indices: list[int]) -> Vector:
        gains = self.gains().tolist()
        known = dict(zip(self._indices.tolist(), gains, strict=True))
        return np.array([known.get(index, 0.0) for index in indices])

    def outlook(self) -> Outlook:
        grown = max(GROWTH * self._fitted, self._fitted + LEAST_GROWTH)
        if self._posterior is None or len(self._context.memory.rows) >= grown:
            self._fit()
        return self._now()

    def _now(self) -> Outlook:
        assert self._posterior is not None
        memory = self._context.memory
        held = {id(row) for row in self._rows}
        new = [row for row in _kept(memory) if id(row) not in held]
        if new:
            self._rows += new
            self._posterior.extend(np.array([row.x for row in new]), group_numbers(new))
        told = [row for row in self._rows if row.says_something]
        z, scales = targets(told)
        mean, deviation = self._posterior.predict(
            z, np.array([row.says_something for row in self._rows], dtype=bool)
        )
        scale = float(scales[0])
        begun = [row.index for row in memory.rows if not row.group and row.index is not None]
        free = ~np.isin(self._indices, begun)
        return Outlook(least(told, z) * scale, mean * scale, deviation * scale, free)

    def glance(self) -> Outlook | None:
        """Return the outlook and change nothing; None before the first proposal."""
        if self._posterior is None:
            return None
        other = copy(self)
        other._rows, other._posterior = list(self._rows), self._posterior.copied()
        return other._now()

    def _take_best(self, gains: Vector) -> int | None:
        while len(gains) and gains.max() >= 0:
            place = int(gains.argmax())
            if (index := int(self._indices[place])) in self._context.remaining:
                return self._context.remaining.take(index)
            gains[place] = -1.0
        return None

    def _fit(self) -> None:
        context = self._context
        self._fitted = len(context.memory.rows)
        told = [row for row in context.memory.rows if row.says_something][-MOST_FITTED:]
        x = np.array([row.x for row in told])
        z, groups = targets(told)[0], group_numbers(told)
        self._kernel = fit_kernel(x, context.codes, z, groups, self._kernel)
        self._indices = context.candidates()
        self._posterior = Posterior(self._kernel, context.x(self._indices))
        self._rows = []
        context.memory.named.clear()


class ClassifierStrategy:
    """Take what a forest holds for the most promising, a few from each forest."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._queue: list[int] = []

    def take(self) -> int | None:
        context = self._context
        self._queue = [index for index in self._queue if index in context.remaining]
        if not self._queue:
            told = [row for row in context.memory.rows if row.says_something]
            indices = context.candidates()
            if not told or not len(indices):
                return None
            x = context.with_products(np.array([row.x for row in told]))
            judged = context.with_products(context.x(indices))
            seed = int(context.rng.integers(2**31))
            scores = np.round(promise(x, targets(told)[0], judged, seed), _DIGITS)
            order = indices[np.argsort(-scores, kind="stable")].tolist()
            # Where configs are compiled ahead, the choice among the named ones comes later.
            batch = BATCH_AHEAD if context.memory.waiting else BATCH
            self._queue = [index for index in order if index in context.remaining][:batch]
        return context.remaining.take(self._queue.pop(0)) if self._queue else None


class TpeStrategy:
    """Take the untried config that is nearest to the estimator's wish."""

    def __init__(self, context: SearchContext, tpe: CategoricalTpe) -> None:
        self._context, self._tpe = context, tpe

    def take(self) -> int | None:
        if not self._tpe.ready or not len(self._context.remaining):
            return None
        return self._context.remaining.take_nearest(self._tpe.wish())


def _kept(memory: Memory) -> list[SearchTrial]:
    """Choose the rows of a posterior, so that thousands of trials don't slow it down."""
    shared = [row for row in memory.rows if row.group][-MOST_SHARED:]
    own = [row for row in memory.rows if not row.group]
    early = own[:-MOST_LATEST]
    best = sorted(
        (row for row in early if row.log_us is not None), key=lambda row: row.log_us or 0.0
    )
    return [*shared, *best[:MOST_BEST], *own[-MOST_LATEST:], *memory.named]


def least(rows: list[SearchTrial], z: Vector) -> float:
    """Return the value of the incumbent; before there is one, that of the other workloads."""
    timed = [not row.group and row.log_us is not None for row in rows]
    return float(z[timed].min() if any(timed) else z.min(initial=0.0))


def expected_improvement(best: float, mean: Vector, deviation: Vector) -> Vector:
    """Return by how much each candidate is expected to fall below `best`."""
    from scipy.special import ndtr

    score = (best - mean) / deviation
    density = np.exp(-score * score / 2) / np.sqrt(2 * np.pi)
    return np.asarray(deviation * (score * ndtr(score) + density), dtype=float)
