"""`tune cut`: what of a problem PyTorch keeps, and a problem of its own for each other part."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.app.environment import program_name
from tuner.cli import options
from tuner.model.errors import InputError
from tuner.process.files import atomic_write_all, folders_made, read_text

if TYPE_CHECKING:
    from tuner.device.recorded.recording import RecordedDeviceInfo
    from tuner.extensions.draft.problems.cutting import Proposal

_GPU = "h200"


@click.command("cut")
@click.argument("problem", metavar="PROBLEM.py", type=options.FILE)
@click.option("--to", metavar="DIR", type=options.folder, help="Write the parts to this folder.")
@click.option(
    "--keep",
    metavar="KIND,...",
    help="What stays in PyTorch: conv, matmul, attention, rnn and fft by default; also operators, "
    "such as conv2d, and single nodes, such as conv2d_1.",
)
@click.option(
    "--part",
    "parts",
    metavar="NAME=NODE,...",
    multiple=True,
    type=options.assignment,
    help="Make one part of these nodes; repeatable. What is in none is cut as proposed.",
)
@click.option(
    "--gpu", metavar="NAME", help="The GPU whose data sheet gives the floors; this one, or an H200."
)
@click.option("--force", is_flag=True, help="Overwrite files of another cut.")
@options.as_json
def command(
    problem: Path,
    to: Path | None,
    keep: str | None,
    parts: tuple[tuple[str, str], ...],
    gpu: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Cut a KernelBench problem into what PyTorch keeps and problems for the rest.

    Each line has what a part moves and computes, the least time for it, and the least where each
    operator is a launch of its own. --to writes each part as a problem that can be tuned alone,
    and cut.py, the model of all: `tune export --format kernelbench` puts tuned parts into it.
    """
    from tuner.device.problems import is_problem
    from tuner.extensions.draft.problems.cutting import LIMIT_S, Proposal, propose
    from tuner.extensions.draft.problems.statement import read_apart

    if not is_problem(problem):
        raise InputError(
            "is no KernelBench problem", path=problem, remedy="it defines Model and get_inputs"
        )
    given = {name: _split(nodes) for name, nodes in options.unique(parts, "--part").items()}
    asked = (_find_gpu(gpu), None if keep is None else _split(keep), given)
    proposal = read_apart(propose, problem, LIMIT_S, *asked)
    assert isinstance(proposal, Proposal)
    written = [] if to is None else _write(proposal, to, force)
    if as_json:
        told = {**asdict(proposal), "files": sorted(proposal.files), "written": written}
        click.echo(json.dumps(told))
        return
    click.echo("\n".join(as_text(proposal)))
    for path in written:
        click.echo(f"wrote {path}")
    if to is not None:
        first = next(step.name for step in proposal.steps if step.is_part)
        click.echo(f"then: {program_name()} {shlex.quote(str(to / f'{first}.py'))} --model NAME")


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _find_gpu(name: str | None) -> RecordedDeviceInfo:
    from tuner.cli.devices_command import list_gpus
    from tuner.device.recorded.known_gpus import GPUS, known_gpu

    here = next(list_gpus(), None) if name is None else None
    device_info = known_gpu(name or (here.name if here else _GPU)) or (GPUS[_GPU] if here else None)
    if device_info is None:
        raise click.BadParameter(
            f"{name!r} is no known GPU; known are {', '.join(GPUS)}", param_hint="--gpu"
        )
    return device_info


def _write(proposal: Proposal, to: Path, force: bool) -> list[str]:
    files = {to / name: text for name, text in proposal.files.items()}
    for path, text in files.items():
        if path.exists() and not force and read_text(path) != text:
            raise InputError("is there already", path=path, remedy="--force overwrites it")
    with folders_made(files):
        atomic_write_all(files)
    return [*map(str, files)]


def as_text(proposal: Proposal) -> list[str]:
    """Write a proposal for a terminal: a line a step, the sums, what was compared."""
    rows: list[tuple[str, ...]] = [("", "", "moves", "GFLOP", "floor us", "one by one", "nodes")]
    for step in proposal.steps:
        where = "kernel" if step.is_part else "PyTorch"
        if step.problem not in ("", step.name):
            where = f"as {step.problem}"
        moved, gflop = f"{step.worth.moved_bytes / 1e6:,.1f} MB", f"{step.worth.flops / 1e9:,.1f}"
        times = (f"{us:,.1f}" for us in (step.worth.floor_us, step.worth.one_by_one_us))
        rows.append((step.name, where, moved, gflop, *times, ", ".join(step.nodes)))
    widths = [max(len(row[place]) for row in rows) for place in range(6)]
    lines, steps = [], proposal.steps
    for *cells, nodes in rows:
        columns = zip(cells, "<<>>>>", widths, strict=True)
        aligned = (f"{cell:{side}{width}}" for cell, side, width in columns)
        lines.append("  ".join([*aligned, nodes]).rstrip())
    kept = sum(one.worth.floor_us for one in steps if not one.is_part)
    parts = sum(one.worth.floor_us for one in steps if one.is_part)
    apart = sum(one.worth.one_by_one_us for one in steps)
    digits = 0 if kept + parts >= 10 else 1
    lines.append(
        f"at least {kept + parts:,.{digits}f} us ({proposal.gpu.upper()}), "
        f"{parts:,.{digits}f} of them in "
        f"kernels; one by one {apart:,.{digits}f} us: {apart / (kept + parts):.2f}x"
    )
    for adder in dict.fromkeys(proposal.biases.values()):
        own = "the library's call" if adder == "PyTorch" else adder
        nodes = ", ".join(node for node, where in proposal.biases.items() if where == adder)
        lines.append(f"the bias of {nodes} is added by {own}")
    lines.append(
        f"the cut gives what the problem gives: {proposal.compared}"
        if proposal.compared
        else "not compared with the problem: too large for this CPU at any size it takes"
    )
    return lines
