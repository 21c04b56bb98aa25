"""Open the agent that a run asks for, with its tools, budget and transcript."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tuner.app.instruments import profiling_for
from tuner.model.errors import AgentError, DeviceError, InputError
from tuner.model.languages import refuse_opencl
from tuner.model.settings import FILES, LITERAL, MCP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from tuner.app.authors import RunRounds
    from tuner.app.plan import RunOptions
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device
    from tuner.extensions.agents.base import Agent, Briefing
    from tuner.extensions.agents.rounds import Author
    from tuner.model.settings import RunConfig
    from tuner.session.session import Session
    from tuner.space.plan import Plan
    from tuner.tuning.evaluator import Candidates
    from tuner.tuning.profiling import Profiling


@dataclass(frozen=True, slots=True)
class AgentAuthoring:
    """Who will write further candidates; `author` prepares it for a session."""

    agent: Agent
    author: Callable[[Session, Candidates], Author]

    @property
    def run_rounds(self) -> RunRounds:
        """Run or resume a session's rounds with it."""
        return rounds_by(self.author)

    def early_warning(self, session: Session, rounds: int) -> str:
        """Where a round is left, ask whether the agent can be had; say why not, "" if so."""
        from tuner.extensions.agents.openai import OpenAIAgent, Unreachable
        from tuner.session.rounds import over

        if not isinstance(self.agent, OpenAIAgent | Unreachable):
            return ""
        if all(over(session, number) for number in range(1, rounds + 1)):
            return ""
        try:
            self.agent.check()
        except AgentError as error:
            return " ".join(error.message.split())
        return ""


def rounds_by(author: Callable[[Session, Candidates], Author]) -> RunRounds:
    """Give what runs or resumes a session's rounds with who writes in it."""
    from tuner.extensions.agents.rounds import Rounds

    return lambda run: Rounds(run, author(run.session, run.candidates)).run()


def authoring_for(
    plan: Plan,
    options: RunOptions,
    device: Device,
    compiler: Compiler,
    stack: ExitStack,
    agent: Agent | None = None,
) -> AgentAuthoring | None:
    """Prepare who writes, an agent made here unless it is given; None where no round is asked for.

    Raises `DeviceError` for a recording, which knows no other template than its own, and
    `InputError` for settings of the agent that cannot be right. The stack closes what is opened.
    """
    config = plan.config
    if not config.rounds:
        return None
    refuse_opencl(plan.spec.source, "an agent, which writes CUDA,")
    if device.info.recorded and config.agent != LITERAL:
        raise DeviceError(
            f"a recording answers only for the template that it was made with, and {config.agent} "
            "writes others",
            remedy="use --device cuda on a machine with a GPU, or --device host to try it on a CPU",
        )
    agent = agent or agent_of(config, options)
    profiling = profiling_for(plan, device, compiler, stack)
    return AgentAuthoring(agent, partial(_author, agent, plan, device, profiling))


def _author(
    agent: Agent,
    plan: Plan,
    device: Device,
    profiling: Profiling,
    session: Session,
    candidates: Candidates,
) -> Author:
    from tuner.extensions.agents.briefing import Briefer
    from tuner.extensions.agents.openai import OpenAIAgent
    from tuner.extensions.agents.rounds import Author
    from tuner.extensions.agents.tools import ToolSession
    from tuner.extensions.agents.tree import policy
    from tuner.session.events import Said

    if isinstance(agent, OpenAIAgent):
        # What earlier runs of the session spent.
        agent.budget.remember(event.entry for event in session.events(Said))
    verifies = "verify" in device.capabilities
    sources = (*plan.spec.include_dirs, *plan.config.sources)
    tools = ToolSession(
        plan,
        session,
        candidates,
        profiling,
        sources,
        info=device.info,
        reporting=profiling.evaluator_of,
    )

    def brief(number: int, base: str | None, phases_s: Mapping[str, float]) -> Briefing:
        # Only now: the profile that comes before the first round says how deep it went.
        degree = profiling.degree_in(session) if plan.config.profile else None
        briefer = Briefer(plan, session, candidates, device.info, degree)
        return briefer.of(number, base, phases_s)

    return Author(
        agent=agent,
        policy=policy(plan.config.policy),
        briefing=brief,
        toolbox=tools.open_round,
        profiling=profiling if plan.config.profile else None,
        verifies=verifies,
    )


def agent_of(config: RunConfig, options: RunOptions) -> Agent:
    """Make the agent that a run's settings name; raise `InputError` where that can't be."""
    if config.agent == MCP:
        raise InputError(
            "a client of the Model Context Protocol leads the rounds of this session",
            remedy="go on with `tune mcp`: its tool `start` takes the folder as `resume`",
        )
    if config.agent == FILES:
        from tuner.extensions.agents.files import FilesAgent

        assert config.exchange is not None
        try:
            config.exchange.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the folder cannot be made: {error.strerror}",
                path=config.exchange,
                remedy="name another with --exchange",
            ) from error
        return FilesAgent(config.exchange, wait_s=options.answer_within_s, say=options.say)
    if config.agent == LITERAL:
        from tuner.extensions.agents.widen_ranges import WideningAgent

        return WideningAgent()
    from tuner.extensions.agents.budget import TokenBudget, read_prices
    from tuner.extensions.agents.openai import OpenAIAgent, Unreachable

    price, currency = None, "USD"
    if config.prices is not None:
        prices = read_prices(config.prices)
        price, currency = prices.of(config.model), prices.currency
    budget = TokenBudget(config.max_tokens, config.max_cost, price, currency)
    try:
        return OpenAIAgent(config.model, budget, environ=os.environ)
    except AgentError as error:
        # The run has a template to go on with.
        return Unreachable(f"openai:{config.model}", error)
