"""`tune timeline`: what of a profiled step can be tuned, and what that could give."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tuner.app.environment import program_name
from tuner.cli import options
from tuner.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tuner.extensions.engines.timeline.gains import Gain
    from tuner.extensions.engines.timeline.table import Row, TuneCommand
    from tuner.extensions.engines.timeline.trace import Trace
    from tuner.space.load import Definition

KERNELS = Path("kernels/sglang")
PAGE = "docs/timeline.md"
# Columns of a terminal from which on kernels' names are shown.
WIDE = 110


@dataclass(frozen=True, slots=True)
class Findings:
    """A timeline with its rows; `gbps` is None where the GPU's bandwidth is not known.

    `axes` are those of the operators whose search spaces were found, `unfound` the others.
    `predicted` and `measured` are of the step's time, `missing` the files that its engine lacks.
    """

    trace: Trace
    gpu: str
    gbps: float | None
    rows: tuple[Row, ...]
    commands: tuple[TuneCommand, ...]
    axes: Mapping[str, tuple[str, ...]]
    unfound: tuple[str, ...]
    shapes_given: bool
    predicted: Gain | None
    measured: float | None
    missing: tuple[str, ...]


@click.command("timeline")
@click.argument("trace", metavar="TRACE", type=options.FILE)
@click.option(
    "--shapes",
    metavar="FILE",
    type=options.FILE,
    help="A trace of the same step without CUDA graphs and with record_shapes: its kernels' shapes "
    "are taken for those of the same name and grid.",
)
@click.option(
    "--workload",
    "workloads",
    metavar="OPERATOR:T=64,...",
    multiple=True,
    help="The workload of an operator, where no trace has its shapes; repeatable.",
)
@click.option(
    "--gpu",
    metavar="NAME",
    help="The GPU whose bandwidth gives the floors, or a number of GB/s; by default the trace's.",
)
@click.option(
    "--sessions",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="A session, or a folder of some: what the best that they know of would give to the step; "
    "repeatable.",
)
@click.option(
    "--after",
    metavar="FILE",
    type=options.FILE,
    help="A trace of the same step with what was tuned: what it gave, beside what was predicted.",
)
@click.option(
    "--log",
    metavar="FILE",
    type=options.FILE,
    help="What the engine printed: the files of configs that it looked for and lacks.",
)
@options.count(
    "--top", default=100, help="Show the N largest rows, 100 by default, and the sum of the others."
)
@options.as_json
def command(
    trace: Path,
    shapes: Path | None,
    workloads: tuple[str, ...],
    gpu: str | None,
    sessions: tuple[Path, ...],
    after: Path | None,
    log: Path | None,
    top: int,
    as_json: bool,
) -> None:
    """Show each operator's share of a profiled step, and the most that tuning it can gain.

    TRACE is torch.profiler's JSON (.json, .json.gz) or what `nsys export --type sqlite` writes.
    """
    from tuner.cli.console import Console

    findings = examine(trace, shapes, workloads, gpu, sessions, after, log)
    if as_json:
        click.echo(json.dumps(as_object(findings)))
        return
    console = Console()
    for part in as_text(findings, top, wide=console.width >= WIDE):
        console.print(part, soft_wrap=isinstance(part, str))


def examine(
    path: Path,
    shapes: Path | None = None,
    workloads: tuple[str, ...] = (),
    gpu: str | None = None,
    sessions: tuple[Path, ...] = (),
    after: Path | None = None,
    log: Path | None = None,
) -> Findings:
    """Read a timeline and find its operators, with the search spaces that are found from here."""
    from tuner.extensions.engines.configs.files import missing_in
    from tuner.extensions.engines.timeline import gains
    from tuner.extensions.engines.timeline.operators import label_launches, rules, shapes_of
    from tuner.extensions.engines.timeline.read import read
    from tuner.extensions.engines.timeline.table import commands_of, rows_of, stated_workloads
    from tuner.process.files import read_text

    trace, table = read(path), rules()
    recorded = shapes_of(read(shapes), table) if shapes else {}
    if shapes and not recorded:
        raise InputError(
            "no shapes of any operator in it",
            path=shapes,
            remedy="profile with record_shapes=True and without CUDA graphs",
        )
    stated_names = {text.partition(":")[0] for text in workloads}
    launched = {table.label(launch).operator for launch in trace.launches}
    needed = table.operators & (launched | stated_names)
    spaces = find_spaces(needed)
    stated = stated_workloads(workloads, spaces)
    name, gbps = bandwidth(gpu, trace)

    def rows_in(one: Trace) -> tuple[Row, ...]:
        return rows_of(label_launches(one.launches, table, recorded, stated), spaces, gbps)

    rows, measured = rows_in(trace), None
    if sessions:
        bests = gains.known_bests(sessions, name, spaces)
        rows = tuple(replace(row, best=gains.best_for(row.label, bests, spaces)) for row in rows)
    if after is not None:
        then = read(after)
        later = rows_in(then)
        rows, measured = (
            gains.with_after(rows, later),
            gains.measured_gain(rows, trace, later, then),
        )
    return Findings(
        trace=trace,
        gpu=name,
        gbps=gbps,
        rows=rows,
        commands=commands_of(rows, spaces),
        axes={one: definition.spec.axes for one, definition in spaces.items()},
        unfound=tuple(sorted(needed - spaces.keys())),
        shapes_given=shapes is not None,
        predicted=gains.step_gain(rows, trace),
        measured=measured,
        missing=tuple(missing_in(read_text(log)).values()) if log else (),
    )


def find_spaces(operators: frozenset[str]) -> Mapping[str, Definition]:
    """Read the search spaces of operators, as `tune KERNEL.cu` finds them from here."""
    from tuner.app.locate import look_for_space
    from tuner.space.load import load_definition

    paths = {
        operator: look_for_space(KERNELS / f"{operator}.cu", Path.cwd())
        for operator in sorted(operators)
    }
    return {one: load_definition(path) for one, path in paths.items() if path is not None}


def bandwidth(gpu: str | None, trace: Trace) -> tuple[str, float | None]:
    """Name the GPU and its memory's peak (1e9 B/s); raise a usage error for an unknown one."""
    from tuner.device.recorded.known_gpus import GPUS, known_gpu

    device_info = known_gpu(gpu or trace.gpu)
    if device_info is not None:
        return gpu or trace.gpu, device_info.streaming_gbps
    if gpu is None:
        return trace.gpu, trace.memory_gbps
    try:
        gbps = float(gpu)
    except ValueError:
        gbps = 0.0
    if not 0.0 < gbps < 1e6:
        raise click.BadParameter(
            f"{gpu!r} is no known GPU and no number of GB/s; known are {', '.join(GPUS)}",
            param_hint="--gpu",
        )
    return trace.gpu, gbps


def as_object(findings: Findings) -> dict[str, object]:
    """Make the object that `--json` prints."""
    from tuner.extensions.engines.timeline.gains import predicted_gain

    trace = findings.trace
    return {
        "trace": str(trace.path),
        "gpu": findings.gpu or None,
        "gbps": findings.gbps,
        "kernel_us": trace.kernel_us,
        "span_us": trace.span_us,
        "busy_us": trace.busy_us,
        "idle_share": trace.idle_share,
        "cut": trace.cut,
        "predicted": findings.predicted and asdict(findings.predicted),
        "measured": findings.measured,
        "missing": list(findings.missing),
        "rows": [
            {
                "operator": row.label.operator or None,
                "kind": row.label.kind or None,
                "engine": row.label.engine or None,
                "choices": dict(row.label.choices),
                "workload": row.label.workload.values if row.label.workload else None,
                "calls": row.calls,
                "us": row.us,
                "share": row.share,
                "us_per_call": row.per_call_us,
                "floor_us": row.floor_us,
                "at_most": row.at_most,
                "best": row.best and asdict(row.best),
                "gain": (gain := predicted_gain(row)) and asdict(gain),
                "after_us": row.after_us,
                "gained": row.gained,
                "kernels": [
                    {"name": use.name, "grid": use.grid, "calls": use.calls, "us": use.us}
                    for use in row.kernels
                ],
            }
            for row in findings.rows
        ],
        "commands": [
            {"command": _line(command), "at_most": command.at_most} for command in findings.commands
        ],
    }


def as_text(findings: Findings, top: int, *, wide: bool) -> Iterator[RenderableType]:
    """Lay the findings out for a terminal; one that is not wide has no room for kernels' names.

    First what was profiled, then the rows, what is not known of them, and what to run.
    """
    from tuner.extensions.engines.timeline.table import without_shapes

    trace = findings.trace
    overlap = trace.kernel_us - trace.busy_us
    gpu = findings.gpu or "a GPU that the trace does not name"
    rate = (
        f"{findings.gbps:,.0f} GB/s" if findings.gbps else "bandwidth not known: name it with --gpu"
    )
    yield f"{gpu}, {rate}"
    yield (
        f"{trace.kernel_us:,.1f} us of kernels in {trace.span_us:,.1f} us, {trace.idle_share:.1%} "
        "of it idle; shares are of the kernels' time"
    )
    if trace.cut:
        yield f"{trace.cut:,} lasted until the next of its stream began: so long is counted of each"
    if overlap >= 0.1:
        yield f"{overlap:,.1f} us ran beside others: a share of those may cost the step less"
    yield ""
    yield _table_of(findings, top, wide=wide)
    if findings.predicted is not None:
        yield f"\nwith the best that is known the step takes {_write_gain(findings.predicted)} less"
    if findings.measured is not None:
        apart = "" if findings.predicted else "\n"
        yield f"{apart}afterwards it took {findings.measured:.1%} less"
    if findings.missing:
        yield "\nfiles of configs that the engine lacks (`tune fleet MODEL --log`):"
        yield from (f"  {name}" for name in findings.missing)
    lacking = dict.fromkeys(row.name for row in without_shapes(findings.rows))
    if lacking:
        yield f"\nshapes not known: {', '.join(lacking)}"
        if not findings.shapes_given:
            yield (
                "  CUDA graphs and nsys record none. Profile a step of the same batch without CUDA "
                f"graphs and with record_shapes, and name it with --shapes ({PAGE})"
            )
        yield "  what no PyTorch operator launches has none in any trace: state its workload with"
        for name in lacking:
            axes = ",".join(f"{axis}=..." for axis in findings.axes.get(name, ("AXIS",)))
            yield f"    --workload {name}:{axes}"
    if findings.unfound:
        yield (
            f"\nno search space found from here: {', '.join(findings.unfound)}\n"
            f"  floors and commands need {KERNELS} and its search spaces: run this in their tree"
        )
    if findings.commands:
        yield "\nmost to gain first:"
    for command in findings.commands:
        gain = "" if command.at_most is None else f"    # at most {command.at_most:.1%} of the step"
        yield f"  {_line(command)}{gain}"


def _table_of(findings: Findings, top: int, *, wide: bool) -> RenderableType:
    from rich.table import Table

    best, after = (
        any(getattr(row, name) is not None for row in findings.rows) for name in ("best", "gained")
    )
    left = {"best": best, "gain": best, "gained": after, "kernels": wide and not (best or after)}
    left |= dict.fromkeys(("floor us", "at most"), wide or not (best or after))
    cells = [_cells_of(row) for row in findings.rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = [name for name in cells[0] if left.get(name, True)]
    for name in columns:
        side: Literal["left", "right"] = "left" if name in _TEXTS else "right"
        table.add_column(name, justify=side, no_wrap=name != "operator", overflow="fold")
    for row in cells[:top]:
        table.add_row(*(row[name] for name in columns))
    if rest := findings.rows[top:]:
        calls, share = sum(row.calls for row in rest), sum(row.share for row in rest)
        table.add_row(f"{len(rest)} more rows", "", f"{calls:,}", f"{share:.1%}")
    table.add_row("all", "", "", f"{sum(row.share for row in findings.rows):.1%}")
    return table


_TEXTS = frozenset({"operator", "workload", "best", "kernels"})


def _cells_of(row: Row) -> dict[str, str]:
    """Write a row, by the names of its columns."""
    from tuner.extensions.engines.timeline.gains import predicted_gain
    from tuner.extensions.engines.timeline.table import short

    label, gain = row.label, predicted_gain(row)
    names = [*dict.fromkeys(short(use.name) for use in row.kernels)]
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    engine = f"{label.engine}: " if label.engine else ""
    chosen = "".join(f" {name}={value}" for name, value in label.choices)
    workload = "not known" if label.operator else ""
    return {
        "operator": f"{row.name}{chosen}",
        "workload": label.workload.key if label.workload else workload,
        "calls": f"{row.calls:,}",
        "share": f"{row.share:.1%}",
        "us a call": f"{row.per_call_us:.2f}",
        "floor us": "" if row.floor_us is None else f"{row.floor_us:.2f}",
        "at most": "" if row.at_most is None else f"{row.at_most:.1%}",
        "best": f"{row.best.speedup:.2f}x {row.best.name}" if row.best else "",
        "gain": "" if gain is None else _write_gain(gain),
        "gained": "" if row.gained is None else f"{row.gained:.1%}",
        "kernels": f"{engine}{names[0]}{others}",
    }


def _write_gain(gain: Gain) -> str:
    return f"{gain.share:.1%} ({gain.low:.1%} to {gain.high:.1%})"


def _line(command: TuneCommand) -> str:
    return shlex.join((program_name(), *command.words))
