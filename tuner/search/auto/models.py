"""Gaussian-process regression over a fixed set of candidates, cheap to extend by one trial."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

from tuner.search.auto.context import Matrix, Vector

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

    def between(self, a: Floats, b: Floats) -> Floats:
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
    found = minimize(
        loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _ITERATIONS}
    ).x
    weights = np.full(width, WEIGHT)
    weights[varying] = np.exp(found[:-2])
    difference, noise = np.exp(found[-2:]).tolist()
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

    def copied(self) -> Posterior:
        other = copy(self)
        # views without the room behind them: extending copies them first
        other._explained = self._explained.copy()
        other._cross, other._solved = self._cross[: len(self._x)], self._solved[: len(self._x)]
        return other

    def extend(self, x: Matrix, groups: Groups) -> None:
        """Add rows, with the group (workload) of each."""
        before, count = len(self._x), len(self._x) + len(x)
        self._x, self._groups = np.concatenate([self._x, x]), np.r_[self._groups, groups]
        own = self._kernel.between(x, self._x) + LEVEL * (groups[:, np.newaxis] == self._groups)
        corner = own[:, before:] + self._kernel.noise * np.eye(len(x))
        side = solve_triangular(self._lower, own[:, :before].T, lower=True).T
        tip = np.linalg.cholesky(corner - side @ side.T)
        top = np.hstack([self._lower, np.zeros((before, len(x)))])
        self._lower = np.vstack([top, np.hstack([side, tip])])
        if count > len(self._cross):
            self._cross = _with_room(self._cross, before, 2 * count)
            self._solved = _with_room(self._solved, before, 2 * count)
        cross = self._kernel.between(x.astype(np.float32), self._candidates)
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
    larger = np.zeros((room, rows.shape[1]), dtype=rows.dtype)
    larger[:used] = rows[:used]
    return larger


def _differing(a: Floats, b: Floats) -> Floats:
    counts = np.zeros((len(a), len(b)), dtype=np.uint16)
    for p, q in zip(a.T.copy(), b.T.copy(), strict=True):
        counts += p[:, np.newaxis] != q
    return counts.astype(a.dtype)


def _matern(squared: Floats) -> tuple[Floats, Floats]:
    root = np.sqrt(5 * squared + 1e-12)
    decay = np.exp(-root)
    return (1 + root + root * root / 3) * decay, -(5 / 6) * (1 + root) * decay


# The share of the trials that counts as promising: the one that likelihood-free Bayesian
# optimization was published with is a third, Helion's is a tenth; more trials bear a smaller one.
PROMISING = 0.2
TREES = 40


def promise(x: Matrix, z: Vector, candidates: Matrix, seed: int) -> Vector:
    """Return how likely each candidate is promising, `[candidates]`, from values `z` of rows `x`.

    Promising rows count by how far they are below the limit, as in likelihood-free Bayesian
    optimization by expected improvement (Song et al. 2022).
    """
    from sklearn.ensemble import RandomForestClassifier

    limit = float(np.quantile(z, PROMISING))
    good = z <= limit
    if good.all():
        return np.zeros(len(candidates))
    gains = np.where(good, limit - z, 0.0)
    # the limit itself is promising too, if least
    gains += np.where(good, 0.1 * max(float(gains.max()), 1e-9), 0.0)
    weights = np.where(good, gains / gains.sum(), 1.0 / (~good).sum())
    forest = RandomForestClassifier(
        TREES, max_features="sqrt", min_samples_leaf=2, random_state=seed, n_jobs=1
    )
    forest.fit(x, good, sample_weight=weights * len(x) / 2)
    # straight from the trees: the forest's own method spends longer on checks than on predicting
    rows = np.ascontiguousarray(candidates, dtype=np.float32)
    votes = np.zeros(len(candidates))
    for tree in forest.estimators_:
        votes += tree.tree_.predict(rows).reshape(len(rows), -1)[:, -1]
    return votes / TREES


P = ParamSpec("P")
T = TypeVar("T")
# Made after the import of SciPy, which brings a BLAS of its own: only what is loaded is found.
_THREADS = ThreadpoolController()


def single_threaded(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function with one BLAS thread."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        with _THREADS.limit(limits=1):
            return function(*args, **kwargs)

    return limited
