"""How a run ends: its report is written, and what came of it stands on the screen."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.cli.exits import program_name
from tuner.errors import SessionError

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.report.data import ReportData

REPORT = "report.html"
# Of why there is no result: the report has the others.
REASONS = 5


def write_report(data: ReportData, folder: Path) -> None:
    """Write the report of a session; raise `SessionError` where that cannot be done."""
    from tuner.report import html

    try:
        html.write_report(data, folder / REPORT)
    except OSError as error:
        again = shlex.join([program_name(), "report", str(folder)])
        raise SessionError(
            f"the report cannot be written: {error.strerror or error}",
            path=folder / REPORT,
            remedy=f"the results are kept; once the cause is gone, write it with `{again}`",
        ) from error


def print_end(data: ReportData, folder: Path, console: Console, *, resumable: bool) -> None:
    """Print the results, what an agent tried, and where everything is."""
    from tuner.cli.rounds_told import round_lines
    from tuner.report.energy_section import energy_lines
    from tuner.report.peers_section import peers_lines, peers_on
    from tuner.report.search_section import early_end_lines
    from tuner.report.table import results_table
    from tuner.report.verdict import verdict
    from tuner.trial import Status

    peers = peers_on(data)
    if data.results:
        console.print(results_table(data.results, peers))
        console.print()
    missing = data.counts()[Status.MISSING]
    lines = [
        verdict(data).headline,
        f"{missing} trials had no answer in the recording" if missing else "",
        *(() if data.results else _why_none(data)),
        *early_end_lines(data),
        *round_lines(data),
        *energy_lines(data.energies, data.results, data.objective),
        *peers_lines(peers, recorded=data.recorded),
        f"session        {folder}",
        f"tuned kernels  {folder / 'tuned'}" if data.results else "",
        f"report         {folder / REPORT}",
        f"to go on       {shlex.join([program_name(), '--resume', str(folder)])}"
        if resumable
        else "",
    ]
    console.print("\n".join(line for line in lines if line), markup=False, soft_wrap=True)


def _why_none(data: ReportData) -> list[str]:
    """Count what became of the trials of a run without a result, the commonest first."""
    reasons = Counter(f"{t.status}: {t.reason}" for t in data.trials if t.reason)
    return [f"  {count} x {reason}" for reason, count in reasons.most_common(REASONS)]
