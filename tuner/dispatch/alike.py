"""A choice that two tunings share: among configs that are as fast as each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tuner.model.config import Config, SearchSpace
from tuner.model.statistics import paired_interval, unpaired_interval
from tuner.model.trial import RESOLUTION, Comparison, Variant

# A kernel that is compared with itself differs by up to this. Where what can't be told apart counts
# as alike, or what is within twice this, two seeds of a simulated fleet write configs over 0.2 %
# apart more often (benchmarks/simulated_fleet.py).
SAME = 0.001
# Of the rounds on either side: a GPU that is held up takes ten times as long. No more, for where
# inputs decide how much there is to do, rounds are of several kinds, and all of them count.
TRIMMED = 1 / 16


def alike(
    comparison: Comparison, best: Variant, distrusted: Collection[Variant], seed: int
) -> tuple[Variant, ...]:
    """List the finalists that take no longer than the fastest by over `SAME`; it is first.

    The fastest is so by the mean of the final rounds, which are more than those of the race that
    found `best`. Columns are compared with each other in their own rounds, not each with the
    baseline: what both share there cancels. Where `best` is proved faster than the baseline, so are
    all, and none is proved slower.
    """
    interval = paired_interval if comparison.paired else unpaired_interval
    columns = list(zip(*comparison.rounds, strict=True))
    trusted = [one for one in comparison.finalists if one == best or one not in distrusted]
    bounds = {
        one: interval(columns[0], columns[comparison.column(one)], seed)[1] for one in trusted
    }
    proved = 1.0 + RESOLUTION
    wanted = bounds[best][0] > proved
    may = [
        one
        for one, (least, most) in bounds.items()
        if one == best or (least > proved if wanted else most >= 1.0 - RESOLUTION)
    ]
    logs = np.log(columns)

    def behind(one: Variant, other: Variant) -> float:
        apart = np.sort(logs[comparison.column(one)] - logs[comparison.column(other)])
        cut = int(TRIMMED * len(apart))
        return float(apart[cut : len(apart) - cut].mean())

    fastest = min(may, key=lambda one: behind(one, best))
    others = [one for one in may if one != fastest and behind(one, fastest) <= SAME]
    return (fastest, *others)


def canonical(variants: Sequence[Variant], space: SearchSpace) -> Variant:
    """Choose among variants that are as fast as each other: the first in the order of the space.

    What a search happened to try, and who was a hair ahead, then decides as little as can be.
    """
    return min(variants, key=lambda one: _place(one.config, space))


def _place(config: Config, space: SearchSpace) -> tuple[int, ...]:
    return tuple(one.values.index(config[one.name]) for one in space.parameters)
