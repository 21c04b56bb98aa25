"""What a run looks like from outside while it runs: snapshots for the live view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Status

Phase = Literal[
    "baseline", "search", "agent", "candidate", "profile", "energy", "finals", "checks", "done"
]


@dataclass(frozen=True, slots=True)
class WorkloadProgress:
    """How far one workload is: trials by status, the best so far against the baseline."""

    workload: Workload
    budget: int
    baseline_us: float | None = None
    best_us: float | None = None
    best_config: Config | None = None
    counts: Mapping[Status, int] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    @property
    def speedup(self) -> float | None:
        """Baseline over best, by the search's own times: a hint, never a result."""
        if self.baseline_us is None or self.best_us is None:
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
