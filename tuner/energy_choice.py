"""Which configs the energy is measured of: those that can still win, and not all of a kind."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.consumption import Account, Objective
from tuner.trial import Trial, Variant

# Configs measured on each workload at most.
MOST_CONFIGS = 8
# No config is taken to draw less power, above idle, than this share under the least one seen on
# its workload. One that is 1 / (1 - 0.25) times slower than a config can then not cost less; the
# search itself stops to time what is 1.3 times slower than its best.
POWER_MARGIN = 0.25


def next_config(timed: Sequence[Trial], account: Account, objective: Objective) -> Trial | None:
    """Choose the next config to measure; None where none can win or enough are measured.

    `timed` is ordered by time. The first half are the fastest; the others are, of those that can
    still win, the most unlike those measured, for the fastest few are often all but the same.
    """
    measured = [one.variant for one in account.variants if one.variant is not None]
    left = [
        trial
        for trial in timed
        if trial.variant not in measured and can_win(trial, account, objective)
    ]
    if not left or len(measured) >= MOST_CONFIGS:
        return None
    if len(measured) < MOST_CONFIGS // 2:
        return left[0]
    # max keeps the first of equals, which is the fastest
    return max(left, key=lambda trial: min(unlike(trial.variant, one) for one in measured))


def can_win(trial: Trial, account: Account, objective: Objective) -> bool:
    """Tell whether a config could cost less than the best so far, if it drew the least power."""
    if not account.variants or trial.time_us is None:
        return True
    least_w = min(one.net_w for one in account.programs) * (1.0 - POWER_MARGIN)
    least = least_w * trial.time_us * 1e-3
    if objective == "edp":
        least *= trial.time_us
    return least < min(one.cost(objective) for one in account.variants)


def unlike(a: Variant, b: Variant) -> int:
    """Count the parameters in which two variants differ; those of two candidates differ in all."""
    if a.candidate != b.candidate:
        return 1 + max(len(a.config), len(b.config))
    return sum(value != b.config[name] for name, value in a.config.items())
