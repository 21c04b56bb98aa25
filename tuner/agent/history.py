"""What became of every round: the session's notes, read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.agent.base import Expectation, Idea
from tuner.agent.briefing.outcome import Outcome, RoundRecord
from tuner.model.trial import INITIAL
from tuner.session.session import CandidateRecord, Session

# The kinds of notes, in the order in which a round writes them.
TOOLS, IDEA, ANSWER, CANDIDATE, OUTCOME, REFUSED, IDLE = (
    "tools",
    "idea",
    "answer",
    "candidate",
    "outcome",
    "refused",
    "idle",
)


def idea_of(content: Mapping[str, Any]) -> Idea:
    """Read what `asdict` wrote of an idea."""
    expectations = tuple(Expectation(**one) for one in content["expectations"])
    return Idea(**{**content, "expectations": expectations})


def over(session: Session, number: int) -> bool:
    """Whether a round has come to its end, good or bad, and is not run again."""
    return bool(session.notes(number, OUTCOME) or session.notes(number, REFUSED))


def history(session: Session) -> tuple[RoundRecord, ...]:
    """List the rounds that are over, in order."""
    numbers = dict.fromkeys(note.round for note in session.notes() if note.round > 0)
    records = (_record(session, number) for number in sorted(numbers))
    return tuple(record for record in records if record is not None)


def population(session: Session) -> tuple[CandidateRecord, ...]:
    """List the candidates that were searched to their end, the initial one first."""
    refused = {note.content.get("candidate") for note in session.notes(kind=REFUSED)}
    ended = {note.round for note in session.notes(kind=OUTCOME)}
    made = {note.content["name"] for note in session.notes(kind=CANDIDATE) if note.round in ended}
    return tuple(
        one
        for one in session.candidates()
        if one.name not in refused and (one.parent is None or one.name in made)
    )


def _record(session: Session, number: int) -> RoundRecord | None:
    last = {note.kind: note.content for note in session.notes(number)}
    if OUTCOME not in last and REFUSED not in last:
        return None
    idea = idea_of(last[IDEA]) if IDEA in last else None
    made, refused = last.get(CANDIDATE, {}), last.get(REFUSED, {})
    return RoundRecord(
        number=number,
        base=idea.base if idea else refused.get("base", INITIAL),
        idea=idea,
        candidate=None if refused else made.get("name"),
        problems=tuple(refused.get("problems") or made.get("problems") or ()),
        outcome=Outcome.from_json(last[OUTCOME]["outcome"]) if OUTCOME in last else None,
    )


SAID = "said"


class SessionTranscript:
    """Give back what an earlier run of this round kept, then keep what is said."""

    def __init__(self, session: Session, number: int) -> None:
        self._session, self._number = session, number
        self._earlier = iter([note.content for note in session.notes(number, SAID)])

    def again(self) -> Mapping[str, Any] | None:
        """Take the next entry that an earlier run kept; None when all are taken."""
        return next(self._earlier, None)

    def keep(self, entry: Mapping[str, Any]) -> None:
        """Append an entry; it is on disk when this returns."""
        self._session.note(self._number, SAID, entry)
