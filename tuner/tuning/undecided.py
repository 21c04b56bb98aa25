"""The workloads that a run leaves undecided, for want of memory say; the next run tries again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager

from tuner.model.errors import OutOfMemory, Unmeasured
from tuner.model.kernel import Workload
from tuner.session.events import LeftUndecided
from tuner.session.session import Session


def undecided_of(session: Session) -> Mapping[str, str]:
    """Say why the workloads, by key, were given up that no run of a session has decided since."""
    decided = {result.workload.key for result in session.results()}
    events = session.events(LeftUndecided)
    return {one.workload: one.reason for one in events if one.workload not in decided}


class Undecided:
    """What this run has given up, recorded once for each candidate's search and for the finals.

    Whatever comes later in the run leaves these workloads alone.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reasons: dict[Workload, str] = {}
        self._noted: set[tuple[Workload, str]] = set()

    def __contains__(self, workload: Workload) -> bool:
        return workload in self._reasons

    @contextmanager
    def unless_memory_ends(self, workload: Workload, candidate: str = "") -> Iterator[None]:
        """Run a block for a workload, and give it up where the block finds no memory."""
        try:
            yield
        except OutOfMemory as error:
            self.give_up(workload, error, candidate)

    def give_up(
        self, workload: Workload, error: OutOfMemory | Unmeasured, candidate: str = ""
    ) -> None:
        """Leave a workload undecided: in the search of a `candidate`, or else in its finals."""
        self._reasons.setdefault(workload, error.message)
        self.skip(workload, candidate)

    def skip(self, workload: Workload, candidate: str) -> None:
        """Record, once, that a candidate is not tried on a workload that was given up."""
        if (workload, candidate) not in self._noted:
            self._noted.add((workload, candidate))
            reason = self._reasons[workload]
            self._session.record_event(LeftUndecided(0, workload.key, reason, candidate))

    def unsearched(self, candidate: str) -> Set[str]:
        """Name the undecided workloads, by key, on which the search of a candidate was given up.

        One whose finals came later has been searched to the end since.
        """
        found: set[str] = set()
        for one in self._session.events(LeftUndecided):
            if one.candidate == candidate:
                found.add(one.workload)
            elif not one.candidate:
                found.discard(one.workload)
        return found & undecided_of(self._session).keys()
