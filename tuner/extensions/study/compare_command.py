"""`tune compare`: search methods against each other on recorded spaces."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.app.environment import program_name
from tuner.cli import options
from tuner.cli.exits import interrupt_on_sigterm, require_writable, stdout_kept_for_result, writing

# Imported where they are used: NumPy and the charts take a second of `tune compare --help`.
if TYPE_CHECKING:
    from tuner.extensions.study.comparison import SearcherComparison
    from tuner.extensions.study.recorded_spaces import RecordedSpace

PAGE = "compare.html"
FOLDER = Path("comparisons")
RECORDING = click.Path(exists=True, dir_okay=False, path_type=Path)


def searchers(text: str) -> tuple[str, ...]:
    """Read names separated by commas, each once."""
    return tuple(dict.fromkeys(options.searcher(name.strip()) for name in text.split(",")))


@click.command("compare")
@click.option(
    "--searchers",
    "names",
    metavar="A,B,...",
    type=searchers,
    default="auto,optuna,random",
    show_default=True,
    help="auto, exhaustive, random, optuna, kernel_tuner:<strategy>.",
)
@click.option(
    "--recording",
    "recordings",
    metavar="FILE",
    type=RECORDING,
    multiple=True,
    required=True,
    help="A recording of `tune record`, a Kernel Tuner cache or T4 results; repeatable.",
)
@options.count("--seeds", default=20, show_default=True)
@options.count(
    "--trials",
    help="Configs that a run tries; otherwise 100, or half of the smallest space of fewer.",
)
@options.count("--batch", default=1, show_default=True, help="Configs asked for at a time.")
@options.setting("workloads", help="Replay only this workload of a recording; repeatable.")
@click.option(
    "--space",
    type=options.FILE,
    help="Search space of a recording of `tune record`; by default found by its name.",
)
@options.count(
    "--jobs", default=1, show_default=True, help="Runs at a time; the scores do not depend on it."
)
@click.option(
    "--out",
    metavar="DIR",
    type=options.folder,
    help=f"Folder for {PAGE}; by default comparisons/RECORDING.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def command(
    names: tuple[str, ...],
    recordings: tuple[Path, ...],
    seeds: int,
    trials: int | None,
    batch: int,
    workloads: tuple[str, ...],
    space: Path | None,
    jobs: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Replay search methods over recordings and compare what they find.

    The score is the mean over the trials of (random - found) / (random - optimum): 0 is what random
    search expects, 1 the optimum from the first trial on. In the JSON object, share_50 and
    share_100 are the shares of the optimum after 50 % and 100 % of the trials.
    """
    from tuner.extensions.study.compare_page import render_comparison
    from tuner.extensions.study.comparison import compare
    from tuner.extensions.study.recorded_spaces import recording_name
    from tuner.report.pages import write_page

    recordings = tuple(dict.fromkeys(path.resolve() for path in recordings))
    more = f"-and-{len(recordings) - 1}-more" if len(recordings) > 1 else ""
    folder = out or FOLDER / (recording_name(recordings[0]) + more)
    require_writable(folder, "--out")

    def report_end(replayed: RecordedSpace, searcher: str) -> None:
        click.echo(f"{replayed.label}: {searcher}, {seeds} runs", err=True)

    with interrupt_on_sigterm(), stdout_kept_for_result(as_json):
        comparison = compare(
            recordings,
            searchers=names,
            seeds=seeds,
            trials=trials,
            batch=batch,
            workloads=workloads,
            space=space,
            jobs=jobs,
            reading=lambda path: click.echo(f"reading {path.name}", err=True),
            ended=report_end,
        )
        page = folder / PAGE
        with writing(page, "page", "--out"):
            words = shlex.join([program_name(), *sys.argv[1:]])
            write_page(render_comparison(comparison, words), page)
    if as_json:
        click.echo(json.dumps(json_of(comparison)))
        click.echo(str(page), err=True)
        return
    _print_table(comparison)
    click.echo(str(page))


def json_of(comparison: SearcherComparison) -> dict[str, dict[str, float]]:
    """Make the object that `--json` prints: the scores by searcher, means over the recordings."""
    return {
        name: {key: round(value, 6) for key, value in asdict(score).items()}
        for name, score in comparison.overall().items()
    }


def _print_table(comparison: SearcherComparison) -> None:
    from rich.table import Table

    from tuner.cli.console import Console
    from tuner.extensions.study.compare_page import rows_of
    from tuner.extensions.study.comparison import half

    trials = comparison.settings.trials
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("recording", no_wrap=True)
    table.add_column("searcher", no_wrap=True)
    for title in ("score", f"at {half(trials)}", f"at {trials}", "within 95 %", "s a run"):
        table.add_column(title, justify="right", no_wrap=True)
    for label, scores in rows_of(comparison):
        for position, (name, score) in enumerate(scores.items()):
            table.add_row(
                "" if position else label,
                name,
                f"{score.score:.3f}",
                f"{score.share_50:.3f}",
                f"{score.share_100:.3f}",
                f"{score.within_95:.0%}",
                f"{score.seconds_per_run:.2f}",
            )
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    console.print(table)
