"""What a campaign shows while it runs: one live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tuner.cli.console import Console, Live
from tuner.cli.view import duration
from tuner.model.progress import PHASES
from tuner.report import formatting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from tuner.extensions.scale.campaign.page import JobState, JobStatus

STYLES: Mapping[JobStatus, str] = {
    "running": "bold",
    "finishing": "bold",
    "waiting": "dim",
    "failed": "red",
    "stopped": "yellow",
}
# Besides the jobs' lines: the head, the summary, and one to wrap into.
FRAME_LINES = 3
# Shown first, where not all have room.
ORDER: tuple[JobStatus, ...] = ("running", "finishing", "failed", "stopped", "waiting", "done")
MOST_MESSAGE_CHARS = 160


class PlainCampaignView:
    """Print a line whenever a job begins, comes to another phase, is started again, or ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, tuple[str, ...]] = {}
        self._began_s = time.monotonic()

    def update(self, states: Sequence[JobState]) -> None:
        """Print what has changed."""
        for state in states:
            phase = state.progress.phase if state.progress and state.place else ""
            now = (state.status, phase, str(state.starts))
            before = self._told.setdefault(state.name, ("waiting", "", "0"))
            if now != before and not state.kept:
                self._told[state.name] = now
                seconds = time.monotonic() - self._began_s
                self._console.print(f"{seconds:6.1f} s  {line(state)}", soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


class LiveCampaignView:
    """Redraw one table a few times a second, from the latest states."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._states: Sequence[JobState] = ()
        self._began_s = time.monotonic()
        self._live = Live(console, self._render)

    def update(self, states: Sequence[JobState]) -> None:
        """Keep the states; the refreshing thread draws them."""
        self._states = states

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        rows = max(1, self._console.height - FRAME_LINES)
        return campaign_table(self._states, time.monotonic() - self._began_s, rows=rows)


def make_campaign_view(console: Console) -> LiveCampaignView | PlainCampaignView:
    """Choose the view that suits the console."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveCampaignView(console)
    return PlainCampaignView(console)


def campaign_table(states: Sequence[JobState], seconds: float, *, rows: int) -> RenderableType:
    """Draw at most `rows` jobs, those that run first, and a summary."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("job")
    table.add_column("on", no_wrap=True)
    table.add_column("phase", ratio=1)
    for name in ("trials", "best", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    by_urgency = sorted(range(len(states)), key=lambda i: (ORDER.index(states[i].status), i))
    for i in sorted(by_urgency[:rows]):
        job_state = states[i]
        took = duration(job_state.seconds) if job_state.seconds else ""
        style = STYLES.get(job_state.status)
        titled, doing = (
            Text(text, overflow="ellipsis", no_wrap=True)
            for text in (job_state.name, phase(job_state))
        )
        table.add_row(
            titled, job_state.place, doing, trials(job_state), speedup(job_state), took, style=style
        )
    done = sum(state.status == "done" for state in states)
    hidden = len(states) - rows
    more = f", {hidden} not shown" if hidden > 0 else ""
    summary = f"{done} of {len(states)} jobs done{more}, {duration(seconds)} elapsed"
    return Group(table, Text(summary))


def line(job_state: JobState) -> str:
    """Describe where a job stands in one line."""
    on = f"on {job_state.place}" if job_state.place else ""
    return ", ".join(part for part in (f"{job_state.name} {on}".strip(), phase(job_state)) if part)


def end_line(job_state: JobState) -> str:
    """Describe what came of a job in one line."""
    found = [f"{trials(job_state)} trials" if job_state.outcome else "", speedup(job_state)]
    return ", ".join(part for part in (f"{job_state.name}: {phase(job_state)}", *found) if part)


def phase(job_state: JobState) -> str:
    """Say what a job does, or why it does nothing."""
    if job_state.status == "running":
        said = PHASES[job_state.progress.phase] if job_state.progress else "starting"
    elif job_state.status == "done":
        said = "done before" if job_state.kept else f"done in {duration(job_state.seconds)}"
    else:
        said = job_state.status
    return f"{said}: {job_state.message[:MOST_MESSAGE_CHARS]}" if job_state.message else said


def trials(job_state: JobState) -> str:
    """Count the trials of a job, of how many where that is known."""
    if job_state.outcome is not None:
        return f"{job_state.outcome.trials:,}"
    if job_state.progress is None or not job_state.progress.budget:
        return ""
    return f"{job_state.progress.trials:,}/{job_state.progress.budget:,}"


def speedup(job_state: JobState) -> str:
    """Write the measured speedup, or what the search has found so far."""
    found = (
        job_state.outcome.speedup
        if job_state.outcome
        else job_state.progress.speedup
        if job_state.progress
        else None
    )
    return "" if found is None else formatting.ratio(found)
