"""Which server an agent talks to, with the key that nobody else may see."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from tuner.model.errors import AgentError
from tuner.session.events import Tool

if TYPE_CHECKING:
    from openai import APIStatusError

OPENAI_URL = "https://api.openai.com/v1"
# Servers quote the key in their errors, in part too: sk-ab***yz.
_KEY_LIKE = re.compile(r"\bsk-[\w*.-]{4,}")
# A shorter one is a placeholder, such as EMPTY, and an ordinary word.
_LEAST_KEY = 8
_REMEDY = (
    "set OPENAI_API_KEY to use OpenAI's models, or OPENAI_BASE_URL to the address of another "
    "server, such as http://localhost:8000/v1; local ones need no key"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address and the key for it, "" for none; neither is shown by `repr`."""

    url: str = field(repr=False)
    key: str = field(default="", repr=False)

    @classmethod
    def of(cls, environ: Mapping[str, str], base_url: str | None = None) -> Endpoint:
        """Take the endpoint from the environment; raise `AgentError` where it tells none."""
        key = environ.get("OPENAI_API_KEY", "").strip()
        url = (base_url or environ.get("OPENAI_BASE_URL", "")).strip().rstrip("/")
        if not url and not key:
            raise AgentError("there is no model to talk to", remedy=_REMEDY)
        endpoint = cls(url or OPENAI_URL, key)
        if not _is_http(endpoint.url):
            raise AgentError(
                f"the server's address {endpoint.shown!r} is no http address", remedy=_REMEDY
            )
        return endpoint

    @property
    def shown(self) -> str:
        """The address without a user, a password or a query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def redacted(self, text: str) -> str:
        """Take the secrets out of a text."""
        for secret in self._secrets():
            text = text.replace(secret, "[key]")
        return _KEY_LIKE.sub("[key]", text)

    def redacted_entry(self, value: Any) -> Any:
        """Take the key out of every text of some plain JSON."""
        if isinstance(value, str):
            for secret in self._secrets():
                value = value.replace(secret, "[key]")
            return value
        if isinstance(value, Mapping):
            return {key: self.redacted_entry(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.redacted_entry(item) for item in value]
        return value

    def _secrets(self) -> list[str]:
        parts = urlsplit(self.url)
        candidates = (self.key, parts.password or "", parts.query)
        return [secret for secret in candidates if len(secret) >= _LEAST_KEY]


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        return False


MOST_WAIT_S = 60.0
# What is told of a server's words.
_MOST_CHARS = 600
_UNKNOWN_MODEL = re.compile(
    r"model.{0,100}(not found|not exist|not a valid|unknown|no such)|(invalid|unknown) model",
    re.IGNORECASE | re.DOTALL,
)
_NAMES_A_PARAMETER = re.compile(
    r"response_format|json_schema|json_object|grammar|stream_options|tool|max_(completion_)?tokens",
    re.IGNORECASE,
)


class DroppedError(Exception):
    """Report a stream that ended before its reply did."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The server does not take the request as it is; its own `words` may say what it minds."""

    text: str
    words: str


@dataclass(frozen=True, slots=True)
class Temporary:
    """The same request may succeed later; `after_s` is what the server asked to wait."""

    text: str
    after_s: float | None = None
    connected: bool = True


@dataclass(frozen=True, slots=True)
class Hopeless:
    """No other request would fare better."""

    text: str
    remedy: str

    @property
    def error(self) -> AgentError:
        """The error that says so."""
        return AgentError(self.text, remedy=self.remedy)


Problem = Refused | Temporary | Hopeless


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often and how soon a request is tried again; the waits double."""

    tries: int = 4
    first_s: float = 1.0
    # Where nobody listens, waiting seldom helps.
    unreachable_s: float = 0.3

    def wait_s(self, failures: int, problem: Temporary) -> float:
        """Say how long to wait after so many failures, at most a minute."""
        if problem.after_s is not None:
            return min(max(problem.after_s, 0.0), MOST_WAIT_S)
        first_s = self.first_s if problem.connected else self.unreachable_s
        # Several agents that were refused together shall not come back together.
        spread = random.uniform(0.8, 1.2)  # noqa: S311
        return min(float(first_s * 2 ** (failures - 1) * spread), MOST_WAIT_S)


def understand(error: Exception, endpoint: Endpoint, model: str, *, started: bool) -> Problem:
    """Say what a failed request means; `started` says that the reply had begun to come in."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return _status(error, endpoint, model)
    if isinstance(error, openai.APITimeoutError):
        return Temporary(f"{endpoint.shown} gave no answer in time", connected=started)
    if isinstance(error, openai.APIConnectionError):
        cause = endpoint.redacted(str(error.__cause__ or error))
        return Temporary(f"the connection to {endpoint.shown} failed: {cause}", connected=started)
    if isinstance(error, openai.APIError):  # an error that was sent instead of a chunk
        text = endpoint.redacted(str(error))[:_MOST_CHARS]
        if _NAMES_A_PARAMETER.search(text):
            return Refused(text, text)
        return Temporary(f"{endpoint.shown} broke off: {text}")
    if isinstance(error, openai.OpenAIError):
        return Hopeless(endpoint.redacted(str(error)), "the openai client refused the request")
    return Temporary(f"{endpoint.shown} broke off in the middle of the reply")


def _status(error: APIStatusError, endpoint: Endpoint, model: str) -> Problem:
    status, words = error.status_code, endpoint.redacted(_words(error))
    said = f"{endpoint.shown} answered {status}: {words}"
    names_a_parameter = _NAMES_A_PARAMETER.search(words)
    if status in (401, 403):
        key = "the key in OPENAI_API_KEY" if endpoint.key else "no key: OPENAI_API_KEY is not set"
        return Hopeless(said, f"it was given {key}; check it and what it may use")
    unknown = status in (400, 404) and not names_a_parameter and _UNKNOWN_MODEL.search(words)
    if error.code == "model_not_found" or unknown:
        return Hopeless(
            f"{endpoint.shown} has no model {model!r}: {words}",
            f"name one that {endpoint.shown}/models lists: --model NAME",
        )
    if status == 404:
        return Hopeless(said, "check OPENAI_BASE_URL, which usually ends in /v1, and --model")
    # llama.cpp's forks answer 500 to a parameter that they do not know.
    if status in (400, 422, 501) or (status == 500 and names_a_parameter):
        return Refused(said, words)
    if error.code == "insufficient_quota":
        return Hopeless(said, "the account has no credit left")
    if status in (408, 409, 425, 429) or status >= 500:
        return Temporary(said, _retry_after_s(error))
    return Hopeless(said, "the server takes no such request; check OPENAI_BASE_URL")


def _words(error: APIStatusError) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    words = message if isinstance(message, str) else str(body or error.message)
    if error.param and error.param not in words:
        words += f" ({error.param})"
    return words[:_MOST_CHARS]


def _retry_after_s(error: APIStatusError) -> float | None:
    headers = error.response.headers
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            return float(value) * unit_s
        except ValueError:
            continue
    try:
        return parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


# From the strictest way to get an object of JSON to the loosest.
LADDER = ("json_schema", "json_object", "text")
# How many tokens a reply may have at most where a budget needs a limit: a long template with the
# reasoning before it. A server that allows fewer says so.
FIRST_CEILING = 32_768
LAST_CEILING = 1_024

# What an error's text calls each; the first match counts. llama.cpp's complaint about a grammar
# with tools is about the response format: the tools are worth more.
_NAMED = (
    ("response_format", r"response_format|json_schema|json_object|structured output|grammar"),
    ("stream_options", r"stream_options|include_usage"),
    ("limit", r"max_completion_tokens|max_tokens"),
    ("tools", r"tool|function.call"),
    ("roles", r"\broles?\b.*\balternat|\balternat.*\broles?\b|system (role|message)"),
    ("stream", r"\bstream(ing)?\b"),
)
_TOO_LONG = re.compile(
    r"context.{0,20}(length|size|window)|too long|too many tokens|prompt is longer", re.IGNORECASE
)
_LIMIT = re.compile(r"max_completion_tokens|max_tokens|completion|context", re.IGNORECASE)
_TOO_LARGE = re.compile(
    r"too large|at most|less than|exceed|greater than|maximum|context", re.IGNORECASE
)


@dataclass(slots=True)
class Capabilities:
    """How a server is asked; `give_up` takes the next step down, which is kept.

    `response_format` is a rung of `LADDER`, `limit` the name of the parameter that limits a reply,
    `ceiling` its highest value. `plain_roles` merges what stands at the start into one message.
    `taken` are the parameters of requests that were answered.
    """

    response_format: str = LADDER[0]
    tools: bool = True
    stream: bool = True
    stream_options: bool = True
    limit: str = "max_completion_tokens"
    ceiling: int = FIRST_CEILING
    plain_roles: bool = False
    taken: set[str] = field(default_factory=set)

    def took(self, sent: Mapping[str, Any]) -> None:
        """Note a request that was answered."""
        self.taken |= sent.keys()

    def give_up(self, error: str, sent: Mapping[str, Any]) -> bool:
        """Give up what the error's text names; False where it names nothing that was sent."""
        if self.limit in sent and self._lower(error):
            return True
        if too_long(error):
            return False
        named = [
            name for name, words in _NAMED if re.search(words, error, re.IGNORECASE | re.DOTALL)
        ]
        return any(self._without(name, sent) for name in named)

    def give_up_any(self, sent: Mapping[str, Any]) -> bool:
        """Give up what is most likely, where the server does not say; False for nothing left.

        What it once took is not the cause.
        """
        doubtful = {name: value for name, value in sent.items() if name not in self.taken}
        return any(self._without(name, doubtful) for name, _ in _NAMED)

    def _without(self, name: str, sent: Mapping[str, Any]) -> bool:
        if name == "response_format" and "response_format" in sent:
            self.response_format = LADDER[LADDER.index(self.response_format) + 1]
        elif name == "stream_options" and "stream_options" in sent:
            self.stream_options = False
        elif name == "limit" and "max_completion_tokens" in sent:
            self.limit = "max_tokens"
        elif name == "tools" and "tools" in sent:
            self.tools = False
        elif name == "roles" and "messages" in sent and not self.plain_roles:
            self.plain_roles = True
        elif name == "stream" and sent.get("stream"):
            self.stream = False
        else:
            return False
        return True

    def _lower(self, error: str) -> bool:
        """Halve the longest reply, where it is what the server finds too long."""
        about_it = _LIMIT.search(error) and _TOO_LARGE.search(error)
        if self.ceiling <= LAST_CEILING or not about_it:
            return False
        self.ceiling //= 2
        return True


def too_long(error: str) -> bool:
    """Tell whether a server refused a conversation for its length."""
    return _TOO_LONG.search(error) is not None


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked: the messages so far, the tools, and the JSON schema of the reply if any.

    `may_call` is False where the tools stay listed, for the server's cache, and may not be used.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool] = ()
    schema: Mapping[str, Any] | None = None
    may_call: bool = True


def build(ask: Ask, model: str, can: Capabilities) -> dict[str, Any]:
    """Build a request of what the server is known or hoped to take."""
    messages = _with_plain_roles(ask.messages) if can.plain_roles else list(ask.messages)
    request: dict[str, Any] = {"model": model, "messages": messages, "stream": can.stream}
    if can.stream and can.stream_options:
        request["stream_options"] = {"include_usage": True}
    if can.tools and ask.tools:
        request["tools"] = [_function(tool) for tool in ask.tools]
        if not ask.may_call:
            request["tool_choice"] = "none"
    if ask.schema is not None and can.response_format != "text":
        request["response_format"] = _response_format(can.response_format, ask.schema)
    return request


def prompt_chars(request: Mapping[str, Any]) -> int:
    """Count the characters of a request that become tokens."""
    counted = [request["messages"], request.get("tools"), request.get("response_format")]
    return len(json.dumps(counted, ensure_ascii=False))


def described(request: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a request without its messages, which are kept as they are said."""
    short = {key: value for key, value in request.items() if key != "messages"}
    if "tools" in short:
        short["tools"] = [tool["function"]["name"] for tool in short["tools"]]
    if "response_format" in short:
        short["response_format"] = short["response_format"]["type"]
    return short


def _function(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _response_format(rung: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if rung == "json_object":
        return {"type": rung}
    return {"type": rung, "json_schema": {"name": "plan", "strict": True, "schema": dict(schema)}}


def _with_plain_roles(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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
