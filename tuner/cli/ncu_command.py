"""`tune ncu`: a program of baseline and winner for Nsight Compute."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tuner.cli import options


@click.command("ncu")
@click.argument("session", type=click.Path(path_type=Path))
@click.argument("workload")
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=options.folder,
    help="Where to write it; ncu/WORKLOAD in the session by default.",
)
@click.option(
    "--run", "run_it", is_flag=True, help="Also profile both, on this machine's first GPU."
)
@click.option("--target", metavar="SM", help="Another GPU than the session's, as sm_90a.")
@options.moved_space
@options.setting("jobs", help="How many compilers run at a time.")
@options.trust
def command(
    session: Path,
    workload: str,
    folder: Path | None,
    run_it: bool,
    target: str | None,
    space: Path | None,
    jobs: int | None,
    trust: bool,
) -> None:
    """Write a program that runs baseline and winner of WORKLOAD, as T=1024,D=4096, on real inputs.

    Nsight Compute opens it, with the sources beside the machine code; the commands for that are
    printed last. The session's report then shows which lines became more or less machine code.
    """
    from tuner.app.ncu import profile, write_program
    from tuner.report.data import load
    from tuner.report.html import write_report
    from tuner.session.session import Session

    with Session.open(session) as opened:
        program = write_program(
            opened,
            workload,
            folder=folder,
            space=space,
            target=target,
            jobs=jobs,
            may_run=options.asker(trust),
        )
    report = session / "report.html"
    write_report(load(session), report)
    click.echo(f"{program.folder}: for GPUs of {program.architecture}; {report} has its lines")
    if run_it:
        profile(program)
    else:
        click.echo(f"sh {shlex.quote(str(program.script))}")
    click.echo(shlex.join(["ncu-ui", *map(str, program.reports)]))
