"""The agent that is a model behind an OpenAI-compatible server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tuner.extensions.agents.base import AgentAnswer, Briefing, Conversation, Toolbox, Transcript
from tuner.extensions.agents.budget import TokenBudget, Usage
from tuner.extensions.agents.client import Ask, ChatClient, ToolsRefusedError
from tuner.extensions.agents.endpoint import TOOLS, Endpoint
from tuner.extensions.agents.prompts import own_sections, prompt
from tuner.extensions.agents.replies import (
    MEANINGS,
    MOST_EXPECTATIONS,
    SLOWEST_DEFAULT,
    plan_schema,
    read_answer,
    read_plan,
    repair_surrogates,
)
from tuner.model.errors import AgentError, ReplyError
from tuner.session.events import Idea

# In one round; a model that wants more is told to answer.
MOST_CALLS = 24
# How many replies with calls are borne after that.
MOST_IGNORED = 3
MOST_TOOL_CHARS = 20_000

Message = dict[str, Any]


class Dialogue:
    """Say something, hear the reply; the model's tool calls are answered in between.

    Nothing that was said is changed or taken back, so each request begins as the one before.
    """

    def __init__(self, client: ChatClient, toolbox: Toolbox, transcript: Transcript) -> None:
        self._client, self._toolbox, self._transcript = client, toolbox, transcript
        self._tools = tuple(toolbox.tools())
        self._messages: list[Message] = []
        self._calls = self._ignored = 0
        self._told_no_tools = False

    @property
    def has_tools(self) -> bool:
        return bool(self._tools) and TOOLS not in self._client.capabilities.given_up

    def say(self, role: str, content: str) -> None:
        """Add a message; a resumed round takes the stored one."""
        self._add(role, lambda: {"role": role, "content": repair_surrogates(content)})

    def reply(self, schema: Mapping[str, Any] | None = None) -> str:
        """Hear the model's text, after all its tool calls.

        Raises `ReplyError` for a reply that was cut off, is empty or is a refusal.
        """
        while True:
            entry = self._heard_reply() or self._ask(schema)
            message: Message = entry["message"]
            self._messages.append(_sendable(message))
            calls = message.get("tool_calls", [])
            if not calls:
                return _text(message, entry)
            if self._calls >= MOST_CALLS:
                self._ignored += 1
            for call in calls:
                self._add("tool", lambda call=call: self._result(call))  # type: ignore[misc]
                self._calls += 1
            if self._ignored >= MOST_IGNORED:
                raise ReplyError(
                    f"the model goes on calling tools after its {MOST_CALLS} calls of the round"
                )
            if self._calls >= MOST_CALLS and not self._ignored:
                self.say("user", prompt("no_more_calls", most_calls=MOST_CALLS))

    def _ask(self, schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
        while True:
            ask = Ask(self._messages, self._tools, schema, may_call=self._calls < MOST_CALLS)
            try:
                entry = {"type": "reply", **asdict(self._client.complete(ask, self._keep_failure))}
                for key in ("refusal", "reasoning"):
                    if not entry[key]:
                        del entry[key]
                self._keep(entry)
                return entry
            except ToolsRefusedError:
                if not self._told_no_tools:
                    self.say("user", prompt("no_tools"))
                    self._told_no_tools = True

    def _result(self, call: Message) -> Message:
        name, written = call["function"]["name"], call["function"]["arguments"]
        known = [tool.name for tool in self._tools]
        if self._calls >= MOST_CALLS:
            text = f"not run: the {MOST_CALLS} tool calls of this round are used up"
        elif name not in known:
            text = f"there is no tool {name!r}; there are: {', '.join(known) or 'none'}"
        elif (arguments := _arguments(written)) is None:
            text = f"not run: the arguments are no JSON object: {written[:200]!r}"
        else:
            text = self._toolbox.call(name, arguments)
        if len(text) > MOST_TOOL_CHARS:
            left_out = len(text) - MOST_TOOL_CHARS
            text = f"{text[:MOST_TOOL_CHARS]}\n[{left_out} more characters are left out]"
        return {"role": "tool", "tool_call_id": call["id"], "content": repair_surrogates(text)}

    def _add(self, role: str, make: Callable[[], Message]) -> None:
        entry = self._next_kept()
        if entry is None:
            message = make()
            self._keep({"type": "message", "message": message})
        else:
            message = _message_by(role, entry)
        self._messages.append(message)

    def _heard_reply(self) -> Mapping[str, Any] | None:
        """Take the reply that was heard then, with what was said before it of missing tools."""
        entry = self._next_kept()
        if entry is not None and entry["type"] == "message":
            self._messages.append(_message_by("user", entry))
            self._told_no_tools = True
            entry = self._next_kept()
        if entry is not None and entry["type"] != "reply":
            raise _other_transcript(f"a {entry['type']} instead of a reply")
        return entry

    def _next_kept(self) -> Mapping[str, Any] | None:
        """Take what an earlier run kept next; None where this run goes on by itself."""
        while (entry := self._transcript.again()) is not None:
            if entry["type"] != "failure":
                return entry
        return None

    def _keep_failure(self, error: str, usage: Usage | None, cost: float | None) -> None:
        entry: dict[str, Any] = {"type": "failure", "error": error}
        if usage is not None:
            entry |= {"usage": asdict(usage), "cost": cost}
        self._keep(entry)

    def _keep(self, entry: Mapping[str, Any]) -> None:
        self._transcript.keep(self._client.endpoint.redacted_entry(entry))


def _message_by(role: str, entry: Mapping[str, Any]) -> Message:
    found = entry["message"]["role"]
    if entry["type"] != "message" or found != role:
        raise _other_transcript(f"a {entry['type']} by {found!r} instead of one by {role!r}")
    return dict(entry["message"])


def _text(message: Message, entry: Mapping[str, Any]) -> str:
    text, finish = str(message["content"]), entry["finish_reason"]
    if finish == "length":
        written = entry["usage"]["output_tokens"]
        raise ReplyError(
            f"the reply was cut off after {written} tokens; answer again, shorter but whole"
        )
    if finish == "content_filter":
        raise ReplyError("the server's content filter cut the reply off")
    if not text.strip():
        refusal = entry.get("refusal")
        raise ReplyError(f"the model refused: {refusal}" if refusal else "the reply is empty")
    return text


def _sendable(message: Message) -> Message:
    """Make the message that goes back to the server, whose template may parse the arguments."""
    calls = [
        call
        if _arguments(call["function"]["arguments"]) is not None
        else {**call, "function": {**call["function"], "arguments": "{}"}}
        for call in message.get("tool_calls", [])
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def _arguments(written: str) -> dict[str, Any] | None:
    try:
        arguments = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _other_transcript(difference: str) -> AgentError:
    return AgentError(
        f"the round's transcript does not fit: {difference}",
        remedy="it may be another version's; start a new session",
    )


# How often a plan that cannot be read is asked for again.
MOST_REPLANS = 3


class OpenAIAgent:
    """Let a model plan and write; all its rounds share the budget and what the server can do.

    Raises `AgentError` where neither an address nor a key is known.
    """

    def __init__(
        self, model: str, budget: TokenBudget, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.client = ChatClient(Endpoint.of(environ), model, budget)

    @property
    def name(self) -> str:
        return f"openai:{self.client.model}"

    @property
    def budget(self) -> TokenBudget:
        return self.client.budget

    def check(self) -> None:
        self.client.check()

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        return ModelRound(Dialogue(self.client, toolbox, transcript), briefing)


class ModelRound(Conversation):
    """One round with the model: each request goes on with the same messages."""

    def __init__(self, dialogue: Dialogue, briefing: Briefing) -> None:
        self._dialogue, self._briefing = dialogue, briefing
        self._idea: Idea | None = None

    def plan(self) -> Idea:
        # What is the same in every round comes first: servers cache what requests begin with.
        self._dialogue.say("system", prompt("system"))
        self._dialogue.say("user", self._briefing.stable)
        names = [member.name for member in self._briefing.population]
        request = prompt(
            "plan",
            current=self._briefing.current,
            round=self._briefing.round,
            base=self._briefing.base,
            example=next(iter(names), ""),
            population=", ".join(names),
            tools=self._dialogue.has_tools,
            most_calls=MOST_CALLS,
            most_expectations=MOST_EXPECTATIONS,
            metrics=MEANINGS,
            slowest=SLOWEST_DEFAULT,
        )
        self._dialogue.say("user", request)
        schema = plan_schema(self._briefing)
        for _ in range(MOST_REPLANS):
            try:
                self._idea = read_plan(self._dialogue.reply(schema), self._briefing)
            except ReplyError as error:
                self._dialogue.say("user", prompt("replan", problem=str(error)))
            else:
                return self._idea
        self._idea = read_plan(self._dialogue.reply(schema), self._briefing)
        return self._idea

    def refactor(self) -> AgentAnswer:
        if self._idea is None:
            raise RuntimeError("`plan` comes before `refactor`")
        idea, told = self._idea, self._briefing.stable + self._briefing.current
        names = dict.fromkeys(name for name in (idea.base, idea.reference) if name)
        hidden = [
            member
            for member in map(self._briefing.member, names)
            if member.template.strip() not in told or own_sections(member.space) not in told
        ]
        request = prompt("refactor", base=idea.base, reference=idea.reference, members=hidden)
        self._dialogue.say("user", request)
        return read_answer(self._dialogue.reply())

    def repair(self, problem: str) -> AgentAnswer:
        self._dialogue.say("user", prompt("repair", problem=problem))
        return read_answer(self._dialogue.reply())


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Raise the same error whenever it is asked for anything."""

    name: str
    error: AgentError

    def check(self) -> None:
        raise self.error

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        raise self.error
