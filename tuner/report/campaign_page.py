"""The index of a campaign: a row for each job, with the way to its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuner.model.progress import JobState
from tuner.model.statistics import geometric_mean
from tuner.report.pages import render_page, write_page

REPORT = "report.html"


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
