"""Which server an agent talks to, with the key that nobody else may see."""

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
