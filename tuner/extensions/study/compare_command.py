"""`tune compare`: search methods against each other on recorded spaces."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor
from pathlib import Path

import click
import numpy as np
from markupsafe import Markup

from tuner.app.environment import program_name
from tuner.cli import options
from tuner.cli.exits import interrupt_on_sigterm, require_writable, stdout_kept_for_result, writing
from tuner.extensions.study.comparison import (
    Floats,
    SearcherComparison,
    SearcherScore,
    SpaceResult,
    compare,
    half,
)
from tuner.extensions.study.recorded_spaces import RecordedSpace, recording_name
from tuner.report import charts
from tuner.report.pages import draw, render_page, write_page

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


# The style sheet has so many colors.
COLORS = 8
# More points than a chart is pixels wide would only make the file longer.
MOST_POINTS = 300


@dataclass(frozen=True, slots=True)
class Curve:
    """One method: the share of the optimum after each evaluation, one row per seed."""

    name: str
    shares: Floats


def search_curves(
    label: str, curves: Sequence[Curve], random_share: Floats, *, large: bool = False
) -> Markup:
    """Draw the median of each method with the band of its quartiles, and what random expects.

    The optimum is the line at 1.
    """
    width, height = (1000, 340) if large else (380, 230)
    trials = len(random_share)
    x = charts.Scale(1, max(trials, 2), 52, width - 12)
    # Frame all but the first tenth of the evaluations, where every method still guesses.
    start = len(random_share) // 10
    lowest = min(
        [float(random_share[start:].min())]
        + [float(np.quantile(curve.shares[:, start:], 0.25, axis=0).min()) for curve in curves]
    )
    y = charts.Scale(min(floor(lowest * 20) / 20, 0.95), 1.0, height - 34, 22)
    steps = sorted(set(np.linspace(0, trials - 1, min(trials, MOST_POINTS)).round().astype(int)))

    def places(shares: Floats) -> list[tuple[float, float]]:
        return [(x(step + 1), y(float(shares[step]))) for step in steps]

    low, median, high = (
        [np.quantile(curve.shares, q, axis=0) for curve in curves] for q in (0.25, 0.5, 0.75)
    )
    ends = [f"{curve.name} {middle[-1]:.3f}" for curve, middle in zip(curves, median, strict=True)]
    told = [
        f"{curve.name}: {middle[-1]:.3f} after {trials} trials"
        for curve, middle in zip(curves, median, strict=True)
    ]
    return draw(
        "curves",
        label=f"Share of the optimum for {label}: {', '.join(ends)}",
        width=width,
        height=height,
        large=large,
        x=x,
        y=y,
        x_ticks=charts.ticks(0, x.high, 5)[1:],
        y_ticks=charts.ticks(y.low, 1.0, 4),
        bands=[
            charts.path([*places(top), *reversed(places(bottom))])
            for top, bottom in zip(high, low, strict=True)
        ],
        expected=charts.path(places(random_share)),
        medians=[
            (charts.path(places(middle)), title) for middle, title in zip(median, told, strict=True)
        ],
        colors=COLORS,
    )


def render_comparison(comparison: SearcherComparison, command: str = "") -> str:
    """Make the page's HTML; every text from outside is escaped."""
    settings = comparison.settings
    return render_page(
        "compare.html.j2",
        ("style.css", "compare.css"),
        settings=settings,
        half=half(settings.trials),
        rows=rows_of(comparison),
        legend=[(name, index % COLORS) for index, name in enumerate(settings.searchers)],
        overview=_overview(comparison) if len(comparison.results) > 1 else None,
        charts=[
            (result.space.label, search_curves(result.space.label, *curves_of(result)))
            for result in comparison.results
        ],
        spaces=comparison.results,
        command=command,
    )


def rows_of(comparison: SearcherComparison) -> list[tuple[str, Mapping[str, SearcherScore]]]:
    """List the rows of the table: each recording, and the mean of several."""
    recordings = comparison.by_recording()
    names = {str(result.space.path): result.space.name for result in comparison.results}
    rows: list[tuple[str, Mapping[str, SearcherScore]]] = [
        (names[path], scores) for path, scores in recordings.items()
    ]
    return rows if len(rows) == 1 else [*rows, ("all", comparison.overall())]


def curves_of(result: SpaceResult) -> tuple[list[Curve], Floats]:
    """Return each method's curve on a space, and what random search expects there."""
    optimum_us = result.space.optimum_us
    curves = [Curve(method.searcher, optimum_us / method.found_us) for method in result.methods]
    return curves, optimum_us / result.random_us


def _overview(comparison: SearcherComparison) -> Markup:
    curves, expected = zip(*map(curves_of, comparison.results), strict=True)
    means = [
        Curve(of_all[0].name, np.mean([one.shares for one in of_all], axis=0))
        for of_all in zip(*curves, strict=True)
    ]
    label = f"{len(comparison.results)} spaces"
    return search_curves(label, means, np.mean(expected, axis=0), large=True)
