"""What a session holds of its rounds, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tuner.session.events import (
    AgentIdle,
    AnswerEvent,
    CandidateMade,
    DefaultTimed,
    Event,
    Idea,
    Planned,
    Profiled,
    RoundEnded,
    RoundOutcome,
    RoundRefused,
)
from tuner.session.session import CandidateRecord, Session

TIME = "time_us"
_Answered = TypeVar("_Answered", bound=AnswerEvent)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round that ended, or one `answer` of it where it has several, by its name.

    `problems` say why each answer was refused, in order. `candidate` is the one that was made,
    None where every answer was refused, or its default config, `timed`, was too slow.
    """

    number: int
    base: str
    idea: Idea | None = None
    candidate: str | None = None
    problems: tuple[str, ...] = ()
    outcome: RoundOutcome | None = None
    answer: str = ""
    timed: DefaultTimed | None = None

    @property
    def label(self) -> str:
        return f"{self.number}{self.answer}"

    @property
    def failed(self) -> bool:
        return self.candidate is None or self.outcome is None or self.outcome.speedup is None


def over(session: Session, number: int) -> bool:
    """Whether a round has come to its end, good or bad, and is not run again."""
    ended = [*session.events(RoundEnded, number), *session.events(RoundRefused, number)]
    return bool(ended) and {*answers(session, number)} == {event.answer for event in ended}


def history(session: Session) -> tuple[RoundRecord, ...]:
    return tuple(record for record in list_rounds(session) if over(session, record.number))


def list_rounds(session: Session) -> tuple[RoundRecord, ...]:
    """List all rounds in order, also one that has not ended."""
    numbers = {event.round for event in session.events(Event) if event.round > 0}
    records = []
    for number, answer in ((n, a) for n in sorted(numbers) for a in answers(session, n)):
        idea = last(session.events(Planned, number), answer)
        candidate = last(session.events(CandidateMade, number), answer)
        refused = last(session.events(RoundRefused, number), answer)
        ended = last(session.events(RoundEnded, number), answer)
        base_source = (
            idea.idea if idea else refused or next(iter(session.events(AgentIdle, number)), None)
        )
        record = RoundRecord(
            number=number,
            base=(base_source.base if base_source else None) or "",
            idea=idea.idea if idea else None,
            candidate=candidate.name if candidate and not refused else None,
            problems=(refused and refused.problems) or (candidate and candidate.problems) or (),
            outcome=ended.outcome if ended else None,
            answer=answer,
            timed=last(session.events(DefaultTimed, number), answer),
        )
        records.append(record)
    return tuple(records)


def population(session: Session) -> tuple[CandidateRecord, ...]:
    """List the candidates that were searched to their end, the initial one first."""
    refused = {event.candidate for event in session.events(RoundRefused)}
    ended = {(event.round, event.answer) for event in session.events(RoundEnded)}
    all_made = session.events(CandidateMade)
    names = {event.name for event in all_made if (event.round, event.answer) in ended}
    return tuple(
        candidate
        for candidate in session.candidates()
        if candidate.name not in refused and (candidate.parent is None or candidate.name in names)
    )


def answers(session: Session, number: int) -> list[str]:
    """Name the answers of a round in order: one without a name, or several with one each."""
    events: list[AnswerEvent] = [*session.events(Planned, number)]
    events += session.events(RoundRefused, number)
    return sorted({event.answer for event in events}) or [""]


def last(events: Sequence[_Answered], answer: str = "") -> _Answered | None:
    return next((event for event in reversed(events) if event.answer == answer), None)


def profiles(session: Session, candidate: str | None = None) -> list[Profiled]:
    """List what profiles said, of one candidate or of all."""
    return [event for event in session.events(Profiled) if candidate in (None, event.candidate)]
