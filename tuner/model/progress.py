"""What runs look like from outside while they run: snapshots for the live views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Status

Phase = Literal[
    "baseline",
    "search",
    "agent",
    "candidate",
    "profile",
    "energy",
    "finals",
    "checks",
    "mutants",
    "done",
]
PHASES: Mapping[Phase, str] = {
    "baseline": "measuring the baseline",
    "search": "searching",
    "agent": "with the agent",
    "candidate": "checking a new candidate",
    "profile": "profiling",
    "energy": "measuring the energy",
    "finals": "measuring the finalists against the baseline",
    "checks": "checking the winners",
    "mutants": "breaking the baseline, to see what verification catches",
    "done": "done",
}


@dataclass(frozen=True, slots=True)
class WorkloadProgress:
    """How far one workload is: trials by status, the best so far against the baseline.

    Times that say nothing of a GPU are not `comparable`.
    """

    workload: Workload
    budget: int
    baseline_us: float | None = None
    best_us: float | None = None
    best_config: Config | None = None
    counts: Mapping[Status, int] = field(default_factory=dict)
    comparable: bool = True

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    @property
    def speedup(self) -> float | None:
        """Baseline over best, by the search's own times: a hint, never a result."""
        if not self.comparable or self.baseline_us is None or self.best_us is None:
            return None
        return self.baseline_us / self.best_us


@dataclass(frozen=True, slots=True)
class Progress:
    """One snapshot of a run; `remaining_s` is None where nothing sensible can be said.

    `note` is a line to be shown once: what an agent is about to try, or what came of it.
    """

    kernel: str
    device: str
    phase: Phase
    workloads: tuple[WorkloadProgress, ...]
    current: Workload | None
    seconds: float
    trials_per_second: float
    remaining_s: float | None = None
    note: str = ""


class Listener(Protocol):
    """Receive snapshots: one after every trial and at every change of phase."""

    def update(self, progress: Progress) -> None:
        """Show or store the snapshot; must return quickly."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What a process tells of its run: `trials` of `budget` are done.

    `speedup` is the search's own over all workloads, never a result. `seconds` are the session's.
    """

    kernel: str
    device: str
    phase: Phase
    trials: int
    budget: int
    seconds: float
    speedup: float | None = None
    remaining_s: float | None = None
    workload: str | None = None
