"""Where a run stands: each workload's progress, the time so far, and who is told of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from tuner.kernel import Workload
from tuner.plan import Plan
from tuner.progress import Listener, Phase, Progress, WorkloadProgress
from tuner.session import Session
from tuner.trial import Trial


class Standing:
    """Count trials and seconds, and give the listener a snapshot of them.

    `budgets` is the most trials that each workload may take.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        device_name: str,
        listener: Listener,
        budgets: Mapping[Workload, int],
    ) -> None:
        self._plan, self._session = plan, session
        self._device_name, self._listener = device_name, listener
        self._started_s = self._saved_s = time.monotonic()
        self._before_s = session.seconds
        self._measured = 0
        self._progress = {w: WorkloadProgress(w, budget) for w, budget in budgets.items()}

    def of(self, workload: Workload) -> WorkloadProgress:
        """Return the progress of a tuned workload."""
        return self._progress[workload]

    def set_baseline(self, workload: Workload, baseline_us: float) -> None:
        """Note the baseline's time; held-out workloads have no progress to show."""
        if workload in self._progress:
            self._progress[workload] = replace(self._progress[workload], baseline_us=baseline_us)

    def count(self, trial: Trial, *, measured: bool) -> None:
        """Add a finished trial; one that was `measured` in this run counts for its rate."""
        progress = self._progress[trial.workload]
        counts = {**progress.counts, trial.status: progress.counts.get(trial.status, 0) + 1}
        progress = replace(progress, counts=counts)
        if trial.time_us is not None and trial.time_us < (progress.best_us or trial.time_us + 1):
            progress = replace(progress, best_us=trial.time_us, best_config=trial.config)
        self._progress[trial.workload] = progress
        self._measured += measured
        self.announce("search", trial.workload)

    def announce(self, phase: Phase, current: Workload | None) -> None:
        """Tell the listener where the run stands."""
        seconds = time.monotonic() - self._started_s
        rate = self._measured / seconds if seconds else 0.0
        left = sum(max(0, p.budget - p.done) for p in self._progress.values())
        remaining_s = left / rate if self._measured else None
        if remaining_s is not None and self._plan.time_s is not None:
            remaining_s = min(remaining_s, max(0.0, self._plan.time_s - seconds))
        self._listener.update(
            Progress(
                kernel=self._plan.spec.name,
                device=self._device_name,
                phase=phase,
                workloads=tuple(self._progress.values()),
                current=current,
                seconds=self._before_s + seconds,
                trials_per_second=rate,
                remaining_s=remaining_s,
            )
        )

    def deadline_s(self, workload: Workload) -> float | None:
        """Give each workload that is left an equal share of the time that is left."""
        if self._plan.time_s is None:
            return None
        now_s = time.monotonic()
        left_s = self._plan.time_s - self._before_s - (now_s - self._started_s)
        waiting = len(self._plan.tuned) - self._plan.tuned.index(workload)
        return now_s + max(0.0, left_s) / waiting

    def save_time(self) -> None:
        """Add the time since the last call to the session's."""
        now_s = time.monotonic()
        self._session.add_time(now_s - self._saved_s)
        self._saved_s = now_s
