"""Open all that a run needs: plan, device, compiler and session, in that order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from tuner.errors import TunerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack
    from pathlib import Path

    from tuner.cli.plans import Request
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device, DeviceInfo
    from tuner.plan import Plan
    from tuner.session import Session


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run needs, opened."""

    plan: Plan
    session: Session
    device: Device
    compiler: Compiler


def started(
    request: Request, stack: ExitStack, change: Callable[[Plan], Plan] | None = None
) -> Run:
    """Start a new session for what the request asks, after `change` has had its say."""
    from tuner.cli.environment import environment_of
    from tuner.cli.plans import manifest_of, new_plan, new_session_folder
    from tuner.device.select import open_device
    from tuner.session import Session

    plan = new_plan(request)
    plan = change(plan) if change else plan
    device = open_device(request.device, plan.spec, plan.operators)
    stack.callback(device.close)
    compiler = compiler_for(device.info, request.jobs, stack)
    name = request.device
    if name == "auto":
        name = "recorded" if device.info.recorded else "cuda"
    folder = request.session or new_session_folder(plan.spec.name, datetime.now())
    manifest = manifest_of(plan, device=name, words=request.words)
    environment = environment_of(device, compiler, plan.spec.path.parent)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    session = stack.enter_context(Session.create(folder, manifest, environment))
    stack.push(partial(_leave_nothing_unused, session, made))
    return Run(plan, session, device, compiler)


def resumed(
    request: Request, stack: ExitStack, change: Callable[[Plan], Plan] | None = None
) -> Run:
    """Open the session that the request names; raise `SessionError` where it cannot go on."""
    from tuner.cli.environment import require_same_device
    from tuner.cli.plans import resumed_plan
    from tuner.device.select import open_device
    from tuner.session import Session

    assert request.resume is not None
    session = stack.enter_context(Session.open(request.resume))
    plan = resumed_plan(session.directory, session.manifest, request)
    plan = change(plan) if change else plan
    device = open_device(session.manifest.device, plan.spec, plan.operators)
    stack.callback(device.close)
    require_same_device(session, device)
    return Run(plan, session, device, compiler_for(device.info, request.jobs, stack))


def _leave_nothing_unused(
    session: Session, made: Iterable[Path], kind: object, error: BaseException | None, trace: object
) -> None:
    """Take back a session that was refused before anything was measured, with its folders."""
    if not (isinstance(error, TunerError) and session.unused):
        return
    session.discard()
    for folder in made:
        with suppress(OSError):  # somebody else has put something there
            folder.rmdir()


def compiler_for(info: DeviceInfo, jobs: int | None, stack: ExitStack) -> Compiler:
    """Start the compiler whose results run on a device; the stack ends it."""
    from tuner.compiler.cache import Cache
    from tuner.compiler.host import HostCompiler
    from tuner.compiler.pool import NvrtcPool

    compiler: Compiler
    compiler = HostCompiler(jobs) if info.on_cpu else NvrtcPool(workers=jobs, cache=Cache())
    stack.callback(compiler.close)
    return compiler
