"""The agent that is a model behind an OpenAI-compatible server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from tuner.agent.base import Answer, Briefing, Conversation, Idea, Member, Toolbox, Transcript
from tuner.agent.budget import Budget
from tuner.agent.client import ChatClient
from tuner.agent.dialogue import MOST_CALLS, Dialogue
from tuner.agent.endpoint import Endpoint
from tuner.agent.prompts import prompt
from tuner.agent.refusals import Backoff
from tuner.agent.replies import MOST_EXPECTATIONS, plan_schema, read_answer, read_plan
from tuner.errors import ReplyError
from tuner.profiler.base import METRICS

# How often a plan that cannot be read is asked for again.
MOST_REPLANS = 3


class OpenAIAgent:
    """Let a model plan and write; all its rounds share the budget and what the server can do.

    `base_url` stands for OPENAI_BASE_URL. Raises `AgentError` where neither an address nor a key
    is known. `timeout_s` is the longest silence of the server that is waited through.
    """

    def __init__(
        self,
        model: str,
        budget: Budget,
        *,
        base_url: str | None = None,
        timeout_s: float = 300.0,
        environ: Mapping[str, str] = os.environ,
        backoff: Backoff | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        endpoint = Endpoint.of(environ, base_url)
        self._client = ChatClient(endpoint, model, budget, timeout_s, backoff or Backoff(), sleep)

    @property
    def name(self) -> str:
        """`openai:` and the model's name."""
        return f"openai:{self._client.model}"

    @property
    def budget(self) -> Budget:
        """What may be spent, and is."""
        return self._client.budget

    def check(self) -> None:
        """Raise `AgentError` for no server, a refused key and an unknown model; costs nothing."""
        self._client.check()

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        """Open the conversation of one round; nothing is sent before `plan`."""
        return Round(Dialogue(self._client, toolbox, transcript), briefing)


class Round:
    """One round with the model: each request goes on with the same messages."""

    def __init__(self, dialogue: Dialogue, briefing: Briefing) -> None:
        self._dialogue = dialogue
        self._briefing = briefing
        self._idea: Idea | None = None

    def plan(self) -> Idea:
        """Get the plan; raise `ReplyError` for one that stays unreadable."""
        # What is the same in every round comes first: servers cache what requests begin with.
        self._dialogue.say("system", prompt("system"))
        self._dialogue.say("user", self._briefing.stable)
        self._dialogue.say("user", self._plan_request())
        schema = plan_schema(self._briefing)
        for _ in range(MOST_REPLANS):
            try:
                return self._read_plan(schema)
            except ReplyError as error:
                self._dialogue.say("user", prompt("replan", problem=str(error)))
        return self._read_plan(schema)

    def refactor(self) -> Answer:
        """Get the template and the space of the plan."""
        if self._idea is None:
            raise RuntimeError("`plan` comes before `refactor`")
        self._dialogue.say("user", self._refactor_request(self._idea))
        return read_answer(self._dialogue.reply())

    def repair(self, problem: str) -> Answer:
        """Get both again, after what was wrong with them."""
        self._dialogue.say("user", prompt("repair", problem=problem))
        return read_answer(self._dialogue.reply())

    def _read_plan(self, schema: Mapping[str, Any]) -> Idea:
        self._idea = read_plan(self._dialogue.reply(schema), self._briefing)
        return self._idea

    def _plan_request(self) -> str:
        names = [member.name for member in self._briefing.population]
        return prompt(
            "plan",
            current=self._briefing.current,
            round=self._briefing.round,
            base=self._briefing.base,
            example=next(iter(names), ""),
            population=", ".join(names),
            tools=self._dialogue.has_tools,
            most_calls=MOST_CALLS,
            most_expectations=MOST_EXPECTATIONS,
            metrics=[
                (name, f"{meaning}, in {unit}" if unit else meaning)
                for name, (unit, meaning) in METRICS.items()
            ],
        )

    def _refactor_request(self, idea: Idea) -> str:
        names = dict.fromkeys(name for name in (idea.base, idea.reference) if name)
        members = [self._briefing.member(name) for name in names]
        return prompt(
            "refactor",
            base=idea.base,
            reference=idea.reference,
            members=[member for member in members if not self._shown(member)],
        )

    def _shown(self, member: Member) -> bool:
        told = self._briefing.stable + self._briefing.current
        return member.template.strip() in told and member.space.strip() in told
