"""Open all that a run needs: plan, device, compiler and session, in that order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from tuner.cli.exits import interrupted
from tuner.errors import TunerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack
    from pathlib import Path

    from tuner.agent.base import Agent
    from tuner.candidates import Candidates
    from tuner.cli.authoring import Authoring
    from tuner.cli.plans import Request
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device, DeviceInfo
    from tuner.plan import Plan
    from tuner.rounds import Author
    from tuner.session import Session
    from tuner.verification import Watch


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run needs, opened; `warning` says why its agent cannot be reached, if so."""

    plan: Plan
    session: Session
    device: Device
    compiler: Compiler
    watches: tuple[Watch, ...]
    author: Callable[[Session, Candidates], Author] | None = None
    warning: str = ""


def started(
    request: Request,
    stack: ExitStack,
    change: Callable[[Plan], Plan] | None = None,
    command: tuple[str, ...] = (),
    agent: Agent | None = None,
) -> Run:
    """Start a new session for what the request asks, after `change` has had its say.

    From then on an interruption says how to resume it with this command.
    """
    from tuner.cli.agent_options import AgentOptions
    from tuner.cli.authoring import authoring_for
    from tuner.cli.drafting import with_space
    from tuner.cli.environment import environment_of
    from tuner.cli.plans import manifest_of, new_plan, new_session_folder
    from tuner.cli.watching import watches_for
    from tuner.device.select import open_device
    from tuner.session import Session

    request, drafted = with_space(request)
    plan = new_plan(request)
    options = AgentOptions.asked(request, drafted=drafted)
    plan = replace(plan, rounds=options.rounds, policy=options.policy)
    plan = change(plan) if change else plan
    device = open_device(request.device, plan.spec, plan.operators)
    stack.callback(device.close)
    compiler = compiler_for(device.info, request.jobs, stack)
    watches = watches_for(plan, device, compiler, stack)
    authoring = authoring_for(options, plan, device, compiler, stack, agent)
    name = request.device
    if name == "auto":
        name = "recorded" if device.info.recorded else "cuda"
    folder = request.session or new_session_folder(plan.spec.name, datetime.now())
    manifest = manifest_of(plan, device=name, words=request.words, options=options)
    environment = {
        **environment_of(device, compiler, plan.spec.path.parent),
        "watched_by": ", ".join(watch.watcher.kind for watch in watches) or "nothing",
    }
    stack.push(partial(_say_how_to_resume, folder, command))
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    session = stack.enter_context(Session.create(folder, manifest, environment))
    stack.push(partial(_leave_nothing_unused, session, made))
    return _run(plan, session, device, compiler, watches, authoring)


def resumed(
    request: Request,
    stack: ExitStack,
    change: Callable[[Plan], Plan] | None = None,
    command: tuple[str, ...] = (),
    agent: Agent | None = None,
) -> Run:
    """Open the session that the request names; raise `SessionError` where it cannot go on.

    An interruption says how to resume it with this command.
    """
    from tuner.cli.agent_options import AgentOptions
    from tuner.cli.authoring import authoring_for
    from tuner.cli.environment import require_same_device
    from tuner.cli.plans import resumed_plan
    from tuner.cli.watching import watches_for
    from tuner.device.select import open_device
    from tuner.session import Session

    assert request.resume is not None
    stack.push(partial(_say_how_to_resume, request.resume, command))
    session = stack.enter_context(Session.open(request.resume))
    plan = resumed_plan(session.directory, session.manifest, request)
    options = AgentOptions.resumed(session.manifest, request)
    plan = replace(plan, rounds=options.rounds, policy=options.policy)
    plan = change(plan) if change else plan
    device = open_device(session.manifest.device, plan.spec, plan.operators)
    stack.callback(device.close)
    require_same_device(session, device)
    compiler = compiler_for(device.info, request.jobs, stack)
    watches = watches_for(plan, device, compiler, stack)
    authoring = authoring_for(options, plan, device, compiler, stack, agent)
    return _run(plan, session, device, compiler, watches, authoring)


def _run(
    plan: Plan,
    session: Session,
    device: Device,
    compiler: Compiler,
    watches: tuple[Watch, ...],
    authoring: Authoring | None,
) -> Run:
    """Put a run together; where a round is left, ask now whether there is an agent for it."""
    from tuner.cli.agents import early_warning
    from tuner.history import over

    if authoring is None:
        return Run(plan, session, device, compiler, watches)
    needed = any(not over(session, number) for number in range(1, plan.rounds + 1))
    warning = early_warning(authoring.agent) if needed else ""
    return Run(plan, session, device, compiler, watches, authoring.author, warning)


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


def _say_how_to_resume(
    folder: Path, command: tuple[str, ...], kind: object, error: BaseException | None, trace: object
) -> None:
    from tuner.session_store import DATABASE

    if isinstance(error, KeyboardInterrupt) and (folder / DATABASE).exists():
        raise interrupted(folder, *command) from None


def compiler_for(info: DeviceInfo, jobs: int | None, stack: ExitStack) -> Compiler:
    """Start the compiler whose results run on a device; the stack ends it."""
    from tuner.compiler.cache import Cache
    from tuner.compiler.host import HostCompiler
    from tuner.compiler.pool import NvrtcPool

    compiler: Compiler
    if info.on_cpu:
        compiler = HostCompiler(jobs, cache=Cache())
    else:
        compiler = NvrtcPool(workers=jobs, cache=Cache())
    stack.callback(compiler.close)
    return compiler
