"""The seam between the rounds and the author of the next template: a model, a person, a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.model.trial import Finding
from tuner.session.events import Idea, Tool


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """A whole template and the search space beside it, as text; nothing of it is checked yet."""

    template: str
    space: str


@dataclass(frozen=True, slots=True)
class BriefedCandidate:
    """One candidate as the agent sees it, with its mean speedup over the baseline.

    That is None where nothing of it ran correctly.
    """

    name: str
    parent: str | None
    template: str
    space: str
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Briefing:
    """All that an agent reads before a round.

    `stable` is the same text in every round of a session, so that a server can cache it: the
    task, the kernel, the hardware, the formats. `current` is what changes: the base, its
    findings, what was tried. `base` is the candidate to build on, None where the agent chooses
    among the `population` itself. `findings` are all, of which `current` words the weightiest.
    `example` is the key of a tuned workload.
    """

    round: int
    stable: str
    current: str
    base: str | None
    population: tuple[BriefedCandidate, ...]
    findings: tuple[Finding, ...] = ()
    example: str = ""

    def member(self, name: str) -> BriefedCandidate:
        """Find a candidate by its name; raise `KeyError` for an unknown one."""
        return {member.name: member for member in self.population}[name]


class Toolbox(Protocol):
    """What an agent may do while it reasons."""

    def tools(self) -> Sequence[Tool]:
        """List the tools, in an order that never changes."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a tool within its limits; the caller's mistakes come back as text, never raised."""


class Transcript(Protocol):
    """What was said in a round, kept as it is said; a resumed round hears it again first."""

    def again(self) -> Mapping[str, Any] | None:
        """Take the next entry that an earlier run kept; None when all are taken."""

    def keep(self, entry: Mapping[str, Any]) -> None:
        """Append an entry of plain JSON values; it is on disk when this returns."""


class Conversation(Protocol):
    """One round with an agent: `plan`, then `refactor`, then `repair` as often as is allowed.

    All raise `AgentError` where the agent cannot go on, and the last two `ReplyError` for a reply
    that holds no template and space.
    """

    def plan(self) -> Idea | Mapping[str, Conversation] | None:
        """Say what to try; None where the agent has nothing left to try.

        Several answers at once come by their names, each with a plan of its own; none of these is
        asked to `repair`.
        """

    def refactor(self) -> AgentAnswer:
        """Write the template and the space of the plan."""

    def repair(self, problem: str) -> AgentAnswer:
        """Write both again, after what was wrong with the last answer."""

    def tell(self, text: str) -> None:
        """Say what came of an answer so far; the next request has it too, which may do."""
        return None  # noqa: RET501 - else it would be abstract


class Agent(Protocol):
    """An author of templates."""

    @property
    def name(self) -> str:
        """What the session calls it: `openai:gpt-5`, `files`, `literal`."""

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        """Open the conversation of one round."""
