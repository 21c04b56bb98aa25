"""What came of a round, and of a run, in words for the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from tuner.errors import AgentError
from tuner.feedback.memory import memory_text
from tuner.history import history
from tuner.kernel import KernelSpec
from tuner.report.html import write_report
from tuner.report.loading import from_session
from tuner.report.table import json_of, results_table
from tuner.report.verdict import verdict
from tuner.session import Session
from tuner.trial import Result

REPORT = "report.html"
COLUMNS = 140


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: in words, and the results as `--json` prints them, None without any."""

    text: str
    data: Mapping[str, object] | None = None
    failed: bool = False


def recap(session: Session, number: int) -> str:
    """Tell what came of a round that is over, with all of the last problem where it failed."""
    found = [one for one in history(session) if one.number == number]
    if not found:
        return ""
    text = memory_text(found)
    if found[0].candidate is None and found[0].problems:
        text += f"\n\nThe last answer was refused for:\n{found[0].problems[-1]}"
    return text


def conclude(session: Session, spec: KernelSpec, failure: AgentError | None) -> Ending:
    """Write the report of a run that is over and word its results; `failure` ended its rounds."""
    data = from_session(session, spec)
    folder = session.directory
    lines = [verdict(data).headline, f"session: {folder}"]
    if data.results:
        lines += ["", _table(data.results), "", f"tuned kernels: {folder / 'tuned'}"]
    try:
        write_report(data, folder / REPORT)
        lines.append(f"report: {folder / REPORT}")
    except OSError as error:
        lines.append(f"the report cannot be written: {error.strerror}: {folder / REPORT}")
    if failure is not None:
        lines += ["", str(failure)]
    return Ending("\n".join(lines), json_of(data), failed=failure is not None)


def _table(results: Sequence[Result]) -> str:
    from rich.console import Console

    console = Console(file=StringIO(), width=COLUMNS, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(results_table(results))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
