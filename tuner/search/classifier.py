"""A forest that tells promising configs from others, without a model of their times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tuner.search.features import Matrix, Vector

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
