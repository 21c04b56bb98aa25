"""`tune report`: write a session's report again."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("report")
@click.argument("session", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write it; report.html in the session by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def command(session: Path, out: Path | None, as_json: bool) -> None:
    """Write the report of a session and print where it is."""
    from tuner.errors import InputError
    from tuner.report.html import write_report
    from tuner.report.loading import load
    from tuner.report.table import json_of

    data = load(session)
    path = out or session / "report.html"
    try:
        write_report(data, path)
    except OSError as error:
        raise InputError(
            f"the report cannot be written: {error.strerror}",
            path=path,
            remedy="choose another place with --out",
        ) from error
    click.echo(json.dumps(json_of(data)) if as_json else str(path))
