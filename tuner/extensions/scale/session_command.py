"""`tune session`: sessions that were copied to a PostgreSQL server."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli import options
from tuner.model.errors import SessionError

if TYPE_CHECKING:
    from tuner.extensions.scale.session_copies import SessionCopies

_COLUMNS = ("id", "kernel", "state", "records", "last heard of (UTC)", "in use", "written by")


@click.group("session")
def command() -> None:
    """List, fetch, send or delete copies of sessions on a PostgreSQL server.

    `tune KERNEL.cu --copy-session` keeps one there while it runs.
    """


@command.command("list")
@options.setting("store")
@options.as_json
def list_sessions(store: str | None, as_json: bool) -> None:
    """List the copies on the server, the most recently updated last."""
    copies = _copies(store)
    summaries = copies.summaries()
    if as_json:
        listed = [asdict(summary) | {"heard": summary.heard.isoformat()} for summary in summaries]
        click.echo(json.dumps({"store": str(copies.location), "sessions": listed}))
        return
    click.echo(f"store {copies.location}")
    if not summaries:
        click.echo("no session is there yet")
        return
    rows = [_COLUMNS]
    for summary in summaries:
        heard = summary.heard.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        in_use = "yes" if summary.in_use else "no"
        rows.append(
            (
                summary.id,
                summary.kernel,
                summary.state,
                str(summary.records),
                heard,
                in_use,
                summary.writer,
            )
        )
    # Others may write there: what is no text would command the terminal.
    plain = [[cell if cell.isprintable() else ascii(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
    for row in plain:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip())


@command.command("fetch")
@click.argument("name", metavar="ID")
@click.argument("folder", metavar="DIR", type=options.folder)
@options.setting("store")
def fetch(name: str, folder: Path, store: str | None) -> None:
    """Fetch the copy of session ID into a new folder DIR."""
    count = _copies(store).fetch(name, folder)
    click.echo(f"fetched: {count} record{'s' * (count != 1)} to {folder}")


@command.command("copy")
@click.argument("sessions", metavar="SESSION...", nargs=-1, required=True, type=options.folder)
@options.setting("store")
def copy(sessions: tuple[Path, ...], store: str | None) -> None:
    """Send new records of these sessions; a failure does not stop the others."""
    from tuner.extensions.scale.session_copies import copy_session

    server = _copies(store).location
    failures: list[SessionError] = []
    for folder in sessions:
        try:
            name = copy_session(folder, server)
        except SessionError as error:  # of this one; the others may be sent
            failures.append(error)
        else:
            click.echo(f"copied: {folder} as {name} to {server}")
    if len(failures) > 1:
        listed = "\n".join(map(str, failures))
        raise SessionError(f"{len(failures)} of {len(sessions)} were not copied:\n{listed}")
    if failures:
        raise failures[0]


@command.command("forget")
@click.argument("name", metavar="ID")
@options.setting("store")
def forget(name: str, store: str | None) -> None:
    """Delete the server's copy of session ID."""
    copies = _copies(store)
    copies.forget(name)
    click.echo(f"forgotten: {name} in {copies.location}")


def _copies(store: str | None) -> SessionCopies:
    from tuner.extensions.scale.session_copies import SessionCopies, require_server
    from tuner.session.database import find_store

    return SessionCopies(require_server(find_store(store, os.environ)))
