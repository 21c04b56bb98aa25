"""`tune verify`: the winners of a session once more, later or on another machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tuner.cli import options
from tuner.cli.exits import stdout_kept_for_result
from tuner.report.serial import pick_each

if TYPE_CHECKING:
    from tuner.model.trial import Check, Result

FAILED = 3


@click.command("verify")
@click.argument("folder", metavar="SESSION", type=click.Path(path_type=Path))
@options.moved_space
@click.option(
    "--device",
    metavar="DEVICE",
    default="auto",
    show_default=True,
    help="cuda, cuda:N, host, or auto: a GPU if there is one, or the CPU.",
)
@options.setting("jobs", help="How many compilers run at a time.")
@options.trust
@options.as_json
def command(
    folder: Path, space: Path | None, device: str, jobs: int | None, trust: bool, as_json: bool
) -> None:
    """Repeat the whole verification of the winners in the folder SESSION.

    Every fill, twice for equal bits; the edge cases; the tools that watch every access, as
    far as this machine has them. The verdicts are added to the session. Exit code 3: one failed.
    """
    from tuner.app.verify import verify
    from tuner.session.session import Session

    with stdout_kept_for_result(as_json), Session.open(folder) as session:
        asker = options.asker(trust)
        checks = verify(session, space=space, device=device, jobs=jobs, may_run=asker)
        results = session.results()
    if as_json:
        click.echo(json.dumps(as_object(folder, checks)))
    else:
        _print(results, checks)
    if any(check.passed is False for check in checks):
        raise Exit(FAILED)


def as_object(folder: Path, checks: Sequence[Check]) -> dict[str, object]:
    """Make the object that `--json` prints."""
    return {
        "session": str(folder),
        "passed": not any(check.passed is False for check in checks),
        "checks": pick_each(checks, "kind workload config passed reason device"),
    }


def _print(results: Sequence[Result], checks: Sequence[Check]) -> None:
    from rich.table import Table

    from tuner.cli.console import Console

    console = Console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("check", "passed", "failed", "not run"):
        table.add_column(title, justify="left" if title == "check" else "right")
    for kind in dict.fromkeys(check.kind for check in checks):
        of_kind = [check.passed for check in checks if check.kind == kind]
        table.add_row(kind, *(str(of_kind.count(verdict)) for verdict in (True, False, None)))
    console.print(table)
    for check in checks:
        if check.passed is False:
            line = f"{check.kind} {check.workload} FAILED: {check.reason}"
            console.print(f"{line}\n  {check.variant}", soft_wrap=True)
    left_out = Counter(
        (check.kind, str(check.workload), check.reason) for check in checks if check.passed is None
    )
    for (kind, workload, reason), count in left_out.items():
        configs = "one config" if count == 1 else f"{count} configs"
        line = f"{kind} {workload}, {configs} not run: {reason}"
        console.print(line, soft_wrap=True)
    failed = {check.variant for check in checks if check.passed is False}
    out = [str(result.workload) for result in results if result.variant in failed]
    console.print(
        f"\nFAILED: what was tuned for {', '.join(out)} is not to be trusted"
        if out
        else f"\n{sum(check.passed is True for check in checks)} checks passed, none failed",
        soft_wrap=True,
    )
