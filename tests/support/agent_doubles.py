"""What an agent is given by the rounds: a toolbox and a transcript, in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.extensions.agents.base import BriefedCandidate, Briefing
from tuner.session.events import Tool


class Tools:
    """Tools that answer with a function of their name and arguments, and remember the calls."""

    def __init__(
        self,
        *names: str,
        answer: Callable[[str, Mapping[str, Any]], str] = lambda name, given: f"{name} {given}",
    ) -> None:
        self.names = names
        self.answer = answer
        self.called: list[tuple[str, dict[str, Any]]] = []

    def tools(self) -> Sequence[Tool]:
        schema = {"type": "object", "properties": {"block": {"type": "integer"}}}
        return [Tool(name, f"Try {name}.", schema) for name in self.names]

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        assert name in self.names
        self.called.append((name, dict(arguments)))
        return self.answer(name, arguments)


class Kept:
    """A transcript in memory; `earlier` is what a run before this one kept."""

    def __init__(self, earlier: Sequence[Mapping[str, Any]] = ()) -> None:
        self.earlier = list(earlier)
        self.entries: list[dict[str, Any]] = []

    def again(self) -> Mapping[str, Any] | None:
        return self.earlier.pop(0) if self.earlier else None

    def keep(self, entry: Mapping[str, Any]) -> None:
        self.entries.append(json.loads(json.dumps(entry)))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["type"] == kind]


def member(name: str = "c0", **changes: Any) -> BriefedCandidate:
    fields = {"parent": None, "template": "kernel of c0", "space": "space of c0"}
    return BriefedCandidate(name, **{**fields, **changes})


def briefing(base: str | None = "c0", *names: str, **changes: Any) -> Briefing:
    population = tuple(member(name) for name in (names or ("c0", "c1")))
    fields = {"round": 1, "stable": "the task", "current": "the findings"}
    return Briefing(base=base, population=population, **{**fields, **changes})


def plan(**changes: Any) -> str:
    """Write a plan as a model does; a change to `...` leaves the key out."""
    fields: dict[str, Any] = {
        "base": None,
        "reference": None,
        "hypothesis": "loads are narrow: 4 sectors a request",
        "change": "load 16 bytes a thread",
        "expectations": [{"metric": "time_us", "factor": 0.8, "workload": None}],
    }
    fields |= changes
    return json.dumps({key: value for key, value in fields.items() if value is not ...})


def answer(template: str = "__global__ void f() {}", space: str = "version: 1") -> str:
    return f"Here it is.\n\n```cuda\n{template}\n```\n\n```yaml\n{space}\n```\n"
