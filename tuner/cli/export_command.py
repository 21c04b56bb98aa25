"""`tune export`: what other programs take away from a session."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export")
@click.argument("session", type=click.Path(path_type=Path))
@click.option(
    "--trajectories",
    metavar="FILE.jsonl",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every round to this file, as training data for TRL.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["sft", "grpo"]),
    default="sft",
    show_default=True,
    help="sft: prompt, completion and tools. grpo: the prompt that a template answers.",
)
def command(session: Path, trajectories: Path, form: str) -> None:
    """Write the rounds of a session as messages with a measured reward."""
    from tuner.export.trajectories import FORMATS, told, write_trajectories

    (chosen,) = (one for one in FORMATS if one == form)
    made = write_trajectories(session, trajectories, chosen)
    count = len(made.rows)
    click.echo(f"{trajectories} ({count} round{'s' * (count != 1)})")
    if made.left_out:
        click.echo(f"left out: {told(made.left_out)}", err=True)
