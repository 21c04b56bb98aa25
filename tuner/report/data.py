"""Everything a report shows, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.kernel import Workload
from tuner.space import Config
from tuner.statistics import floor_us
from tuner.trial import Check, Comparison, Result, Status, Trial

if TYPE_CHECKING:
    from tuner.mutation.score import Score


@dataclass(frozen=True, slots=True)
class Declared:
    """What the search space says of the verification.

    `varying` names the outputs whose bits may differ between runs, `nonfinite` the inputs that
    NaN and infinity are put into.
    """

    boundary: tuple[Workload, ...] = ()
    varying: tuple[str, ...] = ()
    nonfinite: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportData:
    """One run, ready to be shown.

    `records` pairs each trial of the search with the seconds into the run at which it ended, in
    that order; `finals` are the finalists' trials, with all checks.
    `measured_on` is the date of the measurements, empty where unknown. Mappings from workloads
    use `Workload.key`: `traffic_bytes` and `operations` are those of one operator call,
    `dynamic_shared_bytes` is further keyed by `Config.key`. `notes` say what had to be left out.
    `checks` are all of the session's, in order; `mutation` is what `tune mutate` left there, and
    `declared` None where the search space is not what it was.
    """

    kernel: str
    device: str
    recorded: bool
    results: tuple[Result, ...] = ()
    records: tuple[tuple[Trial, float], ...] = ()
    finals: tuple[Trial, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    baselines_us: Mapping[str, float] = field(default_factory=dict)
    baseline_source: str = ""
    tuned_sources: Mapping[str, str] = field(default_factory=dict)
    streaming_gbps: float | None = None
    traffic_bytes: Mapping[str, int] = field(default_factory=dict)
    operations: Mapping[str, int] = field(default_factory=dict)
    dynamic_shared_bytes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    searcher: str = ""
    seed: int | None = None
    seconds: float = 0.0
    measured_on: str = ""
    session: str = ""
    finished: bool = True
    on_cpu: bool = False
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    mutation: Score | None = None
    declared: Declared | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The search's trials alone."""
        return tuple(trial for trial, _ in self.records)

    @property
    def tuned(self) -> tuple[Result, ...]:
        """Results on the workloads that the search saw."""
        return tuple(result for result in self.results if not result.workload.held_out)

    @property
    def held_out(self) -> tuple[Result, ...]:
        """Results on the workloads that the search never saw."""
        return tuple(result for result in self.results if result.workload.held_out)

    def counts(self) -> dict[Status, int]:
        """Count the search's trials by status, every status named."""
        counted = Counter(trial.status for trial in self.trials)
        return {status: counted[status] for status in Status}

    def by_workload(self) -> dict[Workload, tuple[Trial, ...]]:
        """Group the search's trials by workload, in the order in which they were first tried."""
        groups: dict[Workload, list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault(trial.workload, []).append(trial)
        return {workload: tuple(trials) for workload, trials in groups.items()}

    def baseline_us(self, workload: Workload) -> float | None:
        """Find the baseline's time as the search saw it, else as the final comparison did."""
        if workload.key in self.baselines_us:
            return self.baselines_us[workload.key]
        for result in self.results:
            if result.workload == workload:
                return result.baseline_us
        return None

    def floor_us(self, workload: Workload) -> float | None:
        """Compute the least time that the traffic takes at the streaming rate."""
        traffic = self.traffic_bytes.get(workload.key)
        if traffic is None or not self.streaming_gbps:
            return None
        return floor_us(traffic, self.streaming_gbps)

    def shared_bytes(self, trial: Trial) -> int | None:
        """Sum static and dynamic shared memory per block, as far as they are known."""
        dynamic = self.dynamic_shared_bytes.get((trial.workload.key, trial.config.key))
        if trial.resources is None:
            return dynamic
        return trial.resources.static_shared_bytes + (dynamic or 0)


def fastest(trials: tuple[Trial, ...], count: int | None = None) -> tuple[Trial, ...]:
    """Sort the fully timed correct trials by time, each config once, and keep the first `count`."""
    timed = [t for t in trials if t.time_us is not None and not _stopped_early(t)]
    timed.sort(key=lambda trial: trial.time_us or 0.0)
    unique: dict[Config, Trial] = {}
    for trial in timed:
        unique.setdefault(trial.config, trial)
    return tuple(unique.values())[:count]


def _stopped_early(trial: Trial) -> bool:
    return trial.measurement is not None and trial.measurement.stopped_early
