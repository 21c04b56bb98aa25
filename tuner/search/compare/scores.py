"""How good a search is: against what random search expects to find, and against the optimum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

WITHIN = 0.95
# Below this share of the optimum, what random search has left to gain is rounding.
_NOTHING_LEFT = 1e-9


@dataclass(frozen=True, slots=True)
class Score:
    """What a search method reached: means over the seeds.

    `score` is the mean over evaluations of (random - found) / (random - optimum): 0 is what random
    search expects to have found by then, 1 the optimum. `share_50` and `share_100` are the
    optimum's time over the best found after half of the trials and after all; `within_95` is the
    share of runs that end at 0.95 of the optimum or above. `seconds_per_run` is the median over
    the runs of the searcher's own time.
    """

    score: float
    share_50: float
    share_100: float
    within_95: float
    seconds_per_run: float


def score_of(
    found_us: Floats, random_us: Floats, optimum_us: float, seconds: Sequence[float]
) -> Score:
    """Score the runs of one method: `found_us` has one row per seed, one column per evaluation."""
    shares = optimum_us / found_us
    return Score(
        score=_gain(found_us, random_us, optimum_us),
        share_50=float(shares[:, half(found_us.shape[1]) - 1].mean()),
        share_100=float(shares[:, -1].mean()),
        within_95=float((shares[:, -1] >= WITHIN).mean()),
        seconds_per_run=median(seconds),
    )


def half(trials: int) -> int:
    """Return the number of trials after which `share_50` is taken."""
    return max(1, trials // 2)


def mean_of(scores: Iterable[Score]) -> Score:
    """Average scores over spaces, all with the same weight."""
    listed = list(scores)
    return Score(*(fmean(getattr(s, field.name) for s in listed) for field in fields(Score)))


def expected_random(times_us: Iterable[float | None], evaluations: int) -> Floats:
    """Compute what random search without replacement has found on average after each evaluation.

    Exact: the best of k configs is worse than the i best of n with probability
    C(n - i, k) / C(n, k). A failed config counts as the worst time; after n evaluations all is
    found.
    """
    listed = list(times_us)
    worst = max(time for time in listed if time is not None)
    ordered = np.sort([worst if time is None else time for time in listed])
    count = len(ordered)
    steps = np.diff(ordered, prepend=0.0)
    survival = np.ones(count)
    curve = np.full(evaluations, ordered[0])
    for k in range(min(evaluations, count)):
        survival = survival * np.maximum(count - np.arange(count) - k, 0) / (count - k)
        curve[k] = (survival * steps).sum()
    return curve


def _gain(found_us: Floats, random_us: Floats, optimum_us: float) -> float:
    left = random_us - optimum_us
    counted = left > _NOTHING_LEFT * optimum_us
    if not counted.any():
        return 1.0  # all configs are equally fast
    gains = (random_us - found_us)[:, counted] / left[counted]
    return float(gains.mean())
