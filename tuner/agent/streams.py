"""Put a streamed reply together from its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.agent.budget import Usage

# No reply is longer; what comes after is not read.
MOST_CHARS = 400_000


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of a model; `message` is what goes back to the server in the next request.

    `finish` is the server's `finish_reason`. `usage` is None where the server does not tell.
    `reasoning` is text that the model wrote for itself, `chars` counts all that it wrote.
    """

    message: dict[str, Any]
    finish: str
    model: str
    usage: Usage | None
    chars: int
    refusal: str = ""
    reasoning: str = ""

    @property
    def text(self) -> str:
        """What the model says, "" where it only calls tools."""
        return str(self.message["content"])

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The tool calls, in the order they are to be answered."""
        calls: list[dict[str, Any]] = self.message.get("tool_calls", [])
        return calls


@dataclass(slots=True)
class Assembly:
    """A reply that is still coming in; `add` each chunk, then `done`.

    `pieces` counts the chunks that brought text: each is one token or more.
    """

    finish: str = ""
    pieces: int = 0
    chars: int = 0
    usage: Usage | None = None
    _model: str = ""
    _content: list[str] = field(default_factory=list)
    _refusal: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: list[dict[str, Any]] = field(default_factory=list)
    _slots: dict[int, int] = field(default_factory=dict)

    def add(self, chunk: Any) -> None:
        """Take in one chunk as the client gives it; servers leave out much of what it declares."""
        self._model = self._model or str(getattr(chunk, "model", None) or "")
        self.usage = usage_of(chunk) or self.usage
        for choice in getattr(chunk, "choices", None) or ():
            self.finish = getattr(choice, "finish_reason", None) or self.finish
            # A reply that is not streamed is one whole message.
            whole = getattr(choice, "message", None)
            delta = getattr(choice, "delta", None) or whole
            for pieces, keys in (
                (self._content, ("content",)),
                (self._refusal, ("refusal",)),
                (self._reasoning, ("reasoning_content", "reasoning")),
            ):
                self._take(pieces, next(filter(None, (getattr(delta, k, None) for k in keys)), ""))
            for number, call in enumerate(getattr(delta, "tool_calls", None) or ()):
                index = number if whole is not None else getattr(call, "index", None)
                self._add_call(call, index)

    def cut(self) -> None:
        """End the reply here, as a server does at its limit of tokens."""
        self.finish = "length"

    def done(self) -> Reply:
        """Give the whole reply."""
        message: dict[str, Any] = {"role": "assistant", "content": _joined(self._content)}
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _joined(call["pieces"])}}
                for call in self._calls
            ]
            for call in message["tool_calls"]:
                del call["pieces"]
        return Reply(
            message=message,
            finish=self.finish,
            model=self._model,
            usage=self.usage,
            chars=self.chars,
            refusal=_joined(self._refusal),
            reasoning=_joined(self._reasoning),
        )

    def _take(self, pieces: list[str], text: object) -> None:
        if isinstance(text, str) and text:
            pieces.append(text)
            self.chars += len(text)
            self.pieces += 1

    def _add_call(self, delta: Any, index: int | None) -> None:
        call = self._call(delta, index)
        function = delta.function
        if function is None:
            return
        if function.name and not call["function"]["name"]:
            call["function"]["name"] = function.name
            self.chars += len(function.name)
        self._take(call["pieces"], function.arguments)

    def _call(self, delta: Any, index: int | None) -> dict[str, Any]:
        """Find the call that a delta goes on with, or begin one.

        Some servers give no index, and some the index 0 to every call of a reply: a new id begins
        a new call all the same.
        """
        last = len(self._calls) - 1
        slot = last if index is None else self._slots.get(index, -1)
        known = self._calls[slot] if slot >= 0 else None
        if known is not None and (not delta.id or known["id"] == delta.id):
            return known
        call: dict[str, Any] = {
            "id": delta.id or f"call_{len(self._calls)}",
            "type": "function",
            "function": {"name": ""},
            "pieces": [],
        }
        self._calls.append(call)
        if index is not None:
            self._slots[index] = len(self._calls) - 1
        return call


def usage_of(response: Any) -> Usage | None:
    """Read the tokens that a chunk or a whole response reports; None where it reports none."""
    usage = getattr(response, "usage", None)
    if usage is None or getattr(usage, "prompt_tokens", None) is None:
        return None
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or 0
    sent, written = int(usage.prompt_tokens), int(getattr(usage, "completion_tokens", None) or 0)
    return Usage(sent, min(int(cached), sent), written)


def well_formed(text: str) -> str:
    """Join the halves of characters and replace single ones, which no UTF-8 can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _joined(pieces: Sequence[str]) -> str:
    # JSON escapes the two halves of a character apart, and a chunk may end between them.
    return well_formed("".join(pieces))
