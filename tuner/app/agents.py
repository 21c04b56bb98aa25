"""Who writes further candidates: the agent that was asked for, with all that serves it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from tuner.app.plans import LITERAL
from tuner.model.errors import AgentError, DeviceError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

    from tuner.agent.base import Agent
    from tuner.agent.rounds import Author
    from tuner.app.plans import AgentOptions
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device
    from tuner.session.session import Session
    from tuner.space.plan import Plan
    from tuner.tuning.evaluator import Candidates
    from tuner.tuning.profiling import Profiling


def agent_for(options: AgentOptions) -> Agent:
    """Make an agent that has said nothing yet.

    Raises `InputError` for a file of prices or a folder that cannot be used. One that cannot be
    reached is made all the same: the run has a template to go on with.
    """
    from tuner.app.plans import FILES, LITERAL, MCP

    if options.agent == MCP:
        raise InputError(
            "a client of the Model Context Protocol leads the rounds of this session",
            remedy="go on with `tune mcp`: its tool `start` takes the folder as `resume`",
        )
    if options.agent == FILES:
        from tuner.agent.files import FilesAgent

        assert options.exchange is not None
        _require_writable(options.exchange)
        return FilesAgent(options.exchange, wait_s=options.wait_s, say=_say)
    if options.agent == LITERAL:
        from tuner.agent.widen_ranges import WideningAgent

        return WideningAgent()
    from tuner.agent.budget import TokenBudget, read_prices
    from tuner.agent.openai import OpenAIAgent, Unreachable

    price, currency = None, "USD"
    if options.prices is not None:
        prices = read_prices(options.prices)
        price, currency = prices.of(options.model), prices.currency
    budget = TokenBudget(options.max_tokens, options.max_cost, price, currency)
    try:
        return OpenAIAgent(options.model, budget, environ=os.environ)
    except AgentError as error:
        return Unreachable(f"openai:{options.model}", error)


def remember(agent: Agent, session: Session) -> None:
    """Count against the budget what earlier runs of a session spent."""
    from tuner.agent.openai import OpenAIAgent
    from tuner.session.events import Said

    if isinstance(agent, OpenAIAgent):
        agent.budget.remember(event.entry for event in session.events(Said))


def early_warning(agent: Agent) -> str:
    """Ask whether an agent can be had, which costs nothing; say in one line why not, "" if so."""
    from tuner.agent.openai import OpenAIAgent, Unreachable

    if not isinstance(agent, OpenAIAgent | Unreachable):
        return ""
    try:
        agent.check()
    except AgentError as error:
        return " ".join(error.message.split())
    return ""


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder cannot be made: {error.strerror}",
            path=folder,
            remedy="name another with --exchange",
        ) from error


def _say(text: str) -> None:
    click.echo(text, err=True)


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
    from tuner.agent.briefing import Briefer
    from tuner.agent.rounds import Author
    from tuner.agent.tools import ToolSession
    from tuner.agent.tree import policy

    remember(agent, session)
    runs = not device.info.recorded
    sources = (*plan.spec.include_dirs, *options.sources)
    workbench = ToolSession(
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
    from tuner.analysis.profilers import find_profiler
    from tuner.app.check import UnavailableDevice, target_info
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.device.cuda.counters import NsightCompute
    from tuner.device.cuda.device import CudaDevice
    from tuner.tuning.evaluator import evaluator_of
    from tuner.tuning.profiling import Profiling

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
