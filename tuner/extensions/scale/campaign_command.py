"""`tune campaign FILE.yaml`: tune many kernels, on all GPUs, until all is done."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tuner.app.environment import program_name
from tuner.cli import options
from tuner.cli.exits import resumed_by, stdout_kept_for_result, terminated_as_interrupted
from tuner.model.errors import INTERRUPTED, TunerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.extensions.scale.campaign.file import CampaignPlan
    from tuner.extensions.scale.campaign.run import Campaign
    from tuner.model.progress import JobState


@click.command("campaign")
@click.argument("file", metavar="FILE.yaml", type=click.Path(path_type=Path))
@click.option(
    "--folder",
    metavar="DIR",
    type=options.folder,
    help="The folder for the sessions and the index; by default the one that the file names, or "
    "sessions/FILE beside it.",
)
@click.option("--fresh", is_flag=True, help="Run everything again; old sessions are set aside.")
@click.option("--dry-run", is_flag=True, help="Check the file, and list which jobs are left.")
@options.as_json
def command(file: Path, folder: Path | None, fresh: bool, dry_run: bool, as_json: bool) -> None:
    """Run all jobs of FILE.yaml, each `tune` or `tune record` in a process of its own.

    A GPU has one job at a time. Started again, the command goes on with what is left.
    """
    failure: KeyboardInterrupt | TunerError | None = None
    with terminated_as_interrupted(), stdout_kept_for_result(as_json):
        from tuner.extensions.scale.campaign.file import read_campaign
        from tuner.extensions.scale.campaign.run import Campaign

        again = ("campaign", str(file), *(["--folder", str(folder)] if folder else []))
        plan = read_campaign(file, folder)
        campaign = Campaign(
            plan.jobs,
            plan.folder,
            gpus=plan.gpus,
            parallel=plan.parallel,
            time_s=plan.time_s,
            fresh=fresh,
        )
        if plan.recorded:
            share = f"{len(plan.recorded)} of {len(plan.jobs)} jobs"
            click.echo(
                f"RECORDED: no NVIDIA GPU was found, so recordings answer for {share}", err=True
            )
        if idle := campaign.idle_gpus:
            click.echo(_idle_line(idle), err=True)
        if not dry_run:
            try:
                _run(campaign, again, stderr=as_json)
            except (KeyboardInterrupt, TunerError) as error:
                failure = error
    states, exit_code = campaign.states, 0 if dry_run else campaign.exit_code
    if failure is not None:
        exit_code = failure.exit_code if isinstance(failure, TunerError) else INTERRUPTED
    if as_json:
        told = str(failure) if isinstance(failure, TunerError) else None
        click.echo(json.dumps(_object(campaign, plan, states, exit_code, told)))
    else:
        for line in _left_lines(states) if dry_run else _end_lines(campaign, plan, states):
            click.echo(line)
    if failure is not None:
        raise failure
    if exit_code:
        if exit_code == INTERRUPTED:
            click.echo(f"to go on: {shlex.join([program_name(), *again])}", err=True)
        raise Exit(exit_code)


def _run(campaign: Campaign, again: tuple[str, ...], *, stderr: bool) -> None:
    from rich.console import Console

    from tuner.extensions.scale.campaign_view import make_campaign_view

    with make_campaign_view(Console(stderr=stderr, highlight=False)) as view, resumed_by(again):
        campaign.run(view)


def _idle_line(gpus: Sequence[int]) -> str:
    names, have = ", ".join(map(str, gpus)), "have" if len(gpus) > 1 else "has"
    return (
        f"GPU {names} {have} no job: each job uses one GPU; `tune KERNEL --gpus all` shares one "
        "kernel's workloads among several"
    )


def _left_lines(states: Sequence[JobState]) -> list[str]:
    from tuner.extensions.scale.campaign_view import end_line

    left = [one for one in states if one.status != "done"]
    listed = [end_line(one) if one.message else one.name for one in left]
    return [*listed, f"{len(left)} of {len(states)} jobs are left"]


def _end_lines(
    campaign: Campaign, plan: CampaignPlan, states: Sequence[JobState]
) -> tuple[str, ...]:
    from tuner.cli.view import duration
    from tuner.extensions.scale.campaign_view import end_line

    done = sum(one.status == "done" for one in states)
    return (
        *map(end_line, states),
        f"{done} of {len(states)} jobs done in {duration(campaign.ledger.wall_s)}",
        f"index  {plan.folder / 'index.html'}",
    )


def _object(
    campaign: Campaign,
    plan: CampaignPlan,
    states: Sequence[JobState],
    exit_code: int,
    error: str | None,
) -> dict[str, object]:
    return {
        "folder": str(plan.folder),
        "seconds": campaign.ledger.wall_s,
        "exit_code": exit_code,
        "error": error,
        "jobs": [_job_object(one) for one in states],
    }


def _job_object(one: JobState) -> dict[str, object]:
    found = one.outcome
    return {
        "name": one.name,
        "kernel": one.kernel,
        "status": one.status,
        "kept": one.kept,
        "seconds": one.seconds,
        "exit_code": one.exit_code,
        "message": one.message,
        "device": found.device if found else None,
        "workloads": found.workloads if found else None,
        "trials": found.trials if found else None,
        "speedup": round(found.speedup, 4) if found and found.speedup else None,
    }
