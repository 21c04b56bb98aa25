"""A choice that two tunings share: among configs that measurements can't tell apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tuner.model.config import Config, SearchSpace
from tuner.model.statistics import Interval, paired_interval, unpaired_interval
from tuner.model.trial import RESOLUTION, Comparison, Variant

# A kernel that is compared with itself differs by up to this. Within twice that, two seeds of a
# simulated fleet write configs over 0.2 % apart more often (benchmarks/simulated_fleet.py).
SAME = 0.001


def alike(
    comparison: Comparison, fastest: Variant, distrusted: Collection[Variant], seed: int
) -> tuple[Variant, ...]:
    """List the finalists that are not proved slower than the fastest by over `SAME`; it is first.

    The columns are compared with each other in their own rounds, not each with the baseline: what
    both share there cancels. Where the fastest is proved faster than the baseline, so are all, and
    none is proved slower.
    """
    interval = paired_interval if comparison.paired else unpaired_interval
    columns = list(zip(*comparison.rounds, strict=True))
    first, baseline = columns[comparison.column(fastest)], columns[0]

    def speedup(times_us: Sequence[float]) -> Interval:
        return interval(baseline, times_us, seed)[1]

    proved = 1.0 + RESOLUTION
    wanted = speedup(first)[0] > proved
    found = [fastest]
    for one in comparison.finalists:
        if one in distrusted or one == fastest:
            continue
        # How many times the other takes as long.
        times_us = columns[comparison.column(one)]
        _, (behind, _) = interval(times_us, first, seed)
        least, most = speedup(times_us)
        if behind <= 1.0 + SAME and (least > proved if wanted else most >= 1.0 - RESOLUTION):
            found.append(one)
    return tuple(found)


def canonical(variants: Sequence[Variant], space: SearchSpace) -> Variant:
    """Choose among variants that can't be told apart: the first in the order of the space.

    What a search happened to try, and who was a hair ahead, then decides as little as can be.
    """
    return min(variants, key=lambda one: _place(one.config, space))


def _place(config: Config, space: SearchSpace) -> tuple[int, ...]:
    return tuple(one.values.index(config[one.name]) for one in space.parameters)
