"""Which server an agent talks to, and what its errors mean: ask otherwise, ask later, give up."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from math import isnan
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from tuner.model.errors import AgentError

if TYPE_CHECKING:
    from openai import APIError, APIStatusError

OPENAI_URL = "https://api.openai.com/v1"
# Servers quote the key in their errors, in part too: sk-ab***yz.
_KEY_LIKE = re.compile(r"\bsk-[\w*.-]{4,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
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
    def of(cls, environ: Mapping[str, str]) -> Endpoint:
        """Take the endpoint from the environment; raise `AgentError` where it tells none."""
        key = environ.get("OPENAI_API_KEY", "").strip()
        url = environ.get("OPENAI_BASE_URL", "").strip().rstrip("/")
        if not url and not key:
            raise AgentError("there is no model to talk to", remedy=_REMEDY)
        endpoint = cls(url or OPENAI_URL, key)
        try:
            parts = urlsplit(endpoint.url)
            is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # the port is no number
            is_http = False
        if not is_http:
            raise AgentError(
                f"the server's address {endpoint.shown!r} is no http address", remedy=_REMEDY
            )
        return endpoint

    @property
    def shown(self) -> str:
        """The address without a user, a password or a query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def redact(self, text: str) -> str:
        """Take the key, and what a terminal would take for commands, out of a server's words."""
        return _CONTROL.sub(" ", _KEY_LIKE.sub("[key]", self._without_secrets(text)))

    def redacted_entry(self, value: Any) -> Any:
        """Take the key out of every text of some plain JSON."""
        if isinstance(value, str):
            return self._without_secrets(value)
        if isinstance(value, Mapping):
            return {key: self.redacted_entry(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.redacted_entry(item) for item in value]
        return value

    def _without_secrets(self, text: str) -> str:
        parts = urlsplit(self.url)
        for secret in (self.key, parts.password or "", parts.query):
            if len(secret) >= _LEAST_KEY:
                text = text.replace(secret, "[key]")
        return text


MOST_WAIT_S = 60.0
# What is told of a server's words.
_MOST_CHARS = 600
# OpenAI's code, and llama.cpp's type.
_TOO_LONG = ("context_length_exceeded", "exceed_context_size_error")
_UNKNOWN_PARAMETER = ("unsupported_parameter", "unknown_parameter")


class DroppedError(Exception):
    """Report a stream that ended before its reply did."""


class OversizedError(Exception):
    """Report a reply that is larger than any; the connection is closed."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"more than {most_bytes >> 20} MiB without an end")


class LateError(Exception):
    """Report a reply that had not ended when its time was over; the connection is closed."""

    def __init__(self, longest_s: float) -> None:
        super().__init__(f"had not ended its reply after {longest_s:g} s")


@dataclass(frozen=True, slots=True)
class Refused:
    """The server does not take the request as it is.

    `param` is the parameter that it names, "" for none; `unknown` says that it does not know it,
    `too_long` that the conversation exceeds the model's context.
    """

    text: str
    param: str = ""
    unknown: bool = False
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class Temporary:
    """The same request may succeed later; `after_s` is what the server asked to wait.

    `crashed` is status 500, which some servers also answer to a parameter that they do not know.
    """

    text: str
    after_s: float | None = None
    connected: bool = True
    crashed: bool = False


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


def understand(
    error: Exception, endpoint: Endpoint, model: str, *, started: bool
) -> Refused | Temporary | AgentError:
    """Say what a failed request means; an `AgentError` where no other request would fare better.

    `started` says that the reply had begun to come in.
    """
    import openai

    if isinstance(error, LateError):
        text = f"{endpoint.shown} {error}"
        return AgentError(text, remedy="check that the server is not too slow for the model")
    if isinstance(error, OversizedError):
        return Temporary(f"{endpoint.shown} sent {error}")
    if isinstance(error, openai.APIStatusError):
        return _status(error, endpoint, model)
    if isinstance(error, openai.APITimeoutError):
        return Temporary(f"{endpoint.shown} gave no answer in time", connected=started)
    if isinstance(error, openai.APIConnectionError):
        cause = endpoint.redact(str(error.__cause__ or error))
        return Temporary(f"the connection to {endpoint.shown} failed: {cause}", connected=started)
    if isinstance(error, openai.APIError):  # an error that was sent instead of a chunk
        text = endpoint.redact(str(error))[:_MOST_CHARS]
        broke_off = Temporary(f"{endpoint.shown} broke off: {text}")
        return _refusal_of(text, error) if _param(error) else broke_off
    if isinstance(error, openai.OpenAIError):
        text = endpoint.redact(str(error))
        return AgentError(text, remedy="the openai client refused the request")
    return Temporary(f"{endpoint.shown} broke off in the middle of the reply")


def _status(
    error: APIStatusError, endpoint: Endpoint, model: str
) -> Refused | Temporary | AgentError:
    body, status = error.body, error.status_code
    message = body.get("message") if isinstance(body, dict) else None
    words = message if isinstance(message, str) else str(body or error.message)
    param = _param(error)
    if param not in words:
        words += f" ({param})"
    words = endpoint.redact(words[:_MOST_CHARS])
    said = f"{endpoint.shown} answered {status}: {words}"
    if status in (401, 403):
        key = "the key in OPENAI_API_KEY" if endpoint.key else "no key: OPENAI_API_KEY is not set"
        return AgentError(said, remedy=f"it was given {key}; check it and what it may use")
    if error.code == "model_not_found":
        return AgentError(
            f"{endpoint.shown} has no model {model!r}: {words}",
            remedy=f"name one that {endpoint.shown}/models lists: --model NAME",
        )
    if status == 404:
        return AgentError(
            said,
            remedy="check OPENAI_BASE_URL, which usually ends in /v1, and --model, which "
            f"{endpoint.shown}/models lists",
        )
    if status in (400, 422, 501):
        return _refusal_of(said, error)
    if error.code == "insufficient_quota":
        return AgentError(said, remedy="the account has no credit left")
    if status in (408, 409, 425, 429) or status >= 500:
        return Temporary(said, _retry_after_s(error), crashed=status == 500)
    return AgentError(said, remedy="the server takes no such request; check OPENAI_BASE_URL")


def _refusal_of(text: str, error: APIError) -> Refused:
    # `tools[0].function.parameters` is about the tools.
    param = re.split(r"[.\[]", _param(error))[0]
    too_long = error.code in _TOO_LONG or error.type in _TOO_LONG
    return Refused(text, param, error.code in _UNKNOWN_PARAMETER, too_long)


def _param(error: APIError) -> str:
    # The client passes on whatever a server writes there.
    param: object = error.param
    return param if isinstance(param, str) else ""


def _retry_after_s(error: APIStatusError) -> float | None:
    headers = error.response.headers
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        with suppress(ValueError):
            if not isnan(wait_s := float(value) * unit_s):
                return wait_s
    try:
        return parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError):
        return None


# From the strictest way to get an object of JSON to the loosest.
RESPONSE_FORMATS = ("json_schema", "json_object", "text")
# How many tokens a reply may have at most where a budget needs a limit: a long template with the
# reasoning before it. A server that allows fewer says so.
FIRST_CEILING = 32_768
LAST_CEILING = 1_024
# What is given up, in this order, where a server does not say what it minds. The tools come late:
# they are worth most.
LADDER = ("response_format", "stream_options", "messages", "limit", "tools", "stream")
_LIMITS = ("max_completion_tokens", "max_tokens")


@dataclass(slots=True)
class Capabilities:
    """How a server is asked; `give_up` takes the next step down, which is kept.

    `response_format` is one of `RESPONSE_FORMATS`, `limit` the name of the parameter that limits a
    reply, `ceiling` its highest value. `plain_roles` merges what stands at the start into one
    message. `taken` are the parameters of requests that were answered.
    """

    response_format: str = RESPONSE_FORMATS[0]
    tools: bool = True
    stream: bool = True
    stream_options: bool = True
    limit: str = _LIMITS[0]
    ceiling: int = FIRST_CEILING
    plain_roles: bool = False
    taken: set[str] = field(default_factory=set)

    def give_up(self, refused: Refused, sent: Mapping[str, Any]) -> bool:
        """Give up the parameter that a server names, else the next of the ladder.

        False where nothing is left; what the server once took is not the cause.
        """
        if refused.param in _LIMITS and not refused.unknown and self._lower():
            return True
        aliases = {**dict.fromkeys(_LIMITS, "limit"), "tool_choice": "tools"}
        name = aliases.get(refused.param, refused.param)
        return self._without(name, sent) or self.give_up_next(sent)

    def give_up_next(self, sent: Mapping[str, Any]) -> bool:
        """Give up the next of the ladder; False for nothing left."""
        doubtful = {name: value for name, value in sent.items() if name not in self.taken}
        return any(self._without(name, doubtful) for name in LADDER)

    def _without(self, name: str, sent: Mapping[str, Any]) -> bool:
        if name == "response_format" and name in sent:
            rung = RESPONSE_FORMATS.index(self.response_format)
            self.response_format = RESPONSE_FORMATS[rung + 1]
        elif name == "stream_options" and name in sent:
            self.stream_options = False
        elif name == "tools" and name in sent:
            self.tools = False
        elif name == "stream" and sent.get("stream"):
            self.stream = False
        elif name == "messages" and name in sent and not self.plain_roles:
            self.plain_roles = True
        elif name == "limit" and _LIMITS[0] in sent:
            self.limit = _LIMITS[1]
        elif name == "limit" and _LIMITS[1] in sent:
            return self._lower()
        else:
            return False
        return True

    def _lower(self) -> bool:
        if self.ceiling <= LAST_CEILING:
            return False
        self.ceiling //= 2
        return True
