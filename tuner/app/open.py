"""Open all that a run needs: plan, device, compiler and session, in that order."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import plugins
from tuner.app.authors import authors
from tuner.app.drafters import drafter
from tuner.app.environment import environment_of, program_name, require_same_device
from tuner.app.instruments import compiler_for, meter_for, watches_for
from tuner.app.locate import (
    PROBLEMS,
    find_space,
    is_for,
    is_python_kernel,
    look_for_space,
    require_kernel,
)
from tuner.app.plan import RunOptions, new_plan, new_session_folder
from tuner.app.session_plan import manifest_of, resumed_plan
from tuner.app.trust import trust, trust_command
from tuner.device.select import open_device
from tuner.model.errors import (
    INTERRUPTED,
    ClusterLost,
    DeviceLost,
    InputError,
    Interrupted,
    TunerError,
)
from tuner.model.hardware import is_amd
from tuner.model.languages import OPENCL, language_of
from tuner.model.settings import AUTO, FILES, GivenSettings
from tuner.session.session import Session

if TYPE_CHECKING:
    from tuner.app.authors import RunRounds
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device
    from tuner.model.cluster import ClusterSettings
    from tuner.space.plan import Plan
    from tuner.tuning.verification import Watch
    from tuner.tuning.warm_start import Knowledge

    # What `plugins.REMOTES` has: who opens a device on a cluster, and who copies a session.
    OpenOnCluster = Callable[
        [ClusterSettings, Plan, Callable[[str], None], ExitStack], tuple[Device, Compiler | None]
    ]
    Copying = Callable[
        [Path, str | None, Mapping[str, str], Callable[[str], None]], AbstractContextManager[object]
    ]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """All that a run needs, opened; `warning` says why its agent cannot be reached, if so."""

    plan: Plan
    session: Session
    device: Device
    compiler: Compiler
    watches: tuple[Watch, ...]
    run_rounds: RunRounds | None
    warning: str
    meter: Device | None
    knowledge: Knowledge | None


def open_run(
    stack: ExitStack,
    kernel: Path | None,
    settings: GivenSettings,
    options: RunOptions,
    *,
    resume: Path | None = None,
    agent: object = None,
) -> OpenRun:
    """Start a new session of a kernel, or open the one in the folder `resume` to go on with it.

    `kernel` may be a problem, whose kernel lies beside it or is written by the agent.
    `agent` is given where the settings cannot make it. From here on an interruption is an
    `Interrupted`. Raises `InputError` for what is wrong with files and settings, and
    `SessionError` where a session cannot go on.
    """
    from tuner.tuning.warm_start import open_knowledge

    session: Session | None = None
    if resume is not None:
        if kernel is not None and kernel.suffix in PROBLEMS and not is_python_kernel(kernel):
            kernel = kernel.with_suffix(".cu")
        stack.push(partial(_say_how_to_resume, resume, options.resume_command))
        session = stack.enter_context(Session.open(resume))
        plan = resumed_plan(
            session.directory, session.manifest, kernel, settings, may_run=options.may_run
        )
    elif kernel is None:
        raise InputError("no kernel given; name a .cu file, or a session with --resume")
    else:
        if kernel.suffix in PROBLEMS and kernel.is_file() and not is_python_kernel(kernel):
            kernel, agent = authors().kernel_for(kernel, settings, options, agent)
        settings, drafted = _with_space(kernel, settings, options)
        plan = new_plan(kernel, settings, drafted=drafted)
        if options.answer_within_s is not None and plan.config.agent != FILES:
            raise InputError(
                f"--{'step' if options.step else 'wait'} is for --agent files, "
                f"not for {plan.config.agent}"
            )
    plan = options.change(plan) if options.change else plan
    compiler: Compiler | None = None
    if options.cluster is not None:
        # A cluster brings its compiler.
        open_on_cluster: OpenOnCluster = plugins.load(plugins.REMOTES, "cluster")
        device, compiler = open_on_cluster(options.cluster, plan, options.say, stack)
    else:
        asked = plan.config
        opened = (asked.device, plan.spec, asked.operators, asked.workloads)
        device = open_device(*opened, gpus=asked.gpus)
    stack.callback(device.close)
    if session is not None:
        require_same_device(session, device)
    elif not settings.get("workloads"):
        plan = restrict_to_recording(plan, device, options.say)
    meter = meter_for(plan, device)
    warn = partial(_warn, options)
    knowledge = open_knowledge(options.store, os.environ, device.info, warn)
    compiler = compiler or compiler_for(plan.spec, device, options.jobs, stack)
    watches = watches_for(plan, device, compiler, stack)
    authoring = None
    if plan.config.rounds:
        authoring = authors().prepare(plan, options, device, compiler, stack, agent)
    if session is None:
        plan = _with_device(plan, device)
        session = _new_session(plan, device, compiler, watches, options, stack)
    if options.copy_session:
        copying: Copying = plugins.load(plugins.REMOTES, "copies")
        stack.enter_context(copying(session.directory, options.store, os.environ, warn))
    rounds, warning = None, ""
    if authoring is not None:
        rounds = authoring.run_rounds
        warning = authoring.early_warning(session, plan.config.rounds)
    return OpenRun(plan, session, device, compiler, watches, rounds, warning, meter, knowledge)


def _warn(options: RunOptions, text: str) -> None:
    options.say(f"Warning: {text}")


def _with_device(plan: Plan, device: Device) -> Plan:
    """Write down what `auto` has found."""
    if plan.config.device != AUTO:
        return plan
    amd = is_amd(device.info.architecture)
    here = "opencl" if plan.spec.language is OPENCL else "hip" if amd else "cuda"
    name = "recorded" if device.info.recorded else here
    return replace(plan, config=replace(plan.config, device=name))


def restrict_to_recording(plan: Plan, device: Device, say: Callable[[str], None]) -> Plan:
    """Leave out the space's workloads that a recording lacks; all of them are for it to refuse."""
    workloads = plan.config.workloads
    if "recording" not in device.capabilities:
        return plan
    held = tuple(one for one in workloads if device.recording.holds(one))
    if not held or held == workloads:
        return plan
    lacking = [one for one in workloads if one not in held]
    names_lacking = len(lacking) <= len(held)
    keys = " ".join(workload.key for workload in (lacking if names_lacking else held))
    named = f"{', not' if names_lacking else ':'} {keys}"
    say(f"the recording holds {len(held)} of the space's {len(workloads)} workloads{named}")
    return replace(plan, config=replace(plan.config, workloads=held))


def _with_space(
    kernel: Path, settings: GivenSettings, options: RunOptions
) -> tuple[GivenSettings, bool]:
    """Draft a search space for a kernel without one; tell whether it was drafted."""
    if settings.get("space") is not None or settings.get("template") is not None:
        if options.kernel or options.instantiate:
            raise InputError(
                "--kernel and --instantiate are for a draft, and a search space is given",
                remedy="leave them out: the search space says which kernel it is for",
            )
        return settings, False
    require_kernel(kernel)
    names = tuple(name.strip() for name in (options.kernel or "").split(",") if name.strip())
    path = look_for_space(kernel, Path.cwd())
    if path is not None and len(names) == 1 and not is_for(path, names[0]):
        path = look_for_space(kernel, Path.cwd(), f"{kernel.stem}_{names[0]}")
    if path is not None and options.instantiate:
        raise InputError(
            "--instantiate is for a draft, and there is a search space already",
            path=path,
            remedy="leave it out, or draft another with `tune init --force`",
        )
    if path is not None:
        return {**settings, "space": path} if names else settings, False
    if language_of(kernel) is OPENCL:
        find_space(kernel, Path.cwd())  # there is none, and nothing drafts one
    space = drafter().draft(kernel, names, options.instantiate, options.include, options.say)
    return {**settings, "space": space}, True


def _new_session(
    plan: Plan,
    device: Device,
    compiler: Compiler,
    watches: tuple[Watch, ...],
    options: RunOptions,
    stack: ExitStack,
) -> Session:
    trust(plan.spec.reference)  # this user has named it
    if device.info.evaluator:
        trust_command(device.info.evaluator)
    folder = options.session or new_session_folder(plan.spec.name, datetime.now())
    environment = {
        **environment_of(device, compiler, plan.spec.path.parent),
        "watched_by": ", ".join(watch.watcher.kind for watch in watches) or "nothing",
    }
    stack.push(partial(_say_how_to_resume, folder, options.resume_command))
    paths = [place for place in (folder, *folder.parents) if not place.exists()]
    manifest = manifest_of(plan, options.command)
    session = stack.enter_context(Session.create(folder, manifest, environment))

    def discard(kind: object, error: BaseException | None, trace: object) -> None:
        # It was refused before anything was measured.
        if isinstance(error, TunerError) and session.unused:
            session.discard()
            for place in paths:
                with suppress(OSError):  # somebody else has put something there
                    place.rmdir()

    stack.push(discard)
    return session


def _say_how_to_resume(
    folder: Path, command: tuple[str, ...], kind: object, error: BaseException | None, trace: object
) -> None:
    from tuner.session.store import DATABASE

    if not (folder / DATABASE).exists():
        return
    resume = (*command, "--resume", str(folder))
    if isinstance(error, KeyboardInterrupt):
        raise Interrupted(resume) from None
    if isinstance(error, DeviceLost | ClusterLost):
        again = f"what was measured is kept; go on with: {program_name()} {shlex.join(resume)}"
        remedy = f"{error.remedy}; {again}" if error.remedy else again
        lost = type(error)(error.message, path=error.path, remedy=remedy)
        if isinstance(error, ClusterLost):
            lost.exit_code = INTERRUPTED
        raise lost from error
