"""The jobs of a campaign as others see them: their states, and the index with a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tuner.model.progress import RunProgress
from tuner.model.statistics import geometric_mean
from tuner.report.pages import render_page, write_page

REPORT = "report.html"
JobStatus = Literal["waiting", "running", "finishing", "done", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What the session of a job holds: the measured speedup, None without a result on a GPU."""

    device: str
    workloads: int
    trials: int
    speedup: float | None


@dataclass(frozen=True, slots=True)
class JobState:
    """One job of a campaign: where it runs, how far it is, and what came of it.

    `seconds` are those of all its runs. `kept` says that an earlier campaign had done it. `message`
    says why it failed or stopped, `starts` how often this campaign has started it.
    """

    name: str
    kernel: str
    status: JobStatus
    seconds: float = 0.0
    place: str = ""
    kept: bool = False
    progress: RunProgress | None = None
    outcome: JobOutcome | None = None
    exit_code: int | None = None
    message: str = ""
    starts: int = 0


def write_campaign(states: Sequence[JobState], wall_s: float, path: Path) -> None:
    """Write the page to `path`; it links to `JOB/report.html` and `JOB.log` beside itself.

    Raises `OSError` where it cannot.
    """
    folder = path.parent
    reports = {state.name for state in states if (folder / state.name / REPORT).is_file()}
    logs = {state.name for state in states if (folder / f"{state.name}.log").is_file()}
    write_page(render_campaign(states, wall_s, folder.resolve().name, reports, logs), path)


def render_campaign(
    states: Sequence[JobState], wall_s: float, name: str, reports: set[str], logs: set[str]
) -> str:
    """Make the page's HTML; every text from outside is escaped."""
    outcomes = [state.outcome for state in states if state.outcome and state.status == "done"]
    speedups = [outcome.speedup for outcome in outcomes if outcome.speedup is not None]
    return render_page(
        "campaign.html.j2",
        ("style.css", "campaign.css"),
        name=name,
        states=states,
        measured=len(speedups),
        speedup=geometric_mean(speedups) if speedups else None,
        wall_s=wall_s,
        reports=reports,
        logs=logs,
        report_name=REPORT,
    )
