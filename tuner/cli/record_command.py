"""`tune record`: measure a whole search space on a GPU, for machines without one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from tuner.app.environment import program_name
from tuner.cli import options
from tuner.cli.exits import terminated_as_interrupted


@click.command("record")
@click.argument("kernel", metavar="KERNEL.cu", required=False, type=click.Path(path_type=Path))
@options.space()
@click.option("--device", metavar="DEVICE", default="cuda", help="cuda or cuda:N.")
@options.workload("Record this one instead of all in the space")
@options.operator("record")
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Search with N trials on each workload and measure as many again; all valid configs else.",
)
@options.peers("Record")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File; otherwise recordings/GPU/ beside the kernel.",
)
@options.session("Folder for the session; new or empty.")
@options.resume()
@options.jobs()
def command(
    kernel: Path | None,
    space: Path | None,
    device: str,
    workload: tuple[str, ...],
    operator: tuple[tuple[str, str], ...],
    trials: int | None,
    peers: bool,
    peer: tuple[str, ...],
    out: Path | None,
    session: Path | None,
    resume: Path | None,
    jobs: int | None,
) -> None:
    """Measure configs of KERNEL.cu on every workload, all or a part, and write a recording.

    A part is what a search tries, what is best on the other workloads, and random configs.
    """
    from rich.console import Console

    from tuner.app.open import resumed, started
    from tuner.app.plans import Request
    from tuner.app.record import record, recording_path, recording_plan
    from tuner.cli.view import make_view
    from tuner.device.recorded.recording import save_recording

    request = Request(
        kernel=kernel,
        space=space,
        template=None,
        device=device,
        searcher="auto" if trials else "exhaustive",
        trials=trials,
        time=None,
        seed=0,
        workload=workload,
        operator=operator,
        peers=peers,
        peer=peer,
        session=session,
        resume=resume,
        as_json=False,
        quiet=False,
        jobs=jobs,
        given=frozenset(),
        words=(program_name(), "record", str(kernel)),
    )
    console = Console(highlight=False)
    with terminated_as_interrupted(), ExitStack() as stack:
        run = (resumed if resume else started)(request, stack, recording_plan, ("record",))
        console.print(f"session {run.session.directory}", markup=False)
        with make_view(console, quiet=False) as view:
            made = record(
                run.plan,
                session=run.session,
                device=run.device,
                compiler=run.compiler,
                listener=view,
            )
        path = out or recording_path(run.plan.spec, run.device)
        save_recording(made, path)
    console.print(f"{path} ({path.stat().st_size / 1024:.0f} KB)", markup=False)
