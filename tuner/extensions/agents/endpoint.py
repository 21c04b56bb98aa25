"""Which server an agent talks to, what its errors say, and what it turned out not to take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tuner.model.errors import AgentError

OPENAI_URL = "https://api.openai.com/v1"
# Servers quote the key in their errors, in part too: sk-ab***yz.
_KEY_LIKE = re.compile(r"\bsk-[\w*.-]{4,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# A shorter one is a placeholder, such as EMPTY, and an ordinary word.
_LEAST_KEY = 8
# What is told of a server's words.
_MOST_CHARS = 600
_REMEDY = (
    "set OPENAI_API_KEY to use OpenAI's models, or OPENAI_BASE_URL to the address of another "
    "server, such as http://localhost:8000/v1; local ones need no key"
)


class OversizedError(Exception):
    """Report a reply that is larger than any; the connection is closed."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"sent more than {most_bytes >> 20} MiB without an end")


class LateError(Exception):
    """Report a reply that had not ended when its time was over; the connection is closed."""

    def __init__(self, longest_s: float) -> None:
        super().__init__(f"had not ended its reply after {longest_s:g} s")


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

    def describe(self, error: Exception) -> str:
        """Say what became of a request, without secrets."""
        import openai

        if isinstance(error, openai.APIStatusError):
            message = error.body.get("message") if isinstance(error.body, dict) else None
            words = message if isinstance(message, str) else str(error.body or error.message)
            if isinstance(error.param, str) and error.param not in words:
                words += f" ({error.param})"
            text = f"answered {error.status_code}: {words[:_MOST_CHARS]}"
        elif isinstance(error, openai.APITimeoutError):
            text = "gave no answer in time"
        elif isinstance(error, openai.APIConnectionError):
            cause = self.redact(str(error.__cause__ or error))
            return f"the connection to {self.shown} failed: {cause}"
        elif isinstance(error, OversizedError | LateError):
            text = str(error)
        else:  # an error that was sent instead of a chunk, or what is no JSON
            text = f"broke off in the middle of the reply: {str(error)[:_MOST_CHARS]}"
        return self.redact(f"{self.shown} {text}")

    def remedy(self, error: Exception) -> str:
        """Say what a user can do about a request that failed for good."""
        status, code = getattr(error, "status_code", None), getattr(error, "code", None)
        if isinstance(error, LateError):
            return "check that the server is not too slow for the model"
        if status in (401, 403):
            key = "the key in OPENAI_API_KEY" if self.key else "no key: OPENAI_API_KEY is not set"
            return f"it was given {key}; check it and what it may use"
        if status == 404:
            return (
                "check OPENAI_BASE_URL, which usually ends in /v1, and --model NAME, which "
                f"{self.shown}/models lists"
            )
        if code == "insufficient_quota":
            return "the account has no credit left"
        return "check that the server runs and takes such requests, and OPENAI_BASE_URL"

    def _without_secrets(self, text: str) -> str:
        parts = urlsplit(self.url)
        for secret in (self.key, parts.password or "", parts.query):
            if len(secret) >= _LEAST_KEY:
                text = text.replace(secret, "[key]")
        return text


# How many tokens a reply may have at most where a budget needs a limit: a long template with the
# reasoning before it. A server that allows fewer says so.
FIRST_CEILING = 32_768
LAST_CEILING = 1_024
SCHEMA, FORMAT, USAGE, ROLES = "json_schema", "response_format", "stream_options", "roles"
LIMIT, TOOLS, STREAM = "max_completion_tokens", "tools", "stream"
# What is given up, in this order, where a server refuses a request without naming a parameter; and
# the parameters by which it may name each. The tools come late: they are worth most.
_LADDER = {
    SCHEMA: ("response_format",),
    FORMAT: ("response_format",),
    USAGE: ("stream_options",),
    ROLES: ("messages",),
    LIMIT: ("max_completion_tokens", "max_tokens"),
    TOOLS: ("tools", "tool_choice"),
    STREAM: ("stream",),
}


@dataclass(slots=True)
class Capabilities:
    """What a server turned out not to take, of `_LADDER`, and the most tokens of a reply.

    `taken` are the parameters of requests that were answered: they are not given up unless the
    server names them.
    """

    given_up: set[str] = field(default_factory=set)
    ceiling: int = FIRST_CEILING
    taken: set[str] = field(default_factory=set)

    def give_up(self, named: str, sent: Mapping[str, Any], *, unknown: bool) -> bool:
        """Give up the parameter that a server names, else the next; False where none is left.

        `unknown` says that the server does not know the parameter, rather than mind its value.
        """
        if named in (LIMIT, "max_tokens") and not (unknown and LIMIT in sent):
            self.ceiling //= 2
            return self.ceiling >= LAST_CEILING
        steps = [
            (step, names)
            for step, names in _LADDER.items()
            if step not in self.given_up and names[0] in sent
        ]
        by_name = [step for step, names in steps if named in names]
        by_order = [step for step, names in steps if names[0] not in self.taken]
        self.given_up.update((by_name or by_order)[:1])
        return bool(by_name or by_order)
