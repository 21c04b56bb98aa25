"""From how fast a candidate is to the reward that a model is trained with."""

from __future__ import annotations

from math import log

# What no candidate came of, or a wrong one.
REFUSED = -1.0
# Whatever runs correctly is worth more than what was refused, however slow: the baseline stands
# in for it, so that ten times slower harms nobody more than two times.
SLOWEST = log(1 / 2)


def reward_of(speedup: float | None) -> float:
    """Return the natural logarithm of a speedup over the baseline, at least `SLOWEST`.

    `REFUSED` for None, which means that nothing ran correctly. The logarithm is what the tree of
    candidates is grown by as well: 2x faster and 2x slower are equally far from 0.
    """
    return REFUSED if speedup is None else max(log(speedup), SLOWEST)
