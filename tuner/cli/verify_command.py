"""`tune verify`: the winners of a session once more, later or on another machine."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from tuner.model.trial import Check, Result
    from tuner.session.session import Session

FAILED = 3


@click.command("verify")
@click.argument("folder", metavar="SESSION", type=click.Path(path_type=Path))
@click.option(
    "--space",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The session's search space, where it is no longer where it was.",
)
@click.option(
    "--device",
    metavar="DEVICE",
    default="auto",
    show_default=True,
    help="cuda, cuda:N, host, or auto: a GPU if there is one, else the CPU.",
)
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Compilers at a time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(folder: Path, space: Path | None, device: str, jobs: int | None, as_json: bool) -> None:
    """Repeat the whole verification of the winners in the folder SESSION.

    Every fill, twice for equal bits; the boundary workloads; the tools that watch every access, as
    far as this machine has them. The verdicts are added to the session. Exit code 3: one failed.
    """
    from tuner.session.session import Session

    with ExitStack() as stack:
        session = stack.enter_context(Session.open(folder))
        made = _verified(session, space, device, jobs, stack)
        results = session.results()
    if as_json:
        click.echo(json.dumps(as_object(folder, made)))
    else:
        _print(results, made)
    if any(check.passed is False for check in made):
        raise Exit(FAILED)


def as_object(folder: Path, checks: Sequence[Check]) -> dict[str, object]:
    """Make the object that `--json` prints."""
    return {
        "session": str(folder),
        "passed": not any(check.passed is False for check in checks),
        "checks": [
            {
                "kind": check.kind,
                "workload": check.workload.values,
                "config": dict(check.config),
                "passed": check.passed,
                "reason": check.reason,
                "device": check.device,
            }
            for check in checks
        ],
    }


def _verified(
    session: Session, space: Path | None, device_name: str, jobs: int | None, stack: ExitStack
) -> Sequence[Check]:
    from tuner.agent.gate import LARGEST_HOST_BYTES
    from tuner.agent.history import restore
    from tuner.app.open import compiler_for
    from tuner.app.plans import verified_plan
    from tuner.app.watching import watches_for
    from tuner.device.select import HOST, gpu_count, open_device
    from tuner.model.errors import DeviceError, SessionError
    from tuner.tuning.evaluator import Candidates
    from tuner.tuning.verification import Verification

    pairs = [(result.workload, result.variant) for result in session.results()]
    if not pairs:
        raise SessionError("has no winner to verify", path=session.directory)
    plan = verified_plan(session.directory, session.manifest, space)
    if device_name == "auto":
        device_name = "cuda" if gpu_count() else HOST
    device = open_device(device_name, plan.spec, plan.operators)
    stack.callback(device.close)
    if device.info.recorded:
        raise DeviceError("a recording cannot run a kernel", remedy="use --device cuda or host")
    compiler = compiler_for(device, jobs, stack)
    candidates = Candidates(plan, compiler, device)
    restore(plan, session, candidates)
    watches = watches_for(plan, device, compiler, stack)
    most = LARGEST_HOST_BYTES if device.info.on_cpu else None
    verification = Verification(
        plan, session, device, candidates, watches, repeat=True, largest_bytes=most
    )
    for workload in plan.spec.boundary:
        candidates.evaluator(plan.candidate).verify_baseline(workload)
    verification.verify(pairs)
    verification.on_boundaries(variant for _, variant in pairs)
    verification.watch(pairs)
    return verification.made


def _print(results: Sequence[Result], checks: Sequence[Check]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_table(checks))
    for check in checks:
        if check.passed is False:
            told = f"{check.kind} {check.workload} FAILED: {check.reason}"
            console.print(f"{told}\n  {check.variant}", markup=False, soft_wrap=True)
    left_out = Counter(
        (check.kind, str(check.workload), check.reason) for check in checks if check.passed is None
    )
    for (kind, workload, reason), count in left_out.items():
        configs = "one config" if count == 1 else f"{count} configs"
        told = f"{kind} {workload}, {configs} not run: {reason}"
        console.print(told, markup=False, soft_wrap=True)
    failed = {check.variant for check in checks if check.passed is False}
    out = [str(result.workload) for result in results if result.variant in failed]
    console.print(
        f"\nFAILED: what was tuned for {', '.join(out)} is not to be trusted"
        if out
        else f"\n{sum(check.passed is True for check in checks)} checks passed, none failed",
        markup=False,
        soft_wrap=True,
    )


def _table(checks: Sequence[Check]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("check", "passed", "failed", "not run"):
        table.add_column(title, justify="left" if title == "check" else "right")
    for kind in dict.fromkeys(check.kind for check in checks):
        of_kind = [check.passed for check in checks if check.kind == kind]
        table.add_row(kind, *(str(of_kind.count(verdict)) for verdict in (True, False, None)))
    return table
