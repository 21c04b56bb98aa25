"""The trials of one candidate on one workload, sorted for whoever draws conclusions from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.expressions import Value
from tuner.kernel import Workload
from tuner.trial import Status, Trial

# Fewer timed configs of a workload say nothing of it.
FEWEST = 5
# Search times of two configs that are closer than this are called equal: they were taken at
# different moments, between which the clocks drift by a percent and a half.
CLEAR = 0.02


@dataclass(frozen=True, slots=True)
class Observed:
    """What a search saw on one workload.

    `tried` leaves out what a recording had no answer for. `correct` are all trials with a time,
    fastest first; `timed` those of them that were not stopped early. The few samples of a config
    that was stopped early do for saying that others are faster, and for no more.
    """

    workload: Workload
    tried: tuple[Trial, ...]
    correct: tuple[Trial, ...]
    timed: tuple[Trial, ...]

    @classmethod
    def of(cls, workload: Workload, trials: Iterable[Trial]) -> Observed:
        """Sort the trials of one workload."""
        tried = tuple(trial for trial in trials if trial.status is not Status.MISSING)
        correct = tuple(sorted((t for t in tried if t.time_us is not None), key=time_of))
        return cls(workload, tried, correct, tuple(t for t in correct if not _stopped(t)))

    @property
    def enough(self) -> bool:
        """Whether so many configs were timed that something can be said."""
        return len(self.timed) >= FEWEST

    @property
    def best(self) -> Trial:
        """The fastest config that was timed in full; only where there is `enough`."""
        return self.timed[0]

    @property
    def best_us(self) -> float:
        """The time of the best."""
        return time_of(self.best)

    def having(self, name: str, value: Value) -> tuple[Trial, ...]:
        """List the correct trials with one value of a parameter, fastest first."""
        return tuple(t for t in self.correct if t.config.get(name) == value)

    def slowdown(self, trials: Sequence[Trial]) -> float:
        """Divide the time of the first of these trials by the best's."""
        return time_of(trials[0]) / self.best_us

    def top(self, share: float) -> tuple[Trial, ...]:
        """List the fastest share of the correct trials, and all that are about as fast as best."""
        least = max(FEWEST, round(share * len(self.correct)))
        near = sum(time_of(trial) <= self.best_us * (1 + CLEAR) for trial in self.timed)
        return self.timed[: max(least, near)]


def observed(trials: Mapping[Workload, Sequence[Trial]]) -> tuple[Observed, ...]:
    """Sort the trials of every workload."""
    return tuple(Observed.of(workload, found) for workload, found in trials.items())


def time_of(trial: Trial) -> float:
    """Return the time of a trial that has one; raise `ValueError` for another."""
    if trial.time_us is None:
        raise ValueError(f"a trial with the status {trial.status} has no time")
    return trial.time_us


def _stopped(trial: Trial) -> bool:
    return trial.measurement is not None and trial.measurement.stopped_early
