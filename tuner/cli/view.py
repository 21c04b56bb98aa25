"""What a run shows while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli.console import Console, Live, is_wide
from tuner.model.progress import PHASES, Listener, Phase, Progress, WorkloadProgress
from tuner.model.trial import Status
from tuner.process.tally import waits
from tuner.report import formatting

if TYPE_CHECKING:
    from tuner.model.kernel import Workload

# Before the first of them; a kernel without a search space is drafted then.
OPENING = "reading the kernel and opening the device"
# What a run waits for, by the last words of what `tuner.process.tally` calls it.
WAITS = {
    "prepare": "drawing inputs",
    "check_then_prepare": "comparing outputs, and drawing inputs",
    "touch": "drawing other inputs",
    "alternate": "drawing other inputs",
    "open_arena": "laying out memory",
    "compute_reference": "computing the reference",
    "check": "comparing outputs with the reference",
    "check_again": "comparing outputs of a second run",
    "compiling": "compiling",
    "runs": "running the kernel",
    "timing": "timing the kernel",
}
# Nothing goes on for longer without a word.
QUIET_S = 3.0
LOOK_S = 0.5
# Lines besides the workloads': title, head, summary, and two to wrap into.
FRAME_LINES = 5
# Of a workload's name in the live table, which has one line for it.
MOST_WORKLOAD_CHARS = 40
NARROW_CHARS = 64


class View:
    """A listener that is entered for the time of the run; this one shows nothing."""

    def update(self, progress: Progress) -> None:
        """Take the next snapshot."""

    def wait(self, progress: Progress | None, text: str) -> None:
        """Say what a run waits for since this snapshot, or before the first one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


def make_view(console: Console, *, quiet: bool) -> View:
    """Choose the view that suits the console; it also tells who started this process, if asked."""
    from tuner.app.progress_lines import progress_writer

    live = console.is_terminal and not console.is_dumb_terminal
    shown = View() if quiet else LiveView(console) if live else PlainView(console)
    writer = progress_writer()
    return shown if quiet and writer is None else WaitingView(shown, writer)


class WaitingView(View):
    """Show each snapshot, and say what is waited for where none comes for a while.

    Each is passed on to another `listener`, too. What is waited for is said again where it is
    something else by then, or has taken twice as long.
    """

    def __init__(self, shown: View, listener: Listener | None = None) -> None:
        self._shown, self._listener = shown, listener
        self._last: Progress | None = None
        self._since_s, self._said_s = time.monotonic(), 0.0
        self._said = ""
        self._lock, self._over = threading.Lock(), threading.Event()

    def update(self, progress: Progress) -> None:
        """Take the next snapshot."""
        with self._lock:
            self._last, self._since_s = progress, time.monotonic()
            self._said, self._said_s = "", 0.0
            self._shown.update(progress)
        if self._listener is not None:
            self._listener.update(progress)

    def __enter__(self) -> Self:
        self._shown.__enter__()
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        with self._lock:
            self._shown.__exit__(*exception)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            with self._lock:
                if self._over.is_set():
                    continue
                quiet_s = time.monotonic() - self._since_s
                text, seconds = waited_for(self._last)
                again_s = 2 * self._said_s if text == self._said else self._said_s + QUIET_S
                if quiet_s < max(again_s, QUIET_S):
                    continue
                self._said, self._said_s = text, quiet_s
                so_far = f", for {seconds:.0f} s" if seconds >= 1.0 else ""
                last = self._last
                progress = last and replace(last, seconds=last.seconds + quiet_s)
                self._shown.wait(progress, f"{text}{so_far}")


def waited_for(progress: Progress | None) -> tuple[str, float]:
    """Say what a run waits for now, and how many seconds it has done so."""
    phase = OPENING if progress is None else PHASES[progress.phase]
    text, seconds = next(((t, s) for t, s in _going_on() if t), (phase, 0.0))
    current = None if progress is None else progress.current
    return (text if current is None else f"{text}, {current}"), seconds


@contextmanager
def say_while(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Say what a command does for as long as it takes, where that is longer than `QUIET_S`."""
    over, began_s = threading.Event(), time.monotonic()

    def look() -> None:
        wait_s = QUIET_S
        while not over.wait(wait_s):
            seconds = time.monotonic() - began_s
            text, _ = next(((t, s) for t, s in _going_on() if t), ("", 0.0))
            say(f"{seconds:6.1f} s  {what}{f': {text}' if text else ''}")
            wait_s = seconds

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _going_on() -> list[tuple[str | None, float]]:
    return [(WAITS.get(what.rpartition("/")[2]), seconds) for what, seconds in waits(0.0)]


class LiveView(View):
    """Redraw one table a few times a second, from the latest snapshot."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._note = self._wait = ""
        # transient: the results table takes its place at the end
        self._live = Live(console, self._render)

    def update(self, progress: Progress) -> None:
        """Keep the snapshot and the last note; the refreshing thread draws them."""
        if self._progress is None:
            self._live.start()  # not before: something may be asked until then
        self._note = progress.note or self._note
        self._progress, self._wait = progress, ""

    def wait(self, progress: Progress | None, text: str) -> None:
        """Keep what is waited for, until the next snapshot; before the first there is no table."""
        if progress is None:
            self._console.print(text)
        else:
            self._progress, self._wait = progress, text

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        if self._progress is None:
            return Text("starting")
        shown = [line for line in (self._note, self._wait) if line]
        rows = max(1, self._console.height - FRAME_LINES - len(shown))
        lines = (Text(line, overflow="ellipsis", no_wrap=True) for line in shown)
        return Group(live_table(self._progress, rows=rows, width=self._console.width), *lines)


class PlainView(View):
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
        stepped = share_done(progress) - self._printed_share >= self.EVERY_SHARE
        due_s = self._printed_s + (self.AT_LEAST_S if stepped else self.EVERY_S)
        if progress.note:
            self._phase = progress.phase
            self._line(progress, progress.note)
        elif progress.phase != self._phase:
            self._phase = progress.phase
            self._line(progress, PHASES[progress.phase])
        elif progress.current is not None and progress.seconds >= due_s:
            phase = f"{PHASES[progress.phase]}, {progress.current}"
            searching = progress.phase == "search"
            status = search_status(progress, progress.current) if searching else phase
            self._line(progress, status)

    def wait(self, progress: Progress | None, text: str) -> None:
        """Print what is waited for."""
        if progress is None:
            self._console.print(f"          {text}", soft_wrap=is_wide(self._console))
        else:
            self._line(progress, text)

    def _line(self, progress: Progress, text: str) -> None:
        self._printed_s = progress.seconds
        self._printed_share = share_done(progress)
        self._console.print(f"{progress.seconds:6.1f} s  {text}", soft_wrap=is_wide(self._console))


def share_done(progress: Progress) -> float:
    """Return trials done over trials budgeted, over all workloads."""
    budget = sum(w.budget for w in progress.workloads)
    return sum(w.done for w in progress.workloads) / budget if budget else 0.0


def search_status(progress: Progress, workload: Workload) -> str:
    """Describe the search of one workload and what is left of the run in one line."""
    of_workload = next(w for w in progress.workloads if w.workload == workload)
    parts = [
        str(workload),
        f"{of_workload.done}/{of_workload.budget} trials ({counts(of_workload) or 'none yet'})",
    ]
    if of_workload.best_us is not None:
        parts.append(f"best {of_workload.best_us:.2f} us {speedup(of_workload)}".rstrip())
    return ", ".join((*parts, *pace(progress)))


def pace(progress: Progress) -> tuple[str, ...]:
    """Describe rate and time left of the search, as far as they are known."""
    if progress.phase != "search":
        return ()
    rate = ""
    if a_second := progress.trials_per_second:
        rate = f"{a_second:.1f} trials/s" if a_second >= 1 else f"{60 * a_second:.1f} trials/min"
    left = "" if progress.remaining_s is None else f"{duration(progress.remaining_s)} left"
    return tuple(part for part in (rate, left) if part)


def counts(workload: WorkloadProgress) -> str:
    """List trials by status, in the order of the statuses, those that occurred."""
    present = (status for status in Status if workload.counts.get(status))
    return ", ".join(f"{workload.counts[status]} {status}" for status in present)


def speedup(workload: WorkloadProgress) -> str:
    return "" if workload.speedup is None else f"{workload.speedup:.2f}x"


def duration(seconds: float) -> str:
    """Write a duration in whole seconds: `9 s`, `1 min 30 s`, `2 h 05 min`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else formatting.seconds(whole)


def live_table(progress: Progress, *, rows: int, width: int = 80) -> RenderableType:
    """Draw at most `rows` workloads, those around the current one, and the run's summary.

    In a narrow `width`, columns are left out rather than clipped.
    """
    table = Table(
        title=f"{progress.kernel} on {progress.device}",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    table.add_column("workload", no_wrap=True, max_width=MOST_WORKLOAD_CHARS)
    wide = width >= NARROW_CHARS
    for name in ("baseline us", "best us", "speedup", "trials") if wide else ("best us", "speedup"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("by status", ratio=1)
    listed = [workload_progress.workload for workload_progress in progress.workloads]
    shared = formatting.shared_axes(listed)
    current = listed.index(progress.current) if progress.current in listed else 0
    start = min(max(0, current - rows // 2), max(0, len(listed) - rows))
    shown = progress.workloads[start : start + rows]
    for workload in shown:
        baseline_us, best_us = (
            "" if us is None else f"{us:.2f}" for us in (workload.baseline_us, workload.best_us)
        )
        trials = f"{workload.done}/{workload.budget}" if workload.budget else ""
        cells = (best_us, speedup(workload))
        name = formatting.pairs(formatting.without(workload.workload.values, shared))
        table.add_row(
            f"{name}{' (held out)' if workload.workload.held_out else ''}",
            *((baseline_us, *cells, trials, counts(workload)) if wide else cells),
            style="bold" if workload.workload == progress.current else None,
        )
    hidden = len(progress.workloads) - len(shown)
    more = (f"{hidden} workloads not shown",) if hidden else ()
    summary = (PHASES[progress.phase], f"{share_done(progress):.0%} of the trials")
    elapsed = f"{duration(progress.seconds)} elapsed"
    return Group(table, Text(", ".join((*summary, *pace(progress), elapsed, *more))))
