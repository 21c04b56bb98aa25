"""Which agent was asked for, and with what: the options of a run, or those a session began with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.cli.plans import Request
    from tuner.session import Manifest

AUTO, LITERAL, OPENAI, FILES = "auto", "literal", "openai", "files"
# The client of `tune mcp`: no option names it.
MCP = "mcp"
AGENTS = (AUTO, LITERAL, OPENAI, FILES)
MCTS, GREEDY, LLM = "mcts", "greedy", "llm"
POLICIES = (MCTS, GREEDY, LLM)
# With fewer rounds a tree search loses to building on the best: it has no time to be wrong and
# come back (tests/unit/agent/test_policies.py simulates both).
MCTS_ROUNDS = 16
# Without a number, an agent that can think gets so many rounds.
DEFAULT_ROUNDS = 4
# What a draft is widened by at most: each round doubles a range.
LITERAL_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Which agent writes, and with what; budgets are None where there is no such limit."""

    agent: str
    model: str = ""
    rounds: int = 0
    policy: str = GREEDY
    max_tokens: int | None = None
    max_cost: float | None = None
    prices: Path | None = None
    exchange: Path | None = None
    wait_s: float | None = None
    sources: tuple[Path, ...] = ()

    @classmethod
    def asked(cls, request: Request, *, drafted: bool = False) -> AgentOptions:
        """Complete what the command line says; raise `UsageError` where parts do not fit.

        A key in the environment alone sends nothing anywhere: a model has to be named.
        """
        agent = request.agent
        if agent == AUTO:
            agent = OPENAI if request.model else FILES if request.exchange else LITERAL
        _require_fitting(agent, request)
        rounds = request.rounds
        if rounds is None:
            literal = LITERAL_ROUNDS if drafted else 0
            rounds = literal if agent == LITERAL else DEFAULT_ROUNDS
        return cls(
            agent=agent,
            model=request.model or "",
            rounds=rounds,
            policy=request.policy or (GREEDY if rounds < MCTS_ROUNDS else MCTS),
            max_tokens=request.max_tokens,
            max_cost=request.max_cost,
            prices=request.prices,
            exchange=request.exchange,
            wait_s=request.wait,
            sources=request.sources,
        )

    @classmethod
    def resumed(cls, manifest: Manifest, request: Request) -> AgentOptions:
        """Take what the session began with; budgets, rounds and folders may be given anew."""
        kept = manifest.agent_options
        options = cls(
            agent=manifest.agent or LITERAL,
            model=kept.get("model", ""),
            rounds=manifest.rounds,
            policy=manifest.policy,
            max_tokens=int(kept["max_tokens"]) if "max_tokens" in kept else None,
            max_cost=float(kept["max_cost"]) if "max_cost" in kept else None,
            prices=Path(kept["prices"]) if "prices" in kept else None,
            exchange=Path(kept["exchange"]) if "exchange" in kept else None,
            sources=tuple(map(Path, filter(None, kept.get("sources", "").split("\n")))),
        )
        changed = {
            name: getattr(request, name)
            for name in ("rounds", "max_tokens", "max_cost", "prices", "exchange", "sources")
            if name in request.given
        }
        return replace(options, **changed, wait_s=request.wait)

    def kept(self) -> Mapping[str, str]:
        """Write what the manifest keeps of them."""
        found = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "max_cost": self.max_cost,
            "prices": self.prices and self.prices.resolve(),
            "exchange": self.exchange and self.exchange.resolve(),
            "sources": "\n".join(str(path.resolve()) for path in self.sources),
        }
        return {name: str(value) for name, value in found.items() if value not in (None, "")}


def _require_fitting(agent: str, request: Request) -> None:
    if agent == OPENAI and not request.model:
        raise click.UsageError("--agent openai needs the name of a model: --model NAME")
    if agent == FILES and request.exchange is None:
        raise click.UsageError("--agent files needs a folder to write to: --exchange DIR")
    misplaced = {
        OPENAI: ("model", "max_tokens", "max_cost", "prices"),
        FILES: ("exchange", "wait"),
    }
    for owner, names in misplaced.items():
        given = [f"--{name.replace('_', '-')}" for name in names if name in request.given]
        if given and agent != owner:
            raise click.UsageError(f"{', '.join(given)} is for --agent {owner}, not for {agent}")
