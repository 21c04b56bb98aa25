"""The agent that cannot be had: it stands in that one's place, so that a run goes on to its end."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.agent.base import Briefing, Conversation, Toolbox, Transcript
from tuner.errors import AgentError


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Raise the same error whenever it is asked for anything."""

    name: str
    error: AgentError

    def check(self) -> None:
        """Raise the error."""
        raise self.error

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        """Raise the error."""
        raise self.error
