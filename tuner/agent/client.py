"""One model behind an OpenAI-compatible server: requests within a budget, tried again with care."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from tuner.agent.budget import Budget, Estimate, Usage
from tuner.agent.endpoint import Endpoint
from tuner.agent.requests import (
    Ask,
    Backoff,
    Capabilities,
    DroppedError,
    Hopeless,
    Refused,
    Temporary,
    build,
    described,
    prompt_chars,
    too_long,
    understand,
)
from tuner.agent.streams import MOST_CHARS, Assembly, Reply
from tuner.model.errors import AgentError, ReplyError

if TYPE_CHECKING:
    from openai import OpenAI

# A reply that is still coming in after so long ends there.
LONGEST_REPLY_S = 3600.0
CONNECT_TIMEOUT_S = 5.0
CHECK_TIMEOUT_S = 20.0

# What servers without a list of models answer.
_NO_LIST = (404, 405, 501)


class ToolsRefusedError(Exception):
    """Report that the server takes no tools, so that the model can be told before it is asked."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply with what it took; `request` is what was asked, without the messages."""

    reply: Reply
    usage: Usage
    cost: float | None
    seconds: float
    request: dict[str, Any]


# Hears of every failed try: what happened, what it used all the same and what that cost.
Failed = Callable[[str, Usage | None, float | None], None]


@dataclass(slots=True)
class ChatClient:
    """Ask one model; what the server turned out not to take is remembered.

    `timeout_s` is the longest silence that is waited through.
    """

    endpoint: Endpoint
    model: str
    budget: Budget
    timeout_s: float = 300.0
    backoff: Backoff = field(default_factory=Backoff)
    sleep: Callable[[float], None] = time.sleep
    capabilities: Capabilities = field(default_factory=Capabilities)
    _estimate: Estimate = field(default_factory=Estimate)
    _made: OpenAI | None = field(default=None, repr=False)

    def complete(self, ask: Ask, failed: Failed) -> Completion:
        """Get one whole reply.

        Raises `BudgetError` before a request that could exceed the budget, `ReplyError` for a
        conversation that is too long for the model, `ToolsRefusedError` once for a server
        without tools, and `AgentError` where no reply can be had.
        """
        failures, broken = 0, _broken()
        while True:
            request = self._request(ask)
            assembly, began_s = Assembly(), time.monotonic()
            try:
                self._receive(request, assembly)
            except broken as error:
                started = assembly.chars > 0
                usage = self._used(request, assembly) if started else None
                cost = None if usage is None else self.budget.spend(usage)
                problem = understand(error, self.endpoint, self.model, started=started)
                failed(problem.text, usage, cost)
            else:
                return self._completion(request, assembly, time.monotonic() - began_s)
            if isinstance(problem, Refused):
                self._ask_otherwise(problem, request)
            else:
                failures += 1
                self._wait(failures, problem)

    def check(self) -> None:
        """Ask the server for its models, which costs nothing.

        Raises `AgentError` where there is no server, where it refuses the key and where it lists
        models without this one. Servers that have no list pass.
        """
        failures, broken = 0, _broken()
        while True:
            try:
                answer = self._openai().get(
                    "/models", cast_to=object, options={"timeout": CHECK_TIMEOUT_S}
                )
                return self._check_listed(answer)
            except broken as error:
                if getattr(error, "status_code", None) in _NO_LIST:
                    return None
                problem = understand(error, self.endpoint, self.model, started=False)
            if isinstance(problem, Refused):
                return None
            failures += 1
            self._wait(failures, problem)

    def _check_listed(self, answer: object) -> None:
        data = answer.get("data") if isinstance(answer, Mapping) else None
        models = data if isinstance(data, list) else []
        names = [
            str(model["id"]) for model in models if isinstance(model, Mapping) and "id" in model
        ]
        # Ollama lists `name:latest` for what answers to `name`.
        if not names or self.model in names or f"{self.model}:latest" in names:
            return
        near = get_close_matches(self.model, names, n=5, cutoff=0.3) or names[:5]
        raise AgentError(
            f"{self.endpoint.shown} has no model {self.model!r}",
            remedy=f"it lists {len(names)}, among them {', '.join(near)}: --model NAME",
        )

    def _openai(self) -> OpenAI:
        if self._made is None:
            from openai import OpenAI, Timeout

            self._made = OpenAI(
                api_key=self.endpoint.key or "none",  # the client insists on one
                base_url=self.endpoint.url,
                timeout=Timeout(self.timeout_s, connect=CONNECT_TIMEOUT_S),
                max_retries=0,
                # Minutes pass between two rounds, and forked children would inherit the socket.
                default_headers={"Connection": "close"},
            )
        return self._made

    def _request(self, ask: Ask) -> dict[str, Any]:
        request = build(ask, self.model, self.capabilities)
        most = self.budget.allow(self._estimate.tokens(prompt_chars(request)))
        if most is not None:
            request[self.capabilities.limit] = min(most, self.capabilities.ceiling)
        return request

    def _receive(self, request: dict[str, Any], assembly: Assembly) -> None:
        most = request.get(self.capabilities.limit)
        ends_s = time.monotonic() + LONGEST_REPLY_S
        create = self._openai().chat.completions.create
        if not request["stream"]:
            assembly.add(create(**request))
            return
        with create(**request) as stream:
            try:
                for chunk in stream:
                    assembly.add(chunk)
                    # Some servers take a limit and don't keep it.
                    over = most is not None and assembly.pieces > most
                    late = time.monotonic() > ends_s
                    if over or late or assembly.chars > MOST_CHARS:
                        assembly.cut()
                        return
            except _broken():
                if not assembly.finish:  # else only the usage is missing
                    raise
        if not assembly.finish:
            raise DroppedError

    def _used(self, request: Mapping[str, Any], assembly: Assembly) -> Usage:
        chars = prompt_chars(request)
        if assembly.usage is not None:
            self._estimate.learn(chars, assembly.usage.input_tokens)
            return assembly.usage
        written = max(assembly.pieces, self._estimate.tokens(assembly.chars))
        return Usage(input_tokens=self._estimate.tokens(chars), output_tokens=written)

    def _completion(
        self, request: Mapping[str, Any], assembly: Assembly, seconds: float
    ) -> Completion:
        self.capabilities.took(request)
        usage = self._used(request, assembly)
        cost = self.budget.spend(usage)
        return Completion(assembly.done(), usage, cost, seconds, described(request))

    def _ask_otherwise(self, problem: Refused, request: Mapping[str, Any]) -> None:
        had_tools = self.capabilities.tools
        if not self.capabilities.give_up(problem.words, request):
            if too_long(problem.words):
                raise ReplyError(
                    f"the conversation is too long for the model: {problem.text}",
                    remedy="use a model with a longer context",
                )
            if not self.capabilities.give_up_any(request):
                raise AgentError(problem.text, remedy="the server refuses the plainest request")
        if had_tools and not self.capabilities.tools:
            raise ToolsRefusedError

    def _wait(self, failures: int, problem: Temporary | Hopeless) -> None:
        if isinstance(problem, Hopeless):
            raise problem.error
        if failures >= self.backoff.tries:
            raise AgentError(
                f"no reply after {failures} tries: {problem.text}",
                remedy="check that the server runs, and OPENAI_BASE_URL",
            )
        self.sleep(self.backoff.wait_s(failures, problem))


def _broken() -> tuple[type[Exception], ...]:
    """List what a failed request raises; the client lets some of what is below it through."""
    import httpx2
    import openai

    return (
        openai.OpenAIError,
        httpx2.HTTPError,
        DroppedError,
        json.JSONDecodeError,
        UnicodeDecodeError,
    )
