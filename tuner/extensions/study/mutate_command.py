"""`tune mutate`: how many ways of breaking a kernel its verification catches."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tuner.cli import options
from tuner.cli.exits import interrupt_on_sigterm, stdout_kept_for_result

if TYPE_CHECKING:
    from tuner.cli.console import Console
    from tuner.extensions.study.mutation.examine import MutantVerdict

PLAIN_EVERY_S = 5.0
BELOW = 1


def percent(text: str) -> float:
    """Read a number from 0 to 100; NaN is none."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 100.0:
        raise click.BadParameter(f"{text!r} is not a number from 0 to 100")
    return value


@click.command("mutate")
@click.argument("space", metavar="SPACE.yaml", type=click.Path(path_type=Path))
@click.option(
    "--config",
    metavar="default|NAME=VALUE,...",
    help="Mutate the template at this config, in place of the baseline; parameters not named come "
    "from the space's default.",
)
@options.setting("operators", help="The variant of the operator to mutate; repeatable.")
@options.count("--limit", help="Try only N mutants, spread evenly.")
@click.option(
    "--seed",
    metavar="N",
    type=options.seed,
    default="0",
    show_default=True,
    help="The seed of the sample.",
)
@click.option(
    "--equivalent",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file that marks mutants as equivalent; by default SPACE.mutants.yaml beside the space.",
)
@options.setting("session", help="Store the score in this session, whose report then shows it.")
@click.option(
    "--at-least",
    metavar="PERCENT",
    type=percent,
    help="Exit with code 1 where a smaller share is caught.",
)
@options.as_json
def command(
    space: Path,
    config: str | None,
    operators: tuple[tuple[str, str], ...],
    limit: int | None,
    seed: int,
    equivalent: Path | None,
    session: Path | None,
    at_least: float | None,
    as_json: bool,
) -> None:
    """Show how strong the check is: break the kernel of SPACE.yaml and see what is caught.

    Every mutant has one small change, and is verified on the `host` device; no GPU is needed.
    """
    from tuner.cli.console import Console
    from tuner.extensions.study.mutation.examine import as_object, as_text, mutate
    from tuner.report.mutation_score import share_text

    console = Console(stderr=as_json)
    pairs = () if config in (None, "default") else map(options.assignment, config.split(","))
    given = None if config is None else options.unique(tuple(pairs), "parameter")
    with interrupt_on_sigterm():
        with stdout_kept_for_result(as_json):
            report = mutate(
                space,
                config=given,
                operators=options.unique(operators, "operator"),
                limit=limit,
                seed=seed,
                equivalent=equivalent,
                session=session,
                progress=partial(_show_progress, console=console),
            )
        if as_json:
            click.echo(json.dumps(as_object(report)))
        else:
            for line in as_text(report):
                console.print(line, soft_wrap=True)
    if not report.complete:
        raise KeyboardInterrupt
    share = report.score.share
    if at_least is not None and (share is None or 100 * share < at_least):
        caught = f"{share_text(report.score)} of the mutants caught"
        click.echo(f"Error: {caught}, below the {at_least:g} % asked for", err=True)
        raise Exit(BELOW)


def _show_progress(
    verdicts: Iterable[MutantVerdict], count: int, console: Console
) -> Iterator[MutantVerdict]:
    """Pass verdicts on, showing how far they are: a bar on a terminal, else a line at times."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    if console.is_terminal and not console.is_dumb_terminal:
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield from progress.track(verdicts, total=count, description="mutants")
        return
    console.print(f"{count} mutants")
    printed_s = time.perf_counter()
    for number, verdict in enumerate(verdicts, start=1):
        yield verdict
        if time.perf_counter() - printed_s >= PLAIN_EVERY_S:
            printed_s = time.perf_counter()
            console.print(f"{number} of {count} mutants")
