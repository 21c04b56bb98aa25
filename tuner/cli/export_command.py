"""`tune export`: what other programs take away from a session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli import options

if TYPE_CHECKING:
    from tuner.export.dispatch import Exported


@click.command("export")
@click.argument("session", type=click.Path(path_type=Path))
@click.option(
    "--to",
    metavar="DIR",
    type=options.folder,
    help="Write the tuned variants with a C++ dispatch header and a JSON table to this folder.",
)
@options.variants_within
@options.max_variants
@options.moved_space
@click.option(
    "--kernel-tuner",
    metavar="DIR",
    type=options.folder,
    help="Write the trials as Kernel Tuner's cache files and T4 results to this folder.",
)
@click.option(
    "--trajectories",
    metavar="FILE.jsonl",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every round to this file, as training data for TRL.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["sft", "grpo"]),
    default="sft",
    show_default=True,
    help="Of --trajectories. sft: prompt, completion and tools. grpo: the prompt that a template "
    "answers.",
)
def command(
    session: Path,
    to: Path | None,
    variants_within: float | None,
    max_variants: int | None,
    space: Path | None,
    kernel_tuner: Path | None,
    trajectories: Path | None,
    form: str,
) -> None:
    """Write what other programs take away from a session."""
    # One line for each thing that can be written.
    if to is None and kernel_tuner is None and trajectories is None:
        raise click.UsageError("nothing to write; name --to, --kernel-tuner or --trajectories")
    options.require_one_choice(variants_within, max_variants)
    if to is None and (variants_within is not None or max_variants is not None):
        raise click.UsageError("--variants-within and --max-variants are for --to")
    if to is not None:
        _write_dispatch(session, to, variants_within, max_variants, space)
    if kernel_tuner is not None:
        _write_for_kernel_tuner(session, kernel_tuner)
    if trajectories is not None:
        _write_trajectories(session, trajectories, form)


def _write_dispatch(
    session: Path, to: Path, within: float | None, most: int | None, space: Path | None
) -> None:
    from tuner.dispatch.table import SetSelection
    from tuner.export.dispatch import export_dispatch
    from tuner.model.settings import VARIANTS_WITHIN

    asked = within is not None or most is not None
    choice = SetSelection(VARIANTS_WITHIN if within is None else within, most) if asked else None
    _tell(export_dispatch(session, to, choice, space))


def _tell(made: Exported) -> None:
    table = made.table
    count, served = len(table.kernels), sum(e.kernel is not None for e in table.entries)
    click.echo(
        f"{made.folder} ({count} variant{'s' * (count != 1)} for {served} of {len(table.entries)} "
        f"tuned workloads, {table.choice}; the baseline for the others)"
        if served < len(table.entries)
        else f"{made.folder} ({count} variant{'s' * (count != 1)} for {served} tuned workloads, "
        f"{table.choice})"
    )
    if not count:
        click.echo("no variant is proved faster anywhere: only the baseline is exported", err=True)
    for one in table.held_out:
        if one.refuted:
            click.echo(
                f"{one.workload}: the rule's variant is no faster there, production's serves",
                err=True,
            )
    if made.incomplete:
        click.echo(
            f"never compared, so served by the baseline: {', '.join(made.incomplete)}", err=True
        )


def _write_for_kernel_tuner(session: Path, folder: Path) -> None:
    from tuner.export.kernel_tuner_files import write_both

    for path in write_both(session, folder):
        click.echo(str(path))


def _write_trajectories(session: Path, path: Path, form: str) -> None:
    from tuner.export.training import FORMATS, told, write_trajectories

    (chosen,) = (one for one in FORMATS if one == form)
    made = write_trajectories(session, path, chosen)
    count = len(made.rows)
    click.echo(f"{path} ({count} round{'s' * (count != 1)})")
    if made.left_out:
        click.echo(f"left out: {told(made.left_out)}", err=True)
