"""What earlier runs of a session made: its candidates, taken up again, and the tree of them."""

from __future__ import annotations

from math import log
from pathlib import Path

from tuner.agent.base import Answer
from tuner.agent.gate import drafted
from tuner.agent.history import ANSWER, CANDIDATE, history, population
from tuner.agent.tree import Node, Tree
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates
from tuner.tuning.progress import mean_speedup

FOLDER = "rounds"


def restore(plan: Plan, session: Session, candidates: Candidates) -> None:
    """Take up all candidates that earlier runs of a session accepted, as they were written then."""
    for note in session.notes(kind=CANDIDATE):
        attempt = note.content["attempt"]
        answers = session.notes(note.round, ANSWER)
        # The last: an earlier one was never a candidate.
        kept = [one.content for one in answers if one.content["attempt"] == attempt][-1]
        folder = attempt_folder(session, note.round, attempt)
        answer = Answer(kept["template"], kept["space"])
        candidates.add(drafted(answer, plan, folder, note.content["name"]))


def attempt_folder(session: Session, number: int, attempt: int) -> Path:
    """Name the folder that holds what an attempt of a round wrote."""
    return session.directory / FOLDER / f"{number:02}" / f"attempt-{attempt}"


def tree_of(session: Session) -> Tree:
    """Build the tree of a session's candidates, with what each of them and its rounds gave."""
    failures: dict[str, int] = {}
    for record in history(session):
        if record.candidate is None:
            failures[record.base] = failures.get(record.base, 0) + 1
    return Tree.of(
        Node(one.name, one.parent, _reward(session, one.name), failures.get(one.name, 0))
        for one in population(session)
    )


def _reward(session: Session, candidate: str) -> float | None:
    speedup = mean_speedup(session, candidate)
    return None if speedup is None else log(speedup)
