"""Where a run stands: each workload's progress, the time so far, and who is told of it."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from tuner.model.kernel import Workload
from tuner.model.progress import Listener, Phase, Progress, WorkloadProgress
from tuner.model.statistics import average_speedup
from tuner.model.trial import Trial
from tuner.process.files import read_text
from tuner.process.tally import list_seconds, starts, take_longest
from tuner.session.events import TimeSpent
from tuner.session.session import Session
from tuner.space.plan import Plan


@dataclass(frozen=True, slots=True)
class Moment:
    """When something began, which processes had been started by then, and what seconds went to."""

    seconds: float = field(default_factory=time.monotonic)
    starts: Counter[str] = field(default_factory=starts)
    spent: Mapping[str, float] = field(default_factory=list_seconds)


class ProgressTracker:
    """Count trials and seconds, and give the listener a snapshot of them."""

    def __init__(
        self,
        plan: Plan,
        session: Session,
        device_name: str,
        listener: Listener,
        *,
        began: Moment | None = None,
        reserved_s: float = 0.0,
    ) -> None:
        self._plan, self._session = plan, session
        self._device_name, self._listener = device_name, listener
        # What of the time is not for searches.
        self._reserved_s = reserved_s
        self._current: Workload | None = None
        self._slow: set[Workload] = set()
        # Of a search: how many devices have trials at a time.
        self.queues = 1
        self._started_s = self._saved_s = time.monotonic()
        self._before_s = session.seconds
        self._measured = 0
        self._progress = {
            workload: WorkloadProgress(workload, 0, comparable=not session.on_cpu)
            for workload in plan.tuned
        }
        self._searches_left = 1
        self._phase, self._phase_began = "opening", began or Moment()
        self._phases_s: defaultdict[str, float] = defaultdict(float)
        self._starts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._spent: defaultdict[str, defaultdict[str, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        self._device_s = self._compiler_s = 0.0

    def expect(self, budgets: Mapping[Workload, int], *, searches_left: int) -> None:
        """Add the most trials a workload; `searches_left`, with this one, share the time left."""
        self._searches_left = searches_left
        for workload, budget in budgets.items():
            self.expect_more(workload, budget)

    def expect_more(self, workload: Workload, trials: int) -> None:
        """Change the most trials that a workload may take; fewer where `trials` is negative."""
        progress = self._progress[workload]
        self._progress[workload] = replace(progress, budget=progress.budget + trials)

    def set_baseline(self, workload: Workload, baseline_us: float) -> None:
        """Note the baseline's time; held-out workloads have no progress to show."""
        if workload in self._progress:
            self._progress[workload] = replace(self._progress[workload], baseline_us=baseline_us)

    def count(self, trial: Trial, *, measured: bool) -> None:
        """Add a finished trial; one that was `measured` in this run counts for its rate."""
        self._add(trial)
        self._measured += measured
        self.announce("search", trial.workload)

    def _add(self, trial: Trial) -> None:
        progress = self._progress[trial.workload]
        counts = {**progress.counts, trial.status: progress.counts.get(trial.status, 0) + 1}
        progress = replace(progress, counts=counts)
        if trial.time_us is not None and trial.time_us < (progress.best_us or trial.time_us + 1):
            progress = replace(progress, best_us=trial.time_us, best_config=trial.config)
        self._progress[trial.workload] = progress

    def recount(self, candidate: str, *, without: Collection[Workload] = ()) -> None:
        """Count the trials of a candidate that an earlier run searched to its end."""
        for trial in self._session.trials(candidate):
            if trial.workload not in without:
                self.expect_more(trial.workload, 1)
                self._add(trial)

    def announce(
        self,
        phase: Phase,
        current: Workload | None = None,
        note: str = "",
        *,
        remaining_s: float | None = None,
    ) -> None:
        """Tell the listener where the run stands; `remaining_s` is a phase's that is no search."""
        note = note or self._slow_reference()
        self._current = current
        if phase != self._phase:
            self._enter(phase)
        seconds, left_s = time.monotonic() - self._started_s, self.left_s()
        rate = self._measured / seconds if seconds else 0.0
        if remaining_s is None and self._measured:
            remaining_s = sum(max(0, p.budget - p.done) for p in self._progress.values()) / rate
            if left_s is not None:
                remaining_s = min(remaining_s, max(0.0, left_s))
        progress = Progress(
            kernel=self._plan.spec.name,
            device=self._device_name,
            phase=phase,
            workloads=tuple(self._progress.values()),
            current=current,
            seconds=self._before_s + seconds,
            trials_per_second=rate,
            remaining_s=remaining_s,
            note=note,
        )
        self._listener.update(progress)

    def _slow_reference(self) -> str:
        """Say of the workload announced last, once, that its reference takes long."""
        took_s, workload = take_longest(REFERENCE), self._current
        if took_s < LONG_S or workload is None or workload in self._slow:
            return ""
        self._slow.add(workload)
        text = ""
        with suppress(OSError, ValueError):  # it has run, and may have been moved since
            text = re.sub(r"#.*", "", read_text(self._plan.spec.reference))
        quicker = (instead for slow, instead in _QUICKER.items() if re.search(slow, text))
        faster = "".join(f"; {instead} would be faster" for instead in islice(quicker, 1))
        return f"the reference takes {took_s:.0f} s on {workload}{faster}"

    def add_device_time(self, device_s: float, compiler_s: float) -> None:
        """Add what the queues of a search spent on the device and on waiting for the compiler."""
        self._device_s += device_s
        self._compiler_s += compiler_s

    def _enter(self, phase: str) -> None:
        now, before = Moment(), self._phase_began
        self._phases_s[self._phase] += now.seconds - before.seconds
        self._starts[self._phase] += now.starts - before.starts
        for what, seconds in now.spent.items():
            if more_s := seconds - before.spent.get(what, 0.0):
                self._spent[self._phase][what] += more_s
        self._phase, self._phase_began = phase, now

    def phases_s(self) -> dict[str, float]:
        """Tell the seconds of each phase since the run began or its time was saved."""
        self._enter(self._phase)
        return dict(self._phases_s)

    def left_s(self) -> float | None:
        """Say how much of the run's time is left; None where it has no end."""
        if self._plan.config.time_s is None:
            return None
        return self._plan.config.time_s - self._before_s - (time.monotonic() - self._started_s)

    def deadline_s(self, workload: Workload, searched: Sequence[Workload]) -> float | None:
        """Give each that is left of the workloads `searched` in turn an equal share of the time."""
        left_s = self.left_s()
        if left_s is None:
            return None
        waiting = len(searched) * self._searches_left - searched.index(workload)
        return time.monotonic() + max(0.0, left_s - self._reserved_s) / waiting

    def save_time(self) -> None:
        """Add the time since the last call to the session's, and say what it went to."""
        self._enter(self._phase)
        phases_s = {name: round(seconds, 3) for name, seconds in self._phases_s.items()}
        queues_s = round(self._device_s, 3), round(self._compiler_s, 3)
        started = {name: dict(counts) for name, counts in self._starts.items() if counts}
        inside_s = {
            name: {what: round(seconds, 3) for what, seconds in parts.items()}
            for name, parts in self._spent.items()
        }
        spent = TimeSpent(0, phases_s, self.queues, *queues_s, started, inside_s)
        self._session.record_event(spent)
        self._phases_s.clear()
        self._starts.clear()
        self._spent.clear()
        self._device_s = self._compiler_s = 0.0
        now_s = time.monotonic()
        self._session.add_time(now_s - self._saved_s)
        self._saved_s = now_s


def best_trials(session: Session, candidate: str) -> dict[Workload, Trial]:
    """Find the fastest correct trial of a candidate on every workload that has one."""
    best = {trial.workload: trial for trial in reversed(session.fastest(candidate))}
    tried = (one.workload for one in session.trials(candidate) if one.time_us is not None)
    return {workload: best[workload] for workload in tried if workload in best}


def best_us(session: Session, candidate: str) -> dict[str, float]:
    """Tell the time of each of `best_trials` by the workload's key."""
    best = best_trials(session, candidate)
    return {w.key: trial.time_us for w, trial in best.items() if trial.time_us is not None}


def mean_speedup(session: Session, candidate: str) -> float | None:
    """Average a candidate's speedups by the search's times, the baseline where it has none."""
    best = best_us(session, candidate)
    if not best:
        return None
    baselines, weights = session.baselines(), session.manifest.config.weights
    tuned = {w: b.measurement.median_us for w, b in baselines.items() if not w.held_out}
    before = [weights[w] * us for w, us in tuned.items() if weights]
    return average_speedup([us / best.get(w.key, us) for w, us in tuned.items()], before)


# What the verifier's process is asked for, as `tuner.process.tally` has it.
REFERENCE = "tune-verifier/compute_reference"
# Seconds from which on somebody waits for it.
LONG_S = 3.0
_QUICKER = {
    r"\badd\.at\(": "np.bincount instead of np.add.at",
    r"\b(?:maximum|minimum|logical_or)\.at\(": "a sort with .reduceat instead of .at",
    r"\bvectorize\(": "arithmetic on whole arrays instead of np.vectorize",
    r"\bapply_along_axis\(": "an axis= argument instead of np.apply_along_axis",
    r"\bfromfunction\(": "arithmetic on np.arange instead of np.fromfunction",
    r"\.accumulate\(": "a function that CuPy has, instead of .accumulate",
}
