"""What was said in a round, kept in the session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.session import Session

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
