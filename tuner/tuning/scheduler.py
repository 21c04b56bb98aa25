"""Whose turn it is among the workloads of a search: each once, then whichever promises most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.settings import ENOUGH
from tuner.tuning.executor import PrecompilingSearcher

# Trials of a first turn after the first workload's, whose trials its searcher has been told of.
FIRST_TURN_TRIALS = 12
# Trials of a later turn: switching costs the device the time to fill other buffers, and what the
# others find meanwhile is worth waiting for.
TURN_TRIALS = 8


@dataclass(slots=True)
class WorkloadSearch:
    """The search of one workload: how far it is and when its turn ends.

    `max_trials` bounds the configs proposed, `depth` those that are under way, and a gain below
    `min_expected_gain` is not worth another one. `not_proposed` are those that an earlier run has
    tried and that this one has not come to yet. `replaying` says that nothing new may be tried.
    """

    workload: Workload
    searcher: PrecompilingSearcher
    max_trials: int
    first_turn: int
    depth: int
    min_expected_gain: float = ENOUGH
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
        return self.gain is not None and self.gain < self.min_expected_gain


@dataclass(slots=True)
class WorkloadScheduler:
    """Give each workload a first turn, then whichever promises most another, until none does.

    A searcher that can't say what it expects has one turn, as long as its budget. `begin` makes
    the search of a workload when its first turn comes. `total` bounds the trials of all together.
    In every queue somebody has a turn, among the workloads that `queue_of` puts there.
    """

    waiting: list[Workload]
    begin: Callable[[Workload], WorkloadSearch]
    total: int
    queue_of: Callable[[Workload], int] = lambda workload: 0
    searches: list[WorkloadSearch] = field(default_factory=list)
    _current: dict[int, WorkloadSearch] = field(default_factory=dict)
    _turn_ends: dict[int, int] = field(default_factory=dict)

    def of(self, workload: Workload) -> WorkloadSearch:
        """Return the search of a workload that has had a turn."""
        return next(search for search in self.searches if search.workload == workload)

    def allow_another(self, search: WorkloadSearch) -> None:
        """Let a search propose one more config, for one that costs nothing."""
        search.max_trials += 1
        self.total += 1
        self._turn_ends[self.queue_of(search.workload)] += 1

    def current(self, queue: int = 0) -> WorkloadSearch | None:
        """Tell whose turn it is in a queue; None when its search is over."""
        while True:
            search = self._current.get(queue)
            if search is not None and not search.exhausted:
                most = min(search.max_trials, self._turn_ends[queue])
                # Last: what a searcher still expects takes long to say.
                if search.proposed < most and not search.found_enough:
                    return search
            left = self.total - sum(search.proposed for search in self.searches)
            following = next(
                (workload for workload in self.waiting if self.queue_of(workload) == queue), None
            )
            chosen = self._most_promising(queue) if following is None and left > 0 else None
            if following is not None:
                self.waiting.remove(following)
                chosen = self.begin(following)
                self.searches.append(chosen)
                left -= len(self.waiting) * FIRST_TURN_TRIALS
                self._turn_ends[queue] = min(chosen.first_turn, max(FIRST_TURN_TRIALS, left))
            elif chosen is not None:
                self._turn_ends[queue] = chosen.proposed + min(TURN_TRIALS, left)
            else:
                self._current.pop(queue, None)
                return None
            self._current[queue] = chosen

    def _most_promising(self, queue: int) -> WorkloadSearch | None:
        hopes = [
            (search.gain, search)
            for search in self.searches
            if self.queue_of(search.workload) == queue
            and not search.exhausted
            and search.proposed < search.max_trials
            and search.gain
        ]
        gain, search = max(hopes, key=lambda hope: hope[0], default=(0.0, None))
        return search if search is not None and gain >= search.min_expected_gain else None
