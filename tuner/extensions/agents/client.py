"""One model behind an OpenAI-compatible server: requests within a budget, replies put together."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tuner.extensions.agents.budget import Estimate, TokenBudget, Usage
from tuner.extensions.agents.endpoint import (
    FORMAT,
    LIMIT,
    ROLES,
    SCHEMA,
    STREAM,
    TOOLS,
    USAGE,
    Capabilities,
    Endpoint,
    LateError,
    OversizedError,
)
from tuner.extensions.agents.replies import repair_surrogates
from tuner.model.errors import AgentError, ReplyError
from tuner.session.events import Tool

if TYPE_CHECKING:
    from openai import OpenAI

    from tuner.extensions.agents.reply_limits import ReplyGuard

# No reply is longer or calls more tools; what comes after is not read.
MOST_CHARS = 400_000
MOST_CALLS_AT_ONCE = 64
# A larger number of tokens is none, nor is one that would make a token this long.
MOST_COUNT = 1 << 53
MOST_TOKEN_CHARS = 30


@dataclass(slots=True)
class Assembly:
    """A reply that is still coming in.

    `begun` says that the server has begun to stream it. `pieces` counts the chunks that brought
    text: each is one token or more.
    """

    begun: bool = False
    finish: str = ""
    model: str = ""
    pieces: int = 0
    chars: int = 0
    usage: Usage | None = None
    # By "content", "refusal" and "reasoning", and by the number of a call its arguments.
    _texts: defaultdict[str | int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _calls: list[dict[str, Any]] = field(default_factory=list)
    _slots: dict[int, int] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return self.chars > MOST_CHARS or len(self._calls) >= MOST_CALLS_AT_ONCE

    def add(self, chunk: Any) -> None:
        """Add a chunk of a stream; the client library checks no types and omits many fields."""
        self.model = self.model or _text(chunk, "model")
        self.usage = _usage(chunk) or self.usage
        for choice in _list(chunk, "choices"):
            self.finish = _text(choice, "finish_reason") or self.finish
            # A reply that is not streamed is one whole message.
            whole = getattr(choice, "message", None)
            delta = getattr(choice, "delta", None) or whole
            self._take("content", getattr(delta, "content", None))
            self._take("refusal", getattr(delta, "refusal", None))
            reasoning = getattr(delta, "reasoning_content", None)
            self._take("reasoning", reasoning or getattr(delta, "reasoning", None))
            for number, call in enumerate(_list(delta, "tool_calls")):
                index = number if whole is not None else getattr(call, "index", None)
                self._add_call(call, index if isinstance(index, int) else None)
                if self.full:
                    return

    def text(self, key: str | int) -> str:
        # JSON escapes the two halves of a character apart, and a chunk may end between them.
        return repair_surrogates("".join(self._texts[key]))

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text("content")}
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": self.text(slot)}}
                for slot, call in enumerate(self._calls)
            ]
        return message

    def _take(self, key: str | int, text: object) -> None:
        if isinstance(text, str) and text:
            self._texts[key].append(text)
            self.chars += len(text)
            self.pieces += 1

    def _add_call(self, delta: Any, index: int | None) -> None:
        # Some servers give no index, and some the index 0 to every call of a reply: a new id
        # begins a new call all the same.
        slot = len(self._calls) - 1 if index is None else self._slots.get(index, -1)
        known = _text(delta, "id")
        if slot < 0 or (known and self._calls[slot]["id"] != known):
            slot = len(self._calls)
            call = {"id": known or f"call_{slot}", "type": "function", "function": {"name": ""}}
            self._calls.append(call)
            if index is not None:
                self._slots[index] = slot
        asked, function = getattr(delta, "function", None), self._calls[slot]["function"]
        if not function["name"]:
            function["name"] = _text(asked, "name")
            self.chars += len(function["name"])
        self._take(slot, getattr(asked, "arguments", None))


def _as_object(value: dict[str, Any]) -> object:
    return SimpleNamespace(**value)


def _text(value: object, name: str) -> str:
    found = getattr(value, name, None)
    return found if isinstance(found, str) else ""


def _list(value: object, name: str) -> list[Any]:
    found = getattr(value, name, None)
    return found if isinstance(found, list) else []


def _count(value: object, name: str) -> int | None:
    found = getattr(value, name, None)
    if isinstance(found, int | float) and 0 <= found <= MOST_COUNT:
        return int(found)
    return None


def _usage(response: object) -> Usage | None:
    usage = getattr(response, "usage", None)
    sent, written = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))
    if sent is None:
        return None
    cached = _count(getattr(usage, "prompt_tokens_details", None), "cached_tokens") or 0
    return Usage(sent, min(cached, sent), written or 0)


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked: the messages so far, the tools, and the JSON schema of the reply if any.

    `may_call` is False where the tools stay listed, for the server's cache, and may not be used.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool] = ()
    schema: Mapping[str, Any] | None = None
    may_call: bool = True

    def request(self, model: str, given_up: set[str]) -> dict[str, Any]:
        messages = _merge_roles(self.messages) if ROLES in given_up else list(self.messages)
        request: dict[str, Any] = {"model": model, "messages": messages}
        request["stream"] = STREAM not in given_up
        if not {STREAM, USAGE} & given_up:
            request["stream_options"] = {"include_usage": True}
        if self.tools and TOOLS not in given_up:
            request["tools"] = [
                {"type": "function", "function": asdict(tool)} for tool in self.tools
            ]
            if not self.may_call:
                request["tool_choice"] = "none"
        if self.schema is not None and FORMAT not in given_up:
            strict = {"name": "plan", "strict": True, "schema": dict(self.schema)}
            request["response_format"] = (
                {"type": "json_object"}
                if SCHEMA in given_up
                else {"type": "json_schema", "json_schema": strict}
            )
        return request


def _merge_roles(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge neighbours that a user wrote, the system's text among them.

    The chat templates of some open models know no system message and want roles to alternate.
    """
    merged: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message["role"] == "system" else message["role"]
        if merged and role == "user" and merged[-1]["role"] == "user":
            merged[-1]["content"] += f"\n\n{message['content']}"
        else:
            merged.append({**message, "role": role})
    return merged


def _prompt_chars(request: Mapping[str, Any]) -> int:
    counted = [request["messages"], request.get("tools"), request.get("response_format")]
    return len(json.dumps(counted, ensure_ascii=False))


# A reply that is still coming in after so long ends there, however little comes at a time.
LONGEST_REPLY_S = 3600.0
# How long the count of tokens is waited for once a reply has ended.
USAGE_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 5.0
CHECK_TIMEOUT_S = 20.0
# Of what a server lists: others are not looked at.
MOST_MODELS = 2000
MOST_NAME_CHARS = 200

JSON = "application/json"
# What servers answer that mind a parameter, and those that have no list of models.
_REFUSING = (400, 422, 501)
_NO_LIST = (*_REFUSING, 404, 405)
# OpenAI's code, and llama.cpp's type.
_TOO_LONG = ("context_length_exceeded", "exceed_context_size_error")
_UNKNOWN_PARAMETER = ("unsupported_parameter", "unknown_parameter")


class ToolsRefusedError(Exception):
    """Report that the server takes no tools, so that the model can be told before it is asked."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole reply with what it took; `request` is what was asked, without the messages.

    `message` goes back to the server in the next request, and `reasoning` is text that the model
    wrote for itself.
    """

    message: dict[str, Any]
    usage: Usage
    cost: float | None
    model: str
    finish_reason: str
    seconds: float
    request: dict[str, Any]
    refusal: str
    reasoning: str


# Hears of every failed request: what happened, what it used all the same and what that cost.
Failed = Callable[[str, Usage | None, float | None], None]


@dataclass(slots=True)
class ChatClient:
    """Ask one model; what the server turned out not to take is remembered.

    `timeout_s` is the longest silence that is waited through, `longest_s` what a whole reply takes.
    Where no reply begins, the SDK asks again, `retries` times; where one breaks off, this client
    does, each time after `pause_s` more.
    """

    endpoint: Endpoint
    model: str
    budget: TokenBudget
    timeout_s: float = 300.0
    retries: int = 3
    pause_s: float = 1.0
    longest_s: float = LONGEST_REPLY_S
    capabilities: Capabilities = field(default_factory=Capabilities)
    _estimate: Estimate = field(default_factory=Estimate)
    _opened: tuple[OpenAI, ReplyGuard] | None = field(default=None, repr=False)

    def complete(self, ask: Ask, failed: Failed) -> Completion:
        """Get one whole reply.

        Raises `BudgetError` before a request that could exceed the budget, `ReplyError` for a
        conversation that is too long for the model, `ToolsRefusedError` once for a server
        without tools, and `AgentError` where no reply can be had.
        """
        broken_off = 0
        while True:
            request = ask.request(self.model, self.capabilities.given_up)
            most = self.budget.allow(self._estimate.tokens(_prompt_chars(request)))
            if most is not None:
                limit = "max_tokens" if LIMIT in self.capabilities.given_up else LIMIT
                request[limit] = min(most, self.capabilities.ceiling)
            assembly, began_s = Assembly(), time.monotonic()
            try:
                self._receive(request, assembly, most)
            except _transport_errors() as error:
                usage = self._usage_of(request, assembly, most) if assembly.chars else None
                cost = None if usage is None else self.budget.spend(usage)
                failed(self.endpoint.describe(error), usage, cost)
                if _is_refusal(error):
                    self._ask_otherwise(error, request)
                    continue
                broken_off += 1
                if not _breaks_off(error, assembly) or broken_off > self.retries:
                    raise self._give_up(error) from error
                time.sleep(self.pause_s * broken_off)
            else:
                usage = self._usage_of(request, assembly, most)
                self.capabilities.taken |= request.keys()
                asked = {key: value for key, value in request.items() if key != "messages"}
                if "tools" in asked:
                    asked["tools"] = [tool["function"]["name"] for tool in asked["tools"]]
                if "response_format" in asked:
                    asked["response_format"] = asked["response_format"]["type"]
                return Completion(
                    message=assembly.message(),
                    usage=usage,
                    cost=self.budget.spend(usage),
                    model=assembly.model or self.model,
                    finish_reason=assembly.finish,
                    seconds=round(time.monotonic() - began_s, 3),
                    request=asked,
                    refusal=assembly.text("refusal"),
                    reasoning=assembly.text("reasoning"),
                )

    def check(self) -> None:
        """Ask the server for its models, which costs nothing.

        Raises `AgentError` where there is no server, where it refuses the key and where it lists
        models without this one. Servers that have no list pass.
        """
        try:
            server, guard = self._open()
            # Silence is told before slowness.
            with guard.reply(2 * CHECK_TIMEOUT_S * (self.retries + 1), streamed=False):
                answer = server.get("/models", cast_to=object, options={"timeout": CHECK_TIMEOUT_S})
        except _transport_errors() as error:
            if getattr(error, "status_code", None) in _NO_LIST:
                return
            raise self._give_up(error) from error
        data = answer.get("data") if isinstance(answer, Mapping) else None
        models = data if isinstance(data, list) else []
        listed = [model.get("id") for model in models if isinstance(model, Mapping)]
        names = [n for n in listed if isinstance(n, str) and len(n) <= MOST_NAME_CHARS]
        # Ollama lists `name:latest` for what answers to `name`.
        if not names or self.model in names or f"{self.model}:latest" in names:
            return
        near = get_close_matches(self.model, names[:MOST_MODELS], n=5, cutoff=0.3) or names[:5]
        raise AgentError(
            f"{self.endpoint.shown} has no model {self.model!r}",
            remedy=self.endpoint.redact(
                f"it lists {len(names)}, among them {', '.join(near)}: --model NAME"
            ),
        )

    def _open(self) -> tuple[OpenAI, ReplyGuard]:
        if self._opened is None:
            from openai import DefaultHttpxClient, OpenAI, Timeout

            from tuner.extensions.agents.reply_limits import MOST_REDIRECTS, ReplyGuard

            guard = ReplyGuard()
            client = DefaultHttpxClient(event_hooks=guard.hooks, max_redirects=MOST_REDIRECTS)
            server = OpenAI(
                api_key=self.endpoint.key or "none",  # the client insists on one
                base_url=self.endpoint.url,
                timeout=Timeout(self.timeout_s, connect=CONNECT_TIMEOUT_S),
                max_retries=self.retries,
                http_client=client,
                # Minutes pass between two rounds, and forked children would inherit the socket.
                default_headers={"Connection": "close", "Accept-Encoding": "identity"},
            )
            self._opened = server, guard
        return self._opened

    def _receive(self, request: dict[str, Any], assembly: Assembly, left: int | None) -> None:
        """Read a reply as far as it may go; `left` is how many tokens the budget has for it."""
        server, guard = self._open()
        create = server.chat.completions.create
        most = request.get(LIMIT, request.get("max_tokens"))
        try:
            with guard.reply(self.longest_s, streamed=request["stream"]):
                if not request["stream"]:
                    assembly.add(create(**request))
                    assembly.finish = "length" if assembly.full else assembly.finish
                    return
                with create(**request) as stream:
                    assembly.begun = True
                    if JSON in stream.response.headers.get("content-type", ""):
                        # The server sends the whole reply although it was asked for a stream.
                        self.capabilities.given_up.add(STREAM)
                        whole = json.loads(stream.response.read(), object_hook=_as_object)
                        assembly.add(whole)
                    for chunk in stream:
                        ended = bool(assembly.finish)
                        assembly.add(chunk)
                        if assembly.finish and not ended:
                            guard.hurry(min(USAGE_TIMEOUT_S, self.longest_s))
                        # Some servers take a limit and don't keep it.
                        over = most is not None and assembly.pieces > most
                        spent = left is not None and self._count_written(assembly) > left
                        if over or spent or assembly.full:
                            assembly.finish = "length"
                            return
                if not assembly.finish:
                    if not assembly.chars:  # it may stream nothing: ask for the whole reply
                        self.capabilities.given_up.add(STREAM)
                    raise ValueError("it ended early")
        except _transport_errors() as error:
            if isinstance(error, LateError) and assembly.chars:
                assembly.finish = assembly.finish or "length"
            if not assembly.finish:  # else only the usage is missing
                raise

    def _count_written(self, assembly: Assembly) -> int:
        return max(assembly.pieces, self._estimate.tokens(assembly.chars))

    def _usage_of(self, request: Mapping[str, Any], assembly: Assembly, left: int | None) -> Usage:
        """Take the server's count, or an estimate where it has none or one that cannot be."""
        chars, usage = _prompt_chars(request), assembly.usage
        if usage is not None and (
            usage.input_tokens * MOST_TOKEN_CHARS >= chars
            and usage.output_tokens * MOST_TOKEN_CHARS >= assembly.chars
        ):
            self._estimate.learn(chars, usage.input_tokens)
            return usage
        written = self._count_written(assembly)
        # What comes beyond the limit that was asked for is neither taken nor counted.
        return Usage(
            self._estimate.tokens(chars), 0, written if left is None else min(written, left)
        )

    def _ask_otherwise(self, error: Any, request: Mapping[str, Any]) -> None:
        """Give up what the server minds; raise where nothing of the request is left to give up."""
        # `tools[0].function.parameters` is about the tools.
        named = re.split(r"[.\[]", error.param)[0] if isinstance(error.param, str) else ""
        too_long = error.code in _TOO_LONG or error.type in _TOO_LONG
        unknown = error.code in _UNKNOWN_PARAMETER
        had_tools = TOOLS not in self.capabilities.given_up
        if not too_long and self.capabilities.give_up(named, request, unknown=unknown):
            if had_tools and TOOLS in self.capabilities.given_up:
                raise ToolsRefusedError
            return
        # What answered before refuses this conversation, not the way it is asked.
        if too_long or self.capabilities.taken:
            raise ReplyError(
                "the server refuses the conversation, which may be too long for the model: "
                f"{self.endpoint.describe(error)}",
                remedy="use a model with a longer context",
            )
        raise self._give_up(error)

    def _give_up(self, error: Exception) -> AgentError:
        text = self.endpoint.describe(error)
        if getattr(error, "code", None) == "model_not_found":
            text = f"there is no model {self.model!r}: {text}"
        elif _may_pass(error):
            text = f"no reply after {self.retries + 1} tries: {text}"
        return AgentError(text, remedy=self.endpoint.remedy(error))


def _transport_errors() -> tuple[type[Exception], ...]:
    import httpx2
    import openai

    # What is sent is no JSON, or no UTF-8, or has too many digits or brackets.
    unreadable = (ValueError, RecursionError)
    return (openai.OpenAIError, httpx2.HTTPError, LateError, OversizedError, *unreadable)


def _is_refusal(error: Exception) -> bool:
    """Say whether the server minds the request as it is; some say so in place of a chunk."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return error.status_code in _REFUSING
    return isinstance(error, openai.APIError) and isinstance(error.param, str)


def _may_pass(error: Exception) -> bool:
    status = getattr(error, "status_code", None)
    if status is None:
        return not isinstance(error, LateError)
    return status in (408, 409, 429) or status >= 500


def _breaks_off(error: Exception, assembly: Assembly) -> bool:
    """Say whether a reply had begun: what comes before that, the SDK has retried."""
    import openai

    if isinstance(error, LateError | openai.APIStatusError):
        return False
    return assembly.begun or not isinstance(error, openai.APIConnectionError)
