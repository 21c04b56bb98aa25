"""What a round's tool calls may take: calls, seconds, configs, characters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The most of everything; `round_` is for all calls of a round, the others for one call.

    No program is started and no file is opened once `call_s` is over. What runs by then is ended
    by the limits of the compiler, the device and the template, each of them in seconds.
    """

    round_calls: int = 32
    round_s: float = 900.0
    round_configs: int = 64
    call_s: float = 60.0
    configs: int = 16
    # Under `agent.dialogue.MOST_TOOL_CHARS`, so that what is cut off says how to get the rest.
    characters: int = 16_000
    matches: int = 40
    line_characters: int = 240
    file_bytes: int = 2 << 20
    template_characters: int = 400_000
    space_characters: int = 100_000


class Budget:
    """Count down what a round has left; `calls` are those that an interrupted run made of it."""

    def __init__(self, limits: Limits, calls: int = 0) -> None:
        self._limits = limits
        self._calls = calls
        self._seconds = 0.0
        self.configs = limits.round_configs

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return self._calls

    def refusal(self) -> str | None:
        """Say what is used up, None where another call may be made."""
        if self._calls >= self._limits.round_calls:
            return f"the {self._limits.round_calls} tool calls of this round are used up"
        if self._seconds >= self._limits.round_s:
            return f"the {self._limits.round_s:g} s that tools may take in this round are used up"
        return None

    @contextmanager
    def call(self) -> Iterator[float]:
        """Count a call and its time; gives its deadline, by `time.monotonic`."""
        started_s = time.monotonic()
        self._calls += 1
        try:
            yield started_s + min(self._limits.call_s, self._limits.round_s - self._seconds)
        finally:
            self._seconds += time.monotonic() - started_s


def cut(text: str, most: int, rest: str) -> str:
    """Keep a text's first `most` characters, whole lines if possible, and say what was cut.

    `rest` says how to see what is left out.
    """
    if len(text) <= most:
        return text
    end = text.rfind("\n", 0, most)
    kept = text[: end if end > 0 else most]
    return f"{kept}\n[cut: {len(text) - len(kept)} of {len(text)} characters left out; {rest}]"


def shortened(line: str, most: int) -> str:
    """Keep the start of a line that is too long to show."""
    if len(line) <= most:
        return line
    return f"{line[:most]}... [{len(line) - most} more characters]"
