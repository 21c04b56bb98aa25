"""Open the agent that a run asks for, with its tools, budget and transcript."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.app.plan import RunOptions
from tuner.device.base import Device
from tuner.extensions.agents.base import Agent, Briefing
from tuner.extensions.agents.briefing import Briefer
from tuner.extensions.agents.budget import TokenBudget, read_prices
from tuner.extensions.agents.files import FilesAgent
from tuner.extensions.agents.openai import OpenAIAgent, Unreachable
from tuner.extensions.agents.profiling import Profiling
from tuner.extensions.agents.rounds import Author, Rounds
from tuner.extensions.agents.tools.tool_session import ToolSession
from tuner.extensions.agents.tree import policy
from tuner.extensions.agents.widen_ranges import WideningAgent
from tuner.model.errors import AgentError, InputError
from tuner.model.settings import FILES, LITERAL, MCP, RunConfig
from tuner.session.events import Said
from tuner.session.rounds import over
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates

if TYPE_CHECKING:
    from tuner.app.authors import RunRounds


@dataclass(frozen=True, slots=True)
class AgentAuthoring:
    """Who will write further candidates of a plan, and what profiles them on its device."""

    agent: Agent
    plan: Plan
    device: Device
    profiling: Profiling

    @property
    def run_rounds(self) -> RunRounds:
        return rounds_by(self.author_in)

    def author_in(self, session: Session, candidates: Candidates) -> Author:
        """Prepare the agent for a session."""
        plan, profiling, info = self.plan, self.profiling, self.device.info
        if isinstance(self.agent, OpenAIAgent):
            # What earlier runs of the session spent.
            self.agent.budget.remember(event.entry for event in session.events(Said))
        sources = (*plan.spec.include_dirs, *plan.config.sources)
        of_session = plan, session, candidates, profiling, sources
        tools = ToolSession(*of_session, info=info, reporting=profiling.evaluator_of)

        def brief(number: int, base: str | None, phases_s: Mapping[str, float]) -> Briefing:
            # Only now: the profile that comes before the first round says how deep it went.
            degree = profiling.degree_in(session) if plan.config.profile else None
            briefer = Briefer(plan, session, candidates, info, degree)
            return briefer.of(number, base, phases_s)

        return Author(
            agent=self.agent,
            policy=policy(plan.config.policy),
            briefing=brief,
            toolbox=tools.open_round,
            profiling=profiling if plan.config.profile else None,
            verifies="verify" in self.device.capabilities,
        )

    def early_warning(self, session: Session, rounds: int) -> str:
        """Where a round is left, ask whether the agent can be had; say why not, "" if so."""
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
    return lambda run: Rounds(run, author(run.session, run.candidates)).run()


def agent_of(config: RunConfig, options: RunOptions) -> Agent:
    """Make the agent that a run's settings name; raise `InputError` where that can't be."""
    if config.agent == MCP:
        raise InputError(
            "a client of the Model Context Protocol leads the rounds of this session",
            remedy="go on with `tune mcp`: its tool `start` takes the folder as `resume`",
        )
    if config.agent == FILES:
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
        return WideningAgent()
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
