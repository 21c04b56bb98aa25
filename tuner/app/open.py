"""Open all that a run needs: plan, device, compiler and session, in that order."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.app.environment import program_name
from tuner.app.locate import look_for_space, require_kernel
from tuner.model.errors import TunerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack

    from tuner.agent.base import Agent
    from tuner.agent.rounds import Author
    from tuner.app.agents import Authoring
    from tuner.app.plans import Request
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device, EnergyMeter
    from tuner.session.session import Session
    from tuner.space.plan import Plan
    from tuner.tuning.evaluator import Candidates
    from tuner.tuning.verification import Watch
    from tuner.tuning.warm_start import Knowledge


def with_space(request: Request) -> tuple[Request, bool]:
    """Name the drafted search space in a request whose kernel has none; tell whether it was.

    Raises `InputError` with what is left to fill in, and the command that follows.
    """
    if request.kernel is None or request.space is not None or request.template is not None:
        return request, False
    require_kernel(request.kernel)
    if look_for_space(request.kernel, Path.cwd()) is not None:
        return request, False
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.draft import draft_source, require_one

    with NvrtcPool(1, cache=Cache()) as pool:
        made = draft_source(request.kernel, compiler=lambda: pool)
    for path in made.written:
        click.echo(f"drafted {path}", err=True)
    space = require_one(made)
    made.require_filled(f"{program_name()} check {shlex.quote(str(space))}")
    return replace(request, space=space), True


class Interrupted(KeyboardInterrupt):
    """A run was interrupted; `command` holds the arguments that resume it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        super().__init__(*command)
        self.command = command


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
    meter: EnergyMeter | None = None
    knowledge: Knowledge | None = None


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
    from tuner.app.agents import authoring_for
    from tuner.app.environment import environment_of
    from tuner.app.plans import AgentOptions, manifest_of, new_plan, new_session_folder
    from tuner.app.watching import watches_for
    from tuner.device.select import open_device
    from tuner.session.session import Session

    request, drafted = with_space(request)
    plan = new_plan(request)
    options = AgentOptions.asked(request, drafted=drafted)
    plan = replace(plan, rounds=options.rounds, policy=options.policy)
    plan = change(plan) if change else plan
    device = open_device(request.device, plan.spec, plan.operators, plan.workloads)
    stack.callback(device.close)
    meter = meter_for(plan, device)
    knowledge = _knowledge(request, device)
    compiler = compiler_for(device, request.jobs, stack)
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
    run = _run(plan, session, device, compiler, watches, authoring)
    return replace(run, meter=meter, knowledge=knowledge)


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
    from tuner.app.agents import authoring_for
    from tuner.app.environment import require_same_device
    from tuner.app.plans import AgentOptions, resumed_plan
    from tuner.app.watching import watches_for
    from tuner.device.select import open_device
    from tuner.session.session import Session

    assert request.resume is not None
    stack.push(partial(_say_how_to_resume, request.resume, command))
    session = stack.enter_context(Session.open(request.resume))
    plan = resumed_plan(session.directory, session.manifest, request)
    options = AgentOptions.resumed(session.manifest, request)
    plan = replace(plan, rounds=options.rounds, policy=options.policy)
    plan = change(plan) if change else plan
    device = open_device(session.manifest.device, plan.spec, plan.operators, plan.workloads)
    stack.callback(device.close)
    require_same_device(session, device)
    meter = meter_for(plan, device)
    knowledge = _knowledge(request, device)
    compiler = compiler_for(device, request.jobs, stack)
    watches = watches_for(plan, device, compiler, stack)
    authoring = authoring_for(options, plan, device, compiler, stack, agent)
    run = _run(plan, session, device, compiler, watches, authoring)
    return replace(run, meter=meter, knowledge=knowledge)


def _run(
    plan: Plan,
    session: Session,
    device: Device,
    compiler: Compiler,
    watches: tuple[Watch, ...],
    authoring: Authoring | None,
) -> Run:
    """Put a run together; where a round is left, ask now whether there is an agent for it."""
    from tuner.agent.history import over
    from tuner.app.agents import early_warning

    if authoring is None:
        return Run(plan, session, device, compiler, watches)
    needed = any(not over(session, number) for number in range(1, plan.rounds + 1))
    warning = early_warning(authoring.agent) if needed else ""
    return Run(plan, session, device, compiler, watches, authoring.author, warning)


def _knowledge(request: Request, device: Device) -> Knowledge | None:
    """Open the store of past runs; what keeps it from being used is told."""
    from tuner.tuning.warm_start import open_knowledge

    def warn(text: str) -> None:
        click.echo(f"Warning: {text}", err=True)

    return open_knowledge(request.store, os.environ, device.info, warn)


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
    from tuner.session.store import DATABASE

    if isinstance(error, KeyboardInterrupt) and (folder / DATABASE).exists():
        raise Interrupted((*command, "--resume", str(folder))) from None


def meter_for(plan: Plan, device: Device) -> EnergyMeter | None:
    """Find the energy meter that an objective needs; raise before anything is measured."""
    from tuner.device.base import open_meter
    from tuner.tuning.energy import require_time

    if plan.objective == "time":
        return None
    meter = open_meter(device)
    require_time(plan, plan.objective)
    return meter


def compiler_for(device: Device, jobs: int | None, stack: ExitStack) -> Compiler:
    """Start the compiler whose results run on a device; the stack ends it."""
    from tuner.compiler.cache import AnsweringCompiler, Cache
    from tuner.compiler.host import HostCompiler
    from tuner.compiler.pool import NvrtcPool
    from tuner.device.base import FromRecording

    compiler: Compiler
    if device.info.on_cpu:
        compiler = HostCompiler(jobs, cache=Cache())
    else:
        compiler = NvrtcPool(workers=jobs, cache=Cache())
    if isinstance(device, FromRecording) and (known := device.compiled()):
        version = device.info.environment.get("recorded_compiler", compiler.version)
        compiler = AnsweringCompiler(known, version, compiler)
    stack.callback(compiler.close)
    return compiler
