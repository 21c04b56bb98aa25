"""A choice that two tunings share: by the final rounds, among configs as fast as each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import NormalDist

import numpy as np

from tuner.model.config import SearchSpace
from tuner.model.statistics import SURE, trimmed_mean
from tuner.model.trial import Comparison, Variant

# A kernel that is compared with itself differs by up to this. Where what can't be told apart counts
# as alike, or what is within twice this, two seeds of a simulated fleet write configs over 0.2 %
# apart more often (benchmarks/simulated_fleet.py).
SAME = 0.001
# Of the rounds on either side: a GPU that is held up takes ten times as long. No more, for where
# inputs decide how much there is to do, rounds are of several kinds, and all of them count.
TRIMMED = 1 / 16


def sure_of(count: int) -> float:
    """Give the standard errors that the best of so many must be ahead by: `SURE` where it is one.

    Of many that gain nothing, one seems to: each gets its share of the chance of being wrong
    (Bonferroni).
    """
    normal = NormalDist()
    return normal.inv_cdf(1.0 - normal.cdf(-SURE) / count)


@dataclass(frozen=True, slots=True)
class Gain:
    """By how much a finalist is faster than the baseline: a logarithm, with its standard error.

    `among` says of how many it may have been taken for gaining the most.
    """

    gain: float
    error: float
    among: int = 1

    @property
    def speedup(self) -> float:
        return exp(self.gain)

    @property
    def proved(self) -> bool:
        """Whether it is faster, by more than a kernel than itself."""
        return self.gain - sure_of(self.among) * self.error > SAME

    @property
    def slower(self) -> bool:
        """Whether it is slower, by more than a kernel than itself."""
        return self.gain + SURE * self.error < -SAME


@dataclass(frozen=True, slots=True)
class Fastest:
    """The finalists that take no longer than the fastest by over `SAME`, the fastest first."""

    variants: tuple[Variant, ...]
    gain: Gain


def fastest_of(comparison: Comparison, distrusted: Collection[Variant]) -> Fastest | None:
    """Say who is the fastest by the final rounds, and who is as fast; None if all are distrusted.

    Many finalists are told apart by the mean of all final rounds, which are more than those of the
    race before. Columns are compared with each other in their own rounds, not each with the
    baseline: what both share there cancels. Where the fastest is proved faster than the baseline,
    so are all, and none is proved slower.
    """
    trusted = [finalist for finalist in comparison.finalists if finalist not in distrusted]
    if not trusted:
        return None
    gains = {v: replace(gain_of(comparison, v), among=len(trusted)) for v in trusted}
    fastest = max(trusted, key=lambda variant: gains[variant].gain)

    def serves(variant: Variant) -> bool:
        fast_enough = gains[variant].proved if gains[fastest].proved else not gains[variant].slower
        return fast_enough and gain_of(comparison, fastest, variant).gain <= SAME

    others = (variant for variant in trusted if variant != fastest and serves(variant))
    return Fastest((fastest, *others), gains[fastest])


def gain_of(comparison: Comparison, variant: Variant | str, other: Variant | None = None) -> Gain:
    """Say by how much one is faster than another, else the baseline, by the final rounds."""
    columns = [comparison.column(other), comparison.column(variant)]
    sides = np.log(np.array(comparison.rounds)[:, columns])
    if comparison.paired:
        sides = sides[:, [0]] - sides[:, [1]]
    means, errors = trimmed_mean(sides, TRIMMED)
    if comparison.paired:
        return Gain(float(means[0]), float(errors[0]))
    return Gain(float(means[0] - means[1]), float(np.hypot(*errors)))


def canonical(variants: Sequence[Variant], space: SearchSpace) -> Variant:
    """Choose among variants that are as fast as each other: the first in the order of the space.

    What a search happened to try, and who was a hair ahead, then decides as little as can be.
    """

    def place(variant: Variant) -> list[int]:
        return [p.values.index(variant.config[p.name]) for p in space.parameters]

    return min(variants, key=place)
