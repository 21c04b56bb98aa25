"""What is left to find: when a search may end before its budget."""

from __future__ import annotations

from math import exp, expm1
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tuner.search.features import Vector
    from tuner.search.members import Outlook
    from tuner.search.memory import Row

# The candidates of which the most is expected: the others add nothing to the sum.
CONSIDERED = 500
# Logs of ratios of times between which the gain is integrated, and in how many steps.
_LEAST_GAIN, _MOST_GAIN, _STEPS = 1e-4, 2.0, 30
# A model is sure of itself too early. What this many trials found, the next ones may find too.
WINDOW = 20


def expected_gain(outlook: Outlook, own: list[Row]) -> float:
    """Return the share of the best time that all candidates together may still save.

    The larger of two: the expected gain of the best of the candidates, as the model sees them,
    each on its own; and what the last `WINDOW` of the searcher's own trials have gained.
    """
    if not outlook.free.any():
        return 0.0
    return max(_by_model(outlook), _of_late(own))


def _by_model(outlook: Outlook) -> float:
    from scipy.special import log_ndtr

    mean, deviation = outlook.mean[outlook.free], outlook.deviation[outlook.free]
    hopeful = np.argsort((mean - outlook.best) / deviation, kind="stable")[:CONSIDERED]
    mean, deviation = mean[hopeful], deviation[hopeful]
    gains: Vector = np.r_[0.0, np.geomspace(_LEAST_GAIN, _MOST_GAIN, _STEPS)]
    # how likely none of them is better than the best by this much
    short = (mean + gains[:, np.newaxis] - outlook.best) / deviation
    exceeding = -np.expm1(log_ndtr(short).sum(1))
    return float(np.trapezoid(exceeding * np.exp(-gains), gains))


def _of_late(own: list[Row]) -> float:
    times = [row.log_us for row in own]
    before = min((t for t in times[:-WINDOW] if t is not None), default=None)
    late = min((t for t in times[-WINDOW:] if t is not None), default=None)
    if late is None:
        return 0.0
    if before is None:
        return -expm1(late - max(t for t in times if t is not None))
    return max(0.0, 1 - exp(late - before))
