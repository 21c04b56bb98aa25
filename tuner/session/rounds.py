"""What a session holds of its rounds, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tuner.session.events import (
    AgentIdle,
    CandidateMade,
    Event,
    Idea,
    Planned,
    RoundEnded,
    RoundOutcome,
    RoundRefused,
)
from tuner.session.session import CandidateRecord, Session

TIME = "time_us"
_Event = TypeVar("_Event", bound=Event)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round that ended.

    `problems` say why each answer was refused, in order. `candidate` is the one that was made,
    None where every answer was refused.
    """

    number: int
    base: str
    idea: Idea | None = None
    candidate: str | None = None
    problems: tuple[str, ...] = ()
    outcome: RoundOutcome | None = None

    @property
    def failed(self) -> bool:
        return self.candidate is None or self.outcome is None or self.outcome.speedup is None


def over(session: Session, number: int) -> bool:
    """Whether a round has come to its end, good or bad, and is not run again."""
    return bool(session.events(RoundEnded, number) or session.events(RoundRefused, number))


def history(session: Session) -> tuple[RoundRecord, ...]:
    """List the rounds that are over, in order."""
    return tuple(one for one in list_rounds(session) if over(session, one.number))


def list_rounds(session: Session) -> tuple[RoundRecord, ...]:
    """List all rounds in order, also one that has not ended."""
    numbers = {event.round for event in session.events(Event) if event.round > 0}
    records = []
    for number in sorted(numbers):
        idea = last(session.events(Planned, number))
        made = last(session.events(CandidateMade, number))
        refused = last(session.events(RoundRefused, number))
        ended = last(session.events(RoundEnded, number))
        said = idea.idea if idea else refused or last(session.events(AgentIdle, number))
        record = RoundRecord(
            number=number,
            base=(said.base if said else None) or "",
            idea=idea.idea if idea else None,
            candidate=made.name if made and not refused else None,
            problems=(refused and refused.problems) or (made and made.problems) or (),
            outcome=ended.outcome if ended else None,
        )
        records.append(record)
    return tuple(records)


def population(session: Session) -> tuple[CandidateRecord, ...]:
    """List the candidates that were searched to their end, the initial one first."""
    refused = {event.candidate for event in session.events(RoundRefused)}
    ended = {event.round for event in session.events(RoundEnded)}
    made = {event.name for event in session.events(CandidateMade) if event.round in ended}
    return tuple(
        one
        for one in session.candidates()
        if one.name not in refused and (one.parent is None or one.name in made)
    )


def last(events: Sequence[_Event]) -> _Event | None:
    return events[-1] if events else None
