"""Make the agent that was asked for; what is wrong with its options is told first of all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tuner.errors import AgentError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.agent.base import Agent
    from tuner.cli.agent_options import AgentOptions
    from tuner.session import Session


def agent_for(options: AgentOptions) -> Agent:
    """Make an agent that has said nothing yet.

    Raises `InputError` for a file of prices or a folder that cannot be used. One that cannot be
    reached is made all the same: the run has a template to go on with.
    """
    from tuner.cli.agent_options import FILES, LITERAL, MCP

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
        from tuner.agent.literal import LiteralAgent

        return LiteralAgent()
    from tuner.agent.budget import Budget, read_prices
    from tuner.agent.openai_agent import OpenAIAgent
    from tuner.agent.unreachable import Unreachable

    price, currency = None, "USD"
    if options.prices is not None:
        prices = read_prices(options.prices)
        price, currency = prices.of(options.model), prices.currency
    budget = Budget(options.max_tokens, options.max_cost, price, currency)
    try:
        return OpenAIAgent(options.model, budget, environ=os.environ)
    except AgentError as error:
        return Unreachable(f"openai:{options.model}", error)


def remember(agent: Agent, session: Session) -> None:
    """Count against the budget what earlier runs of a session spent."""
    from tuner.agent.openai_agent import OpenAIAgent
    from tuner.transcript import SAID

    if isinstance(agent, OpenAIAgent):
        agent.budget.remember(note.content for note in session.notes(kind=SAID))


def early_warning(agent: Agent) -> str:
    """Ask whether an agent can be had, which costs nothing; say in one line why not, "" if so."""
    from tuner.agent.openai_agent import OpenAIAgent
    from tuner.agent.unreachable import Unreachable

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
