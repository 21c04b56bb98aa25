"""`tune record`: measure a whole search space on a GPU, for machines without one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from tuner.app.environment import program_name
from tuner.cli import options
from tuner.cli.exits import interrupt_on_sigterm, require_writable, writing
from tuner.model.settings import RECORD


@click.command("record")
@click.argument("source", metavar="KERNEL.cu", required=False, type=click.Path(path_type=Path))
@options.settings(
    RECORD,
    device="cuda, cuda:N, hip, hip:N, opencl or opencl:N.",
    trials="Search with N trials on each workload and measure as many again; by default every "
    "config is measured that constraints and `prune` allow.",
    peers="Record the implementations that KERNEL.py names as peers.",
    workloads="Record this workload instead of all in the space; repeatable.",
    operators="The variant of the operator to record; repeatable.",
    session="Folder for the session; new or empty.",
)
@options.resume
@options.trust
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The file; by default under recordings/GPU/ beside the kernel.",
)
@click.pass_context
def command(context: click.Context, /, source: Path | None, **values: Any) -> None:
    """Measure configs of KERNEL.cu on every workload, all or a part, and write a recording.

    A part is what a search tries, what is best on the other workloads, and random configs.
    """
    from tuner.app.open import open_run
    from tuner.app.plan import RunOptions
    from tuner.app.record import record, recording_path, recording_plan
    from tuner.cli.console import Console
    from tuner.cli.view import make_view
    from tuner.device.recorded.recording import save_recording

    out: Path | None = values["out"]
    if out is not None:
        require_writable(out.parent, "--out")
    run_options = RunOptions(
        **options.call_settings_of(values),
        command=(program_name(), "record", str(source)),
        resume_command=("record", *(() if out is None else ("--out", str(out)))),
        change=recording_plan,
        may_run=options.asker(values["trust"]),
    )
    settings = options.settings_of(context, values)
    console = Console()
    with interrupt_on_sigterm(), ExitStack() as stack:
        run = open_run(stack, source, settings, run_options, resume=values["resume"])
        console.print(f"session {run.session.directory}")
        with make_view(console, quiet=False) as view:
            recording = record(
                run.plan,
                session=run.session,
                device=run.device,
                compiler=run.compiler,
                listener=view,
            )
        path = out or recording_path(run.plan.spec, run.device)
        with writing(path, "recording", "--out"):
            save_recording(recording, path)
    console.print(f"{path} ({path.stat().st_size / 1024:.0f} KB)")
