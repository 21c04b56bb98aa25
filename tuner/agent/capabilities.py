"""What a server turned out not to take, so that it is asked only once for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
