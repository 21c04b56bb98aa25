"""What a session proves of its variants: times in rounds with the baseline, and who is out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from tuner.model.kernel import Workload
from tuner.model.statistics import Interval, paired_interval, unpaired_interval
from tuner.model.trial import RESOLUTION, Check, Comparison, Status, Trial, Variant

# One in this many rounds chooses among several finalists; the others report (tuner/finals.py).
CHOOSING_SHARE = 4

RoundTimes = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """A variant against the baseline on one workload.

    Times, speedup and interval are of the rounds that report. `ratio` is the median of the
    variant's time over the baseline's in all rounds: what the choice of a set goes by.
    """

    workload: Workload
    variant: Variant
    time_us: float
    baseline_us: float
    speedup: float
    interval: Interval
    paired: bool
    ratio: float

    @property
    def proved(self) -> bool:
        """Whether it is faster than the baseline beyond the interval and the resolution."""
        return self.interval[0] > 1.0 + RESOLUTION

    @property
    def slower(self) -> bool:
        """Whether it is slower than the baseline beyond the interval and the resolution."""
        return self.interval[1] < 1.0 - RESOLUTION


Evidence = Mapping[Workload, tuple[Compared, ...]]


def evidence(
    comparisons: Iterable[Comparison], distrusted: frozenset[Variant], seed: int
) -> Evidence:
    """Collect what the comparisons say of each workload, fastest first.

    Of a variant that was compared twice on a workload the later comparison counts. `seed` is the
    session's, so that an interval here is the one of its results.
    """
    found: dict[Workload, dict[Variant, Compared]] = {}
    for comparison in comparisons:
        of_workload = found.setdefault(comparison.workload, {})
        for column, variant in enumerate(comparison.finalists, start=1):
            if variant not in distrusted:
                of_workload[variant] = _compared(comparison, column, seed)
    return {
        workload: tuple(sorted(variants.values(), key=lambda one: one.ratio))
        for workload, variants in found.items()
    }


def distrusted(trials: Iterable[Trial], checks: Iterable[Check]) -> frozenset[Variant]:
    """Name the variants that were ever wrong or failed a check: they serve nowhere.

    A result that is wrong on one shape says nothing good of the shapes that nobody tried.
    """
    wrong = {trial.variant for trial in trials if trial.status is Status.INCORRECT}
    return frozenset(wrong | {check.variant for check in checks if check.passed is False})


def split(rounds: RoundTimes, finalists: int) -> tuple[RoundTimes, RoundTimes]:
    """Keep the rounds that choose apart from those that report; one finalist needs no choice."""
    count = len(rounds) // CHOOSING_SHARE
    return (rounds[:count], rounds[count:]) if count and finalists > 1 else (rounds, rounds)


def _compared(comparison: Comparison, column: int, seed: int) -> Compared:
    _, reporting = split(comparison.rounds, len(comparison.finalists))
    baseline_us = [row[0] for row in reporting]
    tuned_us = [row[column] for row in reporting]
    interval = paired_interval if comparison.paired else unpaired_interval
    speedup, bounds = interval(baseline_us, tuned_us, seed)
    return Compared(
        workload=comparison.workload,
        variant=comparison.finalists[column - 1],
        time_us=median(tuned_us),
        baseline_us=median(baseline_us),
        speedup=speedup,
        interval=bounds,
        paired=comparison.paired,
        ratio=_ratio(comparison, column),
    )


def _ratio(comparison: Comparison, column: int) -> float:
    rounds = comparison.rounds
    if comparison.paired:
        return median(row[column] / row[0] for row in rounds)
    return median(row[column] for row in rounds) / median(row[0] for row in rounds)
