"""Who writes further candidates: the agent that was asked for, with all that serves it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tuner.cli.agent_options import LITERAL
from tuner.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from tuner.agent.base import Agent
    from tuner.candidates import Candidates
    from tuner.cli.agent_options import AgentOptions
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device
    from tuner.plan import Plan
    from tuner.profiling import Profiling
    from tuner.rounds import Author
    from tuner.session import Session

# The profile of a kernel that runs on a CPU is that of the code for this GPU.
PROFILED_TARGET = "sm_90a"


@dataclass(frozen=True, slots=True)
class Authoring:
    """Who will write further candidates; `author` prepares it for a session."""

    agent: Agent
    author: Callable[[Session, Candidates], Author]


def authoring_for(
    options: AgentOptions,
    plan: Plan,
    device: Device,
    compiler: Compiler,
    stack: ExitStack,
    agent: Agent | None = None,
) -> Authoring | None:
    """Prepare who writes; None where no round is asked for. The stack closes what is opened.

    `agent` is given where the options cannot make it.

    Raises `DeviceError` for a recording, which knows no other template than its own, and
    `InputError` for options of the agent that cannot be right.
    """
    from tuner.cli.agents import agent_for

    if not options.rounds:
        return None
    if device.info.recorded and options.agent != LITERAL:
        raise DeviceError(
            f"a recording answers only for the template that it was made with, and {options.agent} "
            "writes others",
            remedy="use --device cuda on a machine with a GPU, or --device host to try it on a CPU",
        )
    agent = agent or agent_for(options)
    profiling = profiling_for(plan, device, compiler, stack)
    return Authoring(agent, partial(_author, agent, options, plan, device, profiling))


def _author(
    agent: Agent,
    options: AgentOptions,
    plan: Plan,
    device: Device,
    profiling: Profiling,
    session: Session,
    candidates: Candidates,
) -> Author:
    from tuner.agent.policies import policy
    from tuner.briefing import Briefer
    from tuner.cli.agents import remember
    from tuner.rounds import Author
    from tuner.toolbox import Workbench

    remember(agent, session)
    runs = not device.info.recorded
    sources = (*plan.spec.include_dirs, *options.sources)
    workbench = Workbench(
        plan,
        session,
        candidates,
        profiling,
        sources,
        info=device.info,
        verifies=runs,
        times=runs,
        folder=session.directory,
        reporting=profiling.evaluator_of,
    )
    return Author(
        agent=agent,
        policy=policy(options.policy),
        briefing=Briefer(plan, session, candidates, device.info, profiling.degree).of,
        toolbox=workbench.opened,
        profiling=profiling,
        verifies=runs,
    )


def profiling_for(plan: Plan, device: Device, compiler: Compiler, stack: ExitStack) -> Profiling:
    """Open the profiler that goes deepest here."""
    from tuner.candidates import evaluator_of
    from tuner.checking import UnavailableDevice, target_info
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.device.cuda.counters import NsightCompute
    from tuner.device.cuda.device import CudaDevice
    from tuner.profiler.with_counters import find_profiler
    from tuner.profiling import Profiling

    profiled: Device = device
    if device.info.on_cpu:
        # On a CPU nothing can be said of a GPU's time, but all of the GPU's code.
        profiled = UnavailableDevice(target_info(PROFILED_TARGET))
        compiler = NvrtcPool(cache=Cache())
        stack.callback(compiler.close)
    timed = not device.info.on_cpu
    counters = None
    if isinstance(device, CudaDevice):
        counters = NsightCompute(device.ordinal, plan.spec, plan.operators)
    profiler = find_profiler(profiled.info, counters, timed=timed)
    stack.callback(profiler.close)
    evaluators = partial(evaluator_of, compiler=compiler, device=profiled)
    return Profiling(profiler, evaluators, timed=timed)
