"""`tune show`: print the results of a session whole."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("show")
@click.argument("session", type=click.Path(path_type=Path))
def command(session: Path) -> None:
    """Print every result of a session, with its config, and all that is said of them."""
    from tuner.cli.console import Console, fit_to_file
    from tuner.cli.ending import print_end
    from tuner.report.data import load

    console = Console()
    fit_to_file(console)
    print_end(load(session), session, console, whole=True)
