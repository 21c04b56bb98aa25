"""Everything a report shows, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.model.energy import Objective
from tuner.model.kernel import Workload
from tuner.model.statistics import floor_us
from tuner.model.trial import (
    INITIAL,
    Check,
    Comparison,
    Energy,
    PeerTrial,
    Result,
    Status,
    Trial,
    Variant,
)

if TYPE_CHECKING:
    from tuner.mutation.examine import MutationScore
    from tuner.report.rounds import Author, Round, Tried
    from tuner.report.sections.dispatch import Dispatch
    from tuner.session.events import Profiled


@dataclass(frozen=True, slots=True)
class Declared:
    """What the search space says of the verification.

    `varying` names the outputs whose bits may differ between runs, `nonfinite` the inputs that
    NaN and infinity are put into.
    """

    edge_cases: tuple[Workload, ...] = ()
    varying: tuple[str, ...] = ()
    nonfinite: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """A search that ended before its budget: for want of time, or of anything left to find.

    `expected_gain` is the share of the best time that was still expected, None for want of time.
    """

    candidate: str
    workload: str
    trials: int
    expected_gain: float | None


@dataclass(frozen=True, slots=True)
class ReportData:
    """One run, ready to be shown.

    `records` pairs each trial of the search with the seconds into the run at which it ended, in
    that order; `finals` are the finalists' trials, with all checks.
    `measured_on` is the date of the measurements, empty where unknown. Mappings from workloads
    use `Workload.key`: `traffic_bytes` and `operations` are those of one operator call,
    `dynamic_shared_bytes` is keyed by candidate, workload and `Config.key`. `notes` say what had
    to be left out. `checks` are all of the session's, in order; `mutation` is what `tune mutate`
    left there, and `declared` None where the search space is not what it was. `author`,
    `candidates`, `rounds` and `profiles` say what an agent did. `energies` are windows of the GPU's
    energy counter, and `objective` is what the winners were chosen by. `early_ends` are searches
    that did not use their budget up. `dispatch` says which variant serves which shape, `peers`
    what became of each peer on each workload.
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
    dynamic_shared_bytes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
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
    mutation: MutationScore | None = None
    declared: Declared | None = None
    author: Author | None = None
    candidates: tuple[Tried, ...] = ()
    rounds: tuple[Round, ...] = ()
    profiles: tuple[Profiled, ...] = ()
    energies: tuple[Energy, ...] = ()
    objective: Objective = "time"
    early_ends: tuple[EarlyEnd, ...] = ()
    dispatch: Dispatch | None = None
    peers: tuple[PeerTrial, ...] = ()

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

    @property
    def searched(self) -> tuple[str, ...]:
        """Name the candidates that any trial is of, in the order in which they were first tried."""
        return tuple(dict.fromkeys(trial.candidate for trial in self.trials))

    @property
    def several(self) -> bool:
        """Whether configs of more than one candidate were tried."""
        return len(self.searched) > 1

    @property
    def named(self) -> bool:
        """Whether a result has to say whose config it is."""
        return any(result.candidate != INITIAL for result in self.results)

    def wins(self) -> dict[str, int]:
        """Count the workloads that each candidate serves, those of most workloads first."""
        served = Counter(r.candidate for r in self.results if not r.baseline_wins)
        return dict(served.most_common())

    def ranking(self) -> tuple[str, ...]:
        """Order the candidates: those that serve most workloads first, then the fastest."""
        known = {one.name: one.speedup or 0.0 for one in self.candidates}
        names = dict.fromkeys((*known, *self.searched))
        wins = self.wins()
        ranked = sorted(names, key=lambda name: (-wins.get(name, 0), -known.get(name, 0.0)))
        return tuple(ranked)

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
        """Sum static and dynamic shared memory per block; the static alone where no trial's
        dynamic is known.
        """
        key = trial.candidate, trial.workload.key, trial.config.key
        dynamic = self.dynamic_shared_bytes.get(key)
        if trial.resources is None or (dynamic is None and self.dynamic_shared_bytes):
            return dynamic
        return trial.resources.static_shared_bytes + (dynamic or 0)


def fastest(trials: tuple[Trial, ...], count: int | None = None) -> tuple[Trial, ...]:
    """Sort the fully timed correct trials by time, each variant once; keep the first `count`."""
    timed = [t for t in trials if t.time_us is not None and not _stopped_early(t)]
    timed.sort(key=lambda trial: trial.time_us or 0.0)
    unique: dict[Variant, Trial] = {}
    for trial in timed:
        unique.setdefault(trial.variant, trial)
    return tuple(unique.values())[:count]


def _stopped_early(trial: Trial) -> bool:
    return trial.measurement is not None and trial.measurement.stopped_early
