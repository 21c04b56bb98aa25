"""What a failed request means: ask in another way, ask again later, or give up."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from tuner.agent.endpoint import Endpoint
from tuner.errors import AgentError

if TYPE_CHECKING:
    from openai import APIStatusError

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
