"""Whose turn it is in a search of several workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.tuning.executor import PrecompilingSearcher

# Trials of a first turn after the first workload's, whose trials its searcher has been told of.
FIRST_TURN_TRIALS = 12
# Trials of a later turn: switching costs the device the time to fill other buffers, and what the
# others find meanwhile is worth waiting for.
TURN_TRIALS = 8
# The share of the best time below which looking on for it isn't worth a trial.
ENOUGH = 0.005


@dataclass(slots=True)
class WorkloadSearch:
    """The search of one workload: how far it is and when its turn ends.

    `max_trials` bounds the configs proposed, `depth` those that are under way. `not_proposed` are
    those that an earlier run has tried and that this one has not come to yet. `replaying` says
    that nothing new may be tried.
    """

    workload: Workload
    searcher: PrecompilingSearcher
    max_trials: int
    first_turn: int
    depth: int
    not_proposed: set[Config] = field(default_factory=set)
    deadline_s: float | None = None
    replaying: bool = False
    proposed: int = 0
    completed: int = 0
    compiled: bool = False
    exhausted: bool = False
    _gain: tuple[int, float | None] = (-1, None)

    @property
    def may_begin(self) -> bool:
        """Whether a config that is not known yet fits into the budget."""
        return not self.replaying and self.proposed + len(self.not_proposed) < self.max_trials

    @property
    def gain(self) -> float | None:
        """What is left to find, as the searcher sees it after the last trial told."""
        if self._gain[0] != self.completed:
            self._gain = self.completed, self.searcher.expected_gain()
        return self._gain[1]

    @property
    def found_enough(self) -> bool:
        """Whether the searcher expects next to nothing of what is untried."""
        return self.gain is not None and self.gain < ENOUGH


class WorkloadScheduler:
    """Give each workload a first turn, then whichever promises most another, until none does.

    A searcher that can't say what it expects has one turn, as long as its budget. `begin` makes
    the search of a workload when its first turn comes. `total` bounds the trials of all together.
    """

    def __init__(
        self, workloads: Sequence[Workload], begin: Callable[[Workload], WorkloadSearch], total: int
    ) -> None:
        self._waiting = list(workloads)
        self._begin, self._total = begin, total
        self._searches: list[WorkloadSearch] = []
        self._current: WorkloadSearch | None = None
        self._turn_ends = 0

    @property
    def searches(self) -> Sequence[WorkloadSearch]:
        return self._searches

    def of(self, workload: Workload) -> WorkloadSearch:
        """Return the search of a workload that has had a turn."""
        return next(search for search in self._searches if search.workload == workload)

    def current(self) -> WorkloadSearch | None:
        """Tell whose turn it is; None when the search is over."""
        while (search := self._current) is None or self._has_ended(search):
            if self._waiting:
                self._current = self._begin(self._waiting.pop(0))
                self._searches.append(self._current)
                self._turn_ends = self._first_turn(self._current)
            elif self._left() <= 0:
                return None
            else:
                self._current = self._most_promising()
                if self._current is None:
                    return None
                self._turn_ends = self._current.proposed + min(TURN_TRIALS, self._left())
        return search

    def _left(self) -> int:
        return self._total - sum(search.proposed for search in self._searches)

    def _first_turn(self, search: WorkloadSearch) -> int:
        kept = len(self._waiting) * FIRST_TURN_TRIALS
        return min(search.first_turn, max(FIRST_TURN_TRIALS, self._left() - kept))

    def _has_ended(self, search: WorkloadSearch) -> bool:
        return (
            search.exhausted
            or search.proposed >= min(search.max_trials, self._turn_ends)
            or search.found_enough
        )

    def _most_promising(self) -> WorkloadSearch | None:
        hopes = [
            (search.gain, search)
            for search in self._searches
            if not search.exhausted
            and search.proposed < search.max_trials
            and search.gain is not None
        ]
        gain, search = max(hopes, key=lambda hope: hope[0], default=(0.0, None))
        return search if gain >= ENOUGH else None
