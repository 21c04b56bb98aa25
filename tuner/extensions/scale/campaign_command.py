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
from tuner.cli.exits import interrupt_on_sigterm, resumed_by, stdout_kept_for_result
from tuner.model.errors import INTERRUPTED, TunerError

if TYPE_CHECKING:
    from tuner.extensions.scale.campaign.page import JobState


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
    with interrupt_on_sigterm(), stdout_kept_for_result(as_json):
        from tuner.cli.console import Console
        from tuner.cli.view import duration
        from tuner.extensions.scale.campaign.file import read_campaign
        from tuner.extensions.scale.campaign.run import Campaign
        from tuner.extensions.scale.campaign_view import end_line, make_campaign_view

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
            names, have = ", ".join(map(str, idle)), "have" if len(idle) > 1 else "has"
            click.echo(
                f"GPU {names} {have} no job: each job uses one GPU; `tune KERNEL --gpus all` "
                "shares one kernel's workloads among several",
                err=True,
            )
        if not dry_run:
            try:
                console = Console(stderr=as_json)
                with make_campaign_view(console) as view, resumed_by(again):
                    campaign.run(view)
            except (KeyboardInterrupt, TunerError) as error:
                failure = error
    states, exit_code = campaign.states, 0 if dry_run else campaign.exit_code
    if failure is not None:
        exit_code = failure.exit_code if isinstance(failure, TunerError) else INTERRUPTED
    if as_json:
        result = {
            "folder": str(plan.folder),
            "seconds": campaign.ledger.wall_s,
            "exit_code": exit_code,
            "error": str(failure) if isinstance(failure, TunerError) else None,
            "jobs": [_job_object(state) for state in states],
        }
        click.echo(json.dumps(result))
    else:
        left = [state for state in states if state.status != "done"]
        if dry_run:
            for job_state in left:
                click.echo(end_line(job_state) if job_state.message else job_state.name)
            click.echo(f"{len(left)} of {len(states)} jobs are left")
        else:
            for state in states:
                click.echo(end_line(state))
            took = duration(campaign.ledger.wall_s)
            click.echo(f"{len(states) - len(left)} of {len(states)} jobs done in {took}")
            click.echo(f"index  {plan.folder / 'index.html'}")
    if failure is not None:
        raise failure
    if exit_code:
        if exit_code == INTERRUPTED:
            click.echo(f"to go on: {shlex.join([program_name(), *again])}", err=True)
        raise Exit(exit_code)


def _job_object(job_state: JobState) -> dict[str, object]:
    outcome = job_state.outcome
    return {
        "name": job_state.name,
        "kernel": job_state.kernel,
        "status": job_state.status,
        "kept": job_state.kept,
        "seconds": job_state.seconds,
        "exit_code": job_state.exit_code,
        "message": job_state.message,
        "device": outcome.device if outcome else None,
        "workloads": outcome.workloads if outcome else None,
        "trials": outcome.trials if outcome else None,
        "speedup": round(outcome.speedup, 4) if outcome and outcome.speedup else None,
    }
