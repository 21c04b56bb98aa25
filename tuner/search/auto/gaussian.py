"""A Gaussian process over a fixed set of candidates, which is cheap to extend by one trial."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

from tuner.search.auto.context import (
    Indices,
    Matrix,
    Memory,
    SearchContext,
    SearchTrial,
    Vector,
    group_numbers,
    mark_told,
    targets,
)

Floats = np.ndarray[Any, np.dtype[Any]]
Single = np.ndarray[Any, np.dtype[np.float32]]
Groups = np.ndarray[Any, np.dtype[np.intp]]
# Priors of the hyper-parameters, as medians and widths of lognormals. Columns run from 0 to 1: a
# weight of 0.3 makes opposite ends of a column correlate with 0.8 (Matern 5/2, length 1.8), and the
# width of 2 lets the trials move that to anything from 0.005 to 16.
WEIGHT, WEIGHT_WIDTH = 0.3, 2.0
# The same for one parameter that differs, however far: values that resonate make a time rugged.
DIFFERENCE = 0.02
NOISE, NOISE_WIDTH = 1e-2, 1.5
_BOUNDS_WEIGHT = (-7.0, 5.0)
_BOUNDS_NOISE = (float(np.log(1e-5)), 0.0)
# Every group of rows has a level of its own: this variance, in those of the signal.
LEVEL = 10.0
_ITERATIONS = 20
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class CovarianceKernel:
    """Matern 5/2 with a weight per column (inverse squared length), and a share of noise.

    The last `codes` columns of a row are categories: `difference` is the weight of each of them
    that differs.
    """

    weights: Vector
    difference: float
    noise: float
    codes: int

    def correlate(self, a: Floats, b: Floats) -> Floats:
        """Return the correlations of the rows of `a` with those of `b`."""
        width, scale = len(self.weights), np.sqrt(self.weights).astype(a.dtype)
        p, q = a[:, :width] * scale, b[:, :width] * scale
        squared = (p * p).sum(1)[:, np.newaxis] + (q * q).sum(1)[np.newaxis] - 2 * (p @ q.T)
        squared = np.maximum(squared, 0.0)
        squared += a.dtype.type(self.difference) * _differing(a[:, width:], b[:, width:])
        return _matern(squared)[0]


def fit_kernel(
    x: Matrix, codes: int, z: Vector, groups: Groups, start: CovarianceKernel | None
) -> CovarianceKernel:
    """Find the most probable weights and noise for values `z` of rows `x`."""
    count, width = len(x), x.shape[1] - codes
    varying = np.flatnonzero(np.ptp(x[:, :width], axis=0) > 0)
    prior = np.log(np.r_[np.full(len(varying), WEIGHT), DIFFERENCE, NOISE])
    widths = np.r_[np.full(len(varying) + 1, WEIGHT_WIDTH), NOISE_WIDTH]
    first = prior
    if start is not None:
        first = np.log(np.r_[start.weights[varying], start.difference, start.noise])
    columns = x[:, varying].T
    apart = (columns[:, :, np.newaxis] - columns[:, np.newaxis]) ** 2
    differing = _differing(x[:, width:], x[:, width:])
    squares = np.concatenate([apart, differing[np.newaxis]]).reshape(-1, count**2)
    level = LEVEL * (groups[:, np.newaxis] == groups)

    def loss(theta: Vector) -> tuple[float, Vector]:
        weights, noise = np.exp(theta[:-1]), float(np.exp(theta[-1]))
        k, slope = _matern((weights @ squares).reshape(count, count))
        lower = np.linalg.cholesky(k + level + noise * np.eye(count))
        inverse = cho_solve((lower, True), np.eye(count))
        weighted = inverse @ z
        signal = float(z @ weighted) / count + _TINY
        off = (theta - prior) / widths
        value = count / 2 * np.log(signal) + np.log(np.diag(lower)).sum() + (off @ off) / 2
        outer = (inverse - np.outer(weighted, weighted) / signal) / 2
        gradient = np.r_[squares @ (outer * slope).ravel() * weights, np.trace(outer) * noise]
        return float(value), gradient + off / widths

    bounds = [_BOUNDS_WEIGHT] * (len(varying) + 1) + [_BOUNDS_NOISE]
    optimum = minimize(
        loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _ITERATIONS}
    ).x
    weights = np.full(width, WEIGHT)
    weights[varying] = np.exp(optimum[:-2])
    difference, noise = np.exp(optimum[-2:]).tolist()
    return CovarianceKernel(weights, difference, noise, codes)


class Posterior:
    """What rows of trials say about candidates of group 0; rows may be added, told or not.

    The variance counts every row, the mean only those told: what is under way makes its
    surroundings less interesting without a guess of its value (GP-BUCB, Desautels et al. 2014).
    What is kept for every candidate is in single precision: it ranks them.
    """

    def __init__(self, kernel: CovarianceKernel, candidates: Matrix) -> None:
        self._kernel, self._candidates = kernel, candidates.astype(np.float32)
        self._groups = np.zeros(0, dtype=np.intp)
        self._x = np.zeros((0, candidates.shape[1]))
        self._lower = np.zeros((0, 0))
        self._cross = np.zeros((0, len(candidates)), dtype=np.float32)
        self._solved = np.zeros((0, len(candidates)), dtype=np.float32)
        self._explained = np.zeros(len(candidates))

    def copy(self) -> Posterior:
        other = copy(self)
        # views without the room behind them: extending copies them first
        other._explained = self._explained.copy()
        other._cross, other._solved = self._cross[: len(self._x)], self._solved[: len(self._x)]
        return other

    def extend(self, x: Matrix, groups: Groups) -> None:
        """Add rows, with the group (workload) of each."""
        before, count = len(self._x), len(self._x) + len(x)
        self._x, self._groups = np.concatenate([self._x, x]), np.r_[self._groups, groups]
        own = self._kernel.correlate(x, self._x) + LEVEL * (groups[:, np.newaxis] == self._groups)
        corner = own[:, before:] + self._kernel.noise * np.eye(len(x))
        side = solve_triangular(self._lower, own[:, :before].T, lower=True).T
        tip = np.linalg.cholesky(corner - side @ side.T)
        top = np.hstack([self._lower, np.zeros((before, len(x)))])
        self._lower = np.vstack([top, np.hstack([side, tip])])
        if count > len(self._cross):
            self._cross = _with_room(self._cross, before, 2 * count)
            self._solved = _with_room(self._solved, before, 2 * count)
        cross = self._kernel.correlate(x.astype(np.float32), self._candidates)
        cross += np.float32(LEVEL) * (groups == 0)[:, np.newaxis]
        rest = cross - side.astype(np.float32) @ self._solved[:before]
        solved = solve_triangular(tip.astype(np.float32), rest, lower=True)
        self._cross[before:count], self._solved[before:count] = cross, solved
        self._explained += (solved * solved).sum(0)

    def predict(
        self, z: Vector, told: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> tuple[Vector, Vector]:
        """Return mean and standard deviation of every candidate; `z` are the told rows' values."""
        values = np.zeros(len(self._x))
        values[told] = z
        weighted = cho_solve((self._lower, True), values)
        if not told.all():
            # the rows that are not told get the weight 0 (inverse of a block by its complement)
            open_ = np.flatnonzero(~told)
            columns = cho_solve((self._lower, True), np.eye(len(self._x))[:, open_])
            weighted = weighted - columns @ np.linalg.solve(columns[open_], weighted[open_])
        signal = float(values @ weighted) / max(1, len(z))
        left = np.maximum(1 + LEVEL - self._explained, _TINY)
        mean = weighted.astype(np.float32) @ self._cross[: len(self._x)]
        return mean.astype(float), np.sqrt(left * max(signal, _TINY))


def _with_room(rows: Single, used: int, room: int) -> Single:
    return np.concatenate([rows[:used], np.zeros((room - used, rows.shape[1]), rows.dtype)])


def _differing(a: Floats, b: Floats) -> Floats:
    counts = np.zeros((len(a), len(b)), dtype=np.uint16)
    for p, q in zip(a.T.copy(), b.T.copy(), strict=True):
        counts += p[:, np.newaxis] != q
    return counts.astype(a.dtype)


def _matern(squared: Floats) -> tuple[Floats, Floats]:
    root = np.sqrt(5 * squared + 1e-12)
    decay = np.exp(-root)
    return (1 + root + root * root / 3) * decay, -(5 / 6) * (1 + root) * decay


# Made after the import of SciPy, which brings a BLAS of its own: only what is loaded is found.
THREADS = ThreadpoolController()
# A kernel is fitted again when there are this many times the rows, and this many more.
GROWTH, LEAST_GROWTH = 1.15, 5
# Rows that a kernel is fitted to, the latest: a fit takes the cube of their number.
MOST_FITTED = 120
# Rows of a posterior: the latest of other workloads, the latest of the own and the best of those.
MOST_SHARED, MOST_LATEST, MOST_BEST = 300, 300, 100
# Models agree to fewer digits on different processors: the last ones must not decide.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Outlook:
    """The incumbent and the candidates, in logs of times; `free` are those not proposed yet."""

    best: float
    mean: Vector
    deviation: Vector
    free: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(eq=False)
class GaussianModel:
    """Take the largest expected improvement under a Gaussian process."""

    context: SearchContext
    _kernel: CovarianceKernel | None = None
    _fitted: int = 0
    _indices: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    _rows: list[SearchTrial] = field(default_factory=list)
    _posterior: Posterior | None = None

    def take(self) -> int | None:
        return self._take_best(self.gains())

    def polish(self) -> int | None:
        """Take the best of the incumbent's neighbours, which differ in one parameter."""
        gains = self.gains()
        best = self.context.memory.best()
        if best is None or best.index is None:
            return None
        near = np.isin(self._indices, self.context.pool.neighbours(best.index))
        return self._take_best(np.where(near, gains, -1.0))

    def gains(self) -> Vector:
        """Return the expected improvement of every candidate, as a log of a ratio of times."""
        grown = max(GROWTH * self._fitted, self._fitted + LEAST_GROWTH)
        if self._posterior is None or len(self.context.memory.rows) >= grown:
            context = self.context
            self._fitted = len(context.memory.rows)
            rows = context.memory.told()[-MOST_FITTED:]
            x = np.array([row.x for row in rows])
            z, groups = targets(rows)[0], group_numbers(rows)
            self._kernel = fit_kernel(x, context.codes, z, groups, self._kernel)
            self._indices = context.candidates()
            self._posterior = Posterior(self._kernel, context.x(self._indices))
            self._rows = []
            context.memory.named.clear()
        outlook = self._now()
        gains = expected_improvement(outlook.best, outlook.mean, outlook.deviation)
        return np.where(outlook.free, np.round(gains, _DIGITS), -1.0)

    def gains_of(self, indices: list[int]) -> Vector:
        gains = self.gains().tolist()
        by_index = dict(zip(self._indices.tolist(), gains, strict=True))
        return np.array([by_index.get(index, 0.0) for index in indices])

    def _now(self) -> Outlook:
        assert self._posterior is not None
        memory = self.context.memory
        held = {id(row) for row in self._rows}
        new = [row for row in _choose_rows(memory) if id(row) not in held]
        if new:
            self._rows += new
            self._posterior.extend(np.array([row.x for row in new]), group_numbers(new))
        say_something = mark_told(self._rows)
        informative = [row for row, says in zip(self._rows, say_something, strict=True) if says]
        z, scales = targets(informative)
        mean, deviation = self._posterior.predict(z, say_something)
        scale = float(scales[0])
        begun = [row.index for row in memory.rows if not row.group and row.index is not None]
        free = ~np.isin(self._indices, begun)
        return Outlook(least(informative, z) * scale, mean * scale, deviation * scale, free)

    def glance(self) -> Outlook | None:
        """Return the outlook and change nothing; None before the first proposal."""
        if self._posterior is None:
            return None
        other = copy(self)
        other._rows, other._posterior = list(self._rows), self._posterior.copy()
        return other._now()

    def _take_best(self, gains: Vector) -> int | None:
        open_ = np.flatnonzero((gains >= 0) & self.context.remaining.are_free(self._indices))
        if not len(open_):
            return None
        return self.context.remaining.take(int(self._indices[open_[gains[open_].argmax()]]))


def _choose_rows(memory: Memory) -> list[SearchTrial]:
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
    from scipy.special import ndtr

    score = (best - mean) / deviation
    density = np.exp(-score * score / 2) / np.sqrt(2 * np.pi)
    return np.asarray(deviation * (score * ndtr(score) + density), dtype=float)
