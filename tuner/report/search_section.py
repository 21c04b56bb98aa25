"""The sections on the search: its course, which parameters decided, and what was rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from tuner.importance import Importance, average, importance
from tuner.report import charts, wording
from tuner.report.convergence import convergence
from tuner.report.data import ReportData
from tuner.report.sections import MEANING
from tuner.trial import Status, Trial


@dataclass(frozen=True, slots=True)
class Course:
    """The search on one workload as a picture."""

    label: str
    drawing: Markup


@dataclass(frozen=True, slots=True)
class CandidateImportance:
    """Which parameters of one candidate decide, by workload and on average.

    `chart` is None where no workload has enough trials to tell.
    """

    name: str
    by_workload: tuple[tuple[str, Importance], ...]
    average: tuple[tuple[str, float], ...]
    chart: Markup | None

    @property
    def known(self) -> int:
        """How many workloads have enough trials to tell."""
        return sum(bool(one.shares) for _, one in self.by_workload)


def convergences(data: ReportData) -> tuple[Course, ...]:
    """Draw the search on every workload, over all candidates."""
    return tuple(
        Course(str(workload), _course(str(workload), trials, data))
        for workload, trials in data.by_workload().items()
    )


def early_end_lines(data: ReportData) -> tuple[str, ...]:
    """Say how many searches ended before their budget was used up, and why."""
    late = [one for one in data.early_ends if one.expected_gain is None]
    enough = [one for one in data.early_ends if one.expected_gain is not None]
    lines = []
    if enough:
        most = max(one.expected_gain or 0.0 for one in enough)
        trials = sum(one.trials for one in enough)
        lines.append(
            f"{_searches(len(enough))} ended early, after {trials:,} trials in all: the untried "
            f"configs were expected to save no more than {most:.1%} of the best time"
        )
    if late:
        lines.append(f"{_searches(len(late))} ended early for want of time")
    return tuple(lines)


def _searches(count: int) -> str:
    return f"{count} search{'es' * (count != 1)}"


def importances(data: ReportData) -> tuple[CandidateImportance, ...]:
    """Rank the parameters of every candidate that was searched, the winner's first.

    Candidates are never put together: a name may mean another thing in each.
    """
    return tuple(_importance(data, name) for name in data.ranking() if name in data.searched)


def rejected_chart(data: ReportData) -> Markup:
    """Draw how many trials were rejected, by status."""
    counts = Counter(data.counts())
    del counts[Status.CORRECT]
    rows = [
        charts.Bar(MEANING[status], count, f"{count:,} of {len(data.records):,} trials")
        for status, count in counts.most_common()
        if count
    ]
    return charts.bars("Rejected trials by status", rows)


def _course(label: str, trials: tuple[Trial, ...], data: ReportData) -> Markup:
    return convergence(
        label,
        [trial.time_us for trial in trials],
        [trial.measurement is not None and trial.measurement.stopped_early for trial in trials],
        data.baseline_us(trials[0].workload),
        tuple(_begins(trials)) if data.several else (),
    )


def _begins(trials: tuple[Trial, ...]) -> Iterator[tuple[int, str]]:
    seen: set[str] = set()
    for before, trial in enumerate(trials):
        if trial.candidate not in seen:
            seen.add(trial.candidate)
            yield before, trial.candidate


def _importance(data: ReportData, name: str) -> CandidateImportance:
    found = []
    for workload, trials in data.by_workload().items():
        own = [trial for trial in trials if trial.candidate == name]
        if own:
            found.append((str(workload), importance(own)))
    shares = average([one for _, one in found])
    bars = [charts.Bar(key, share, wording.percent(share)) for key, share in shares]
    title = f"Parameter importance, {name}" if data.several else "Parameter importance"
    return CandidateImportance(
        name, tuple(found), shares, charts.bars(title, bars) if bars else None
    )
