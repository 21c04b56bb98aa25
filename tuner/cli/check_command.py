"""`tune check`: what is wrong with a search space, or that nothing is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tuner.cli import options
from tuner.cli.exits import NOT_SHOWN, stdout_kept_for_result
from tuner.model.trial import Status, Trial
from tuner.report.serial import pick

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tuner.app.check import SpaceCheck


@click.command("check")
@click.argument("space", metavar="SPACE.yaml", type=click.Path(path_type=Path))
@click.option(
    "--target", help="Architecture to compile for; sm_90a by default, gfx942 for a kernel in HIP."
)
@options.count(
    "--sample",
    default=8,
    show_default=True,
    help="Configs to compile, spread evenly over the valid ones; the default config is added.",
)
@click.option("--no-run", is_flag=True, help="Don't run the baseline on the CPU.")
@options.setting("operators", help="The variant of the operator to compile; repeatable.")
@options.as_json
def command(
    space: Path,
    target: str | None,
    sample: int,
    no_run: bool,
    operators: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Check SPACE.yaml, its template, its kernel and its reference; no GPU is needed.

    The baseline runs on the CPU, which shows what it reads and writes of each argument.

    Any mistake is one message and exit code 2. Where the reference could not be compared with the
    baseline, the last line says why, and the exit code is 5. Configs that break a limit are
    counted, not mistakes: a search rejects them the same way.
    """
    from tuner.app.check import check
    from tuner.cli.console import Console
    from tuner.cli.view import say_while

    chosen = options.unique(operators, "operator")
    with stdout_kept_for_result(as_json), say_while(f"checking {space}", options.say):
        space_check = check(space, target=target, sample=sample, operators=chosen, run=not no_run)
    if as_json:
        click.echo(json.dumps(as_object(space_check)))
    else:
        console = Console()
        for part in as_text(space_check):
            console.print(part, soft_wrap=isinstance(part, str))
    if space_check.not_shown and not no_run:
        raise Exit(NOT_SHOWN)


def as_object(space_check: SpaceCheck) -> dict[str, object]:
    """Make the object that `--json` prints."""
    rows = space_check.spec.rows
    own = "kernel=spec.name space=spec.path target=target.architecture compiler combinations"
    findings = [(proof, finding) for proof in space_check.proofs for finding in proof.findings]
    return {
        **pick(space_check, own),
        "workloads": [
            {
                **pick(workload, "workload=values held_out", valid=valid),
                "searched": space_check.searched[workload],
                **({"valid_is_estimate": True} if workload in space_check.estimated else {}),
            }
            for workload, valid in space_check.valid.items()
        ],
        **({"rows": {"axis": rows.axis, "outputs": [*rows.outputs]}} if rows else {}),
        "arguments": [
            {"workload": str(proof.workload), **pick(finding, "argument shown=text")}
            for proof, finding in findings
        ],
        "compared": [
            {"workload": str(proof.workload), **pick(proof, "kinds=compared")}
            for proof in space_check.proofs
            if proof.compared
        ],
        "not_shown": [proof.open_because for proof in space_check.proofs if proof.open_because]
        or [space_check.not_shown] * bool(space_check.not_shown),
        "sample": [_describe_trial(trial) for trial in space_check.sample],
        "rejected": dict(space_check.rejected),
    }


def as_text(space_check: SpaceCheck) -> Iterator[RenderableType]:
    """Lay the findings out for a terminal."""
    from rich.table import Table

    target = space_check.target
    yield f"{space_check.spec.name}: {space_check.combinations:,} combinations"
    valid = Table("workload", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    valid.add_column("valid configs", justify="right")
    pruned = space_check.searched != space_check.valid
    if pruned:
        valid.add_column("prune leaves", justify="right")
    for workload, count in space_check.valid.items():
        held_out = " (held out)" if workload.held_out else ""
        about = "about " if workload in space_check.estimated else ""
        left = [f"{about}{space_check.searched[workload]:,}"] if pruned else []
        valid.add_row(f"{workload}{held_out}", f"{about}{count:,}", *left)
    yield valid
    if rows := space_check.spec.rows:
        asked = replace(space_check.spec, invariant=rows)
        problems = len({asked.problem_of(one) for one in space_check.valid})
        kept = "every run keeps" if space_check.spec.invariant else "--invariant keeps"
        by = f", decided by {', '.join(rows.by)}" if rows.by else ""
        yield (
            f"\n{rows.axis} counts rows of {', '.join(rows.outputs)}, whose bits {kept} in every "
            f"batch{by}: {len(space_check.valid)} workloads are sizes of {problems} problems"
        )
    for proof in space_check.proofs:
        if proof.findings or proof.compared:
            smaller = ", smaller sizes than the file has" if proof.smaller else ""
            yield f"\nThe baseline, run on the CPU with {proof.workload}{smaller}:"
        for finding in proof.findings:
            yield f"  {space_check.spec.path.name}:{finding.line}: {finding.text}"
        if proof.compared:
            yield f"  it agrees with the reference on inputs {', '.join(proof.compared)}"
        if proof.open_because:
            yield f"\nNot shown by a run on the CPU: {proof.open_because}"
    yield (
        f"\nThe baseline compiles, and of {len(space_check.sample)} sampled configs "
        f"{_fitting(space_check)} compile within the limits, for {target.architecture} with "
        f"{target.multiprocessors} multiprocessors by {space_check.compiler}:"
    )
    for trial in space_check.sample:
        yield f"  {trial.workload}: {_outcome(trial)}\n    {trial.config}"
    for reason, count in space_check.rejected.items():
        yield f"rejected by a limit: {count} ({reason})"
    if _fitting(space_check):
        yield "\nno mistakes found"
    else:
        yield "\nno mistakes found, but none of the sampled configs can run: see the reasons above"
    if space_check.not_shown:
        yield f"not shown: that the reference is right: {space_check.not_shown}"


def _fitting(space_check: SpaceCheck) -> int:
    return sum(trial.status is Status.NOT_RECORDED for trial in space_check.sample)


def _describe_trial(trial: Trial) -> dict[str, object]:
    # What no device was asked for is no failure here.
    compiled = {"status": "compiled", "reason": ""} if trial.status is Status.NOT_RECORDED else {}
    return {
        **pick(trial, "config workload status reason registers=resources.registers"),
        **compiled,
        **pick(trial, "spill_bytes=resources.spill_bytes"),
        **pick(trial, "occupancy=occupancy.share limiter=occupancy.limiter"),
    }


def _outcome(trial: Trial) -> str:
    resources, occupancy = trial.resources, trial.occupancy
    if occupancy is None and trial.status is Status.NOT_RECORDED:
        return "what it uses is not known before it runs"
    if resources is None or occupancy is None:
        return f"{trial.status}: {trial.reason}"
    spilled = resources.spill_bytes
    serialized = ", wgmma serialized" if resources.serialized_wgmma else ""
    return (
        f"{resources.registers} registers, {f'{spilled} bytes spilled' if spilled else 'no spills'}"
        f"{serialized}"
        f", occupancy {occupancy.share:.0%} limited by {occupancy.limiter}"
    )
