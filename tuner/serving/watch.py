"""What a client is told of a run while it works."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuner.agent.seat import Seat
from tuner.progress import Listener, Phase, Progress, WorkloadProgress
from tuner.report import wording

PHASES: Mapping[Phase, str] = {
    "baseline": "the baseline is measured",
    "search": "a candidate is searched",
    "agent": "a round is prepared",
    "candidate": "what was submitted is checked",
    "profile": "the best configs are profiled",
    "finals": "the rounds are over and the finalists are measured against the baseline",
    "checks": "the rounds are over and the winners are checked",
    "done": "the run is over",
}
LAST: tuple[Phase, ...] = ("finals", "checks", "done")


class Watch:
    """Keep the last snapshot of a run and all its notes, and stop it where its seat says so.

    `view` is told as well. `session` is the run's folder once there is one.
    """

    def __init__(self, seat: Seat, view: Listener) -> None:
        self._seat, self._view = seat, view
        self._progress: Progress | None = None
        self.notes: list[str] = []
        self.session: Path | None = None

    def update(self, progress: Progress) -> None:
        """Take a snapshot; raise `KeyboardInterrupt` where the run is to stop."""
        self._progress = progress
        if progress.note:
            self.notes.append(progress.note)
        self._view.update(progress)
        if self._seat.stopping:
            raise KeyboardInterrupt

    @property
    def deciding(self) -> bool:
        """Whether the rounds are over."""
        return self._progress is not None and self._progress.phase in LAST

    def line(self) -> str:
        """Say in one line what is being done."""
        progress = self._progress
        if progress is None:
            return "files are read and the device is opened"
        text = PHASES[progress.phase]
        if progress.current is not None:
            text += f" on {progress.current}"
        if progress.phase == "search":
            done = sum(one.done for one in progress.workloads)
            text += f", {done} of {sum(one.budget for one in progress.workloads)} trials"
        return text

    def text(self) -> str:
        """Say where the run stands, and what has come of it so far."""
        progress = self._progress
        lines = [f"session: {self.session}"] if self.session else []
        if progress is not None:
            lines.append(f"{progress.kernel} on {progress.device}, {progress.seconds:.0f} s so far")
            lines += [_workload(one) for one in progress.workloads]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)])


def _workload(progress: WorkloadProgress) -> str:
    name = str(progress.workload)
    if progress.baseline_us is None:
        return f"{name}: not measured yet"
    text = f"{name}: baseline {wording.microseconds(progress.baseline_us)} us"
    if progress.best_us is not None and progress.speedup is not None:
        best, ratio = wording.microseconds(progress.best_us), wording.ratio(progress.speedup)
        text += f", best of the search {best} us ({ratio})"
    counts = ", ".join(f"{count} {status}" for status, count in progress.counts.items())
    return f"{text}; {progress.done} of {progress.budget} trials{f': {counts}' if counts else ''}"
