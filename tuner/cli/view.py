"""What a run shows while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tuner.report import wording
from tuner.trial import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console, RenderableType

    from tuner.kernel import Workload
    from tuner.progress import Phase, Progress, WorkloadProgress

PHASES: Mapping[Phase, str] = {
    "baseline": "measuring the baseline",
    "search": "searching",
    "agent": "with the agent",
    "candidate": "checking a new candidate",
    "profile": "profiling",
    "energy": "measuring the energy",
    "finals": "measuring the finalists against the baseline",
    "checks": "checking the winners",
    "done": "done",
}
# Lines besides the workloads': title, head, summary, and two to wrap into.
FRAME_LINES = 5


class View(Protocol):
    """A listener that is entered for the time of the run."""

    def update(self, progress: Progress) -> None:
        """Take the next snapshot."""
        ...

    def __enter__(self) -> View:
        """Start showing."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Stop showing."""
        ...


def make_view(console: Console, *, quiet: bool) -> View:
    """Choose the view that suits the console."""
    if quiet:
        return QuietView()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console)
    return PlainView(console)


class QuietView:
    """Show nothing while the run lasts."""

    def update(self, progress: Progress) -> None:
        """Ignore the snapshot."""

    def __enter__(self) -> QuietView:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


class LiveView:
    """Redraw one table a few times a second, from the latest snapshot."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._note = ""
        # transient: the results table takes its place at the end
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )

    def update(self, progress: Progress) -> None:
        """Keep the snapshot and the last note; the refreshing thread draws them."""
        self._note = progress.note or self._note
        self._progress = progress

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        if self._progress is None:
            return Text("starting")
        rows = max(1, self._console.height - FRAME_LINES - bool(self._note))
        table = live_table(self._progress, rows=rows)
        return (
            Group(table, Text(self._note, overflow="ellipsis", no_wrap=True))
            if self._note
            else table
        )


class PlainView:
    """Print a line at every change of phase, after every workload, and otherwise now and then."""

    EVERY_S = 5.0
    EVERY_SHARE = 0.1
    # Below this, steps of a tenth would print faster than anyone reads.
    AT_LEAST_S = 1.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase: Phase | None = None
        self._searching: Workload | None = None
        self._printed_s = 0.0
        self._printed_share = 0.0

    def update(self, progress: Progress) -> None:
        """Print a line if one is due, by the clock of the run itself."""
        searched, moved = self._searching, progress.current != self._searching
        self._searching = progress.current if progress.phase == "search" else None
        if searched is not None and (moved or progress.phase != "search"):
            self._line(progress, search_status(progress, searched))
        if progress.note:
            self._phase = progress.phase
            self._line(progress, progress.note)
        elif progress.phase != self._phase:
            self._phase = progress.phase
            self._line(progress, PHASES[progress.phase])
        elif progress.current is not None and self._due(progress):
            self._line(progress, plain_status(progress))

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def _due(self, progress: Progress) -> bool:
        elapsed_s = progress.seconds - self._printed_s
        if elapsed_s >= self.EVERY_S:
            return True
        stepped = share_done(progress) - self._printed_share >= self.EVERY_SHARE
        return elapsed_s >= self.AT_LEAST_S and stepped

    def _line(self, progress: Progress, text: str) -> None:
        self._printed_s = progress.seconds
        self._printed_share = share_done(progress)
        self._console.print(
            f"{progress.seconds:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )


def share_done(progress: Progress) -> float:
    """Return trials done over trials budgeted, over all workloads."""
    budget = sum(w.budget for w in progress.workloads)
    return sum(w.done for w in progress.workloads) / budget if budget else 0.0


def plain_status(progress: Progress) -> str:
    """Describe where the run stands and what is left of it in one line."""
    if progress.phase == "search" and progress.current is not None:
        return search_status(progress, progress.current)
    return f"{PHASES[progress.phase]}, {progress.current}"


def search_status(progress: Progress, workload: Workload) -> str:
    """Describe the search of one workload and what is left of the run in one line."""
    found = next(w for w in progress.workloads if w.workload == workload)
    parts = [str(workload), f"{found.done}/{found.budget} trials ({counts(found) or 'none yet'})"]
    if found.best_us is not None:
        parts.append(f"best {found.best_us:.2f} us {speedup(found)}".rstrip())
    return ", ".join((*parts, *pace(progress)))


def pace(progress: Progress) -> tuple[str, ...]:
    """Describe rate and time left of the search, as far as they are known."""
    if progress.phase != "search":
        return ()
    rate = f"{progress.trials_per_second:.1f} trials/s" if progress.trials_per_second else ""
    left = "" if progress.remaining_s is None else f"{duration(progress.remaining_s)} left"
    return tuple(part for part in (rate, left) if part)


def counts(workload: WorkloadProgress) -> str:
    """List trials by status, in the order of the statuses, those that occurred."""
    present = ((status, workload.counts.get(status, 0)) for status in Status)
    return ", ".join(f"{number} {status}" for status, number in present if number)


def speedup(workload: WorkloadProgress) -> str:
    """Write the speedup by the search's own times, or nothing."""
    return "" if workload.speedup is None else f"{workload.speedup:.2f}x"


def duration(seconds: float) -> str:
    """Write a duration in whole seconds: `9 s`, `1 min 30 s`, `2 h 05 min`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else wording.seconds(whole)


def live_table(progress: Progress, *, rows: int) -> RenderableType:
    """Draw at most `rows` workloads, those around the current one, and the run's summary."""
    table = Table(
        title=f"{progress.kernel} on {progress.device}",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    table.add_column("workload", no_wrap=True)
    for name in ("baseline us", "best us", "speedup", "trials"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by status", ratio=1)
    shown = _window(progress, rows)
    for workload in shown:
        table.add_row(*_cells(workload), style="bold" if _is_current(workload, progress) else None)
    hidden = len(progress.workloads) - len(shown)
    more = (f"{hidden} workloads not shown",) if hidden else ()
    summary = (PHASES[progress.phase], f"{share_done(progress):.0%} of the trials")
    elapsed = f"{duration(progress.seconds)} elapsed"
    return Group(table, Text(", ".join((*summary, *pace(progress), elapsed, *more))))


def _cells(workload: WorkloadProgress) -> tuple[str, ...]:
    held_out = " (held out)" if workload.workload.held_out else ""
    return (
        f"{workload.workload}{held_out}",
        _microseconds(workload.baseline_us),
        _microseconds(workload.best_us),
        speedup(workload),
        f"{workload.done}/{workload.budget}" if workload.budget else "",
        counts(workload),
    )


def _window(progress: Progress, rows: int) -> tuple[WorkloadProgress, ...]:
    current = next((i for i, w in enumerate(progress.workloads) if _is_current(w, progress)), 0)
    last_start = max(0, len(progress.workloads) - rows)
    start = min(max(0, current - rows // 2), last_start)
    return progress.workloads[start : start + rows]


def _is_current(workload: WorkloadProgress, progress: Progress) -> bool:
    return progress.current is not None and workload.workload == progress.current


def _microseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
