"""`tune report`: write a session's report again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from csv import DictWriter
from io import StringIO
from pathlib import Path

import click

from tuner.cli.exits import writing
from tuner.process.files import atomic_write


@click.command("report")
@click.argument("session", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write it; report.html in the session by default.",
)
@click.option(
    "--csv",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write every trial to this file, one a row.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def command(session: Path, out: Path | None, csv: Path | None, as_json: bool) -> None:
    """Write the report of a session and print where it is."""
    from tuner.report.data import load
    from tuner.report.html import write_report
    from tuner.report.terminal import json_of

    data = load(session)
    path = out or session / "report.html"
    with writing(path, "report", "--out"):
        write_report(data, path)
    if csv is not None:
        from tuner.report.terminal import trial_rows

        with writing(csv, "table", "--csv"):
            atomic_write(csv, csv_of(trial_rows(data)))
    click.echo(json.dumps(json_of(data)) if as_json else str(path))


def csv_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows as CSV, with a column for every name that any of them has."""
    text = StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: plain_cell(cell) for name, cell in row.items()} for row in rows)
    return text.getvalue()


def plain_cell(value: object) -> object:
    """Quote a text that a spreadsheet would take for a formula."""
    is_formula = isinstance(value, str) and value.lstrip()[:1] in tuple("=+-@|")
    return f"'{value}" if is_formula else value
