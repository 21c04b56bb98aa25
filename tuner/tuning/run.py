"""A run: what it tunes in which session, on which device, and what it leaves undecided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.device.base import Device
from tuner.model.config import SearchSpace
from tuner.model.errors import OutOfMemory, SpaceError, Unmeasured
from tuner.model.kernel import KernelSpec, Workload
from tuner.search.factory import require_listed
from tuner.search.pool import Pool, valid_configs
from tuner.session.events import LeftUndecided
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates, Evaluator
from tuner.tuning.progress import ProgressTracker
from tuner.tuning.verification import Verification


def undecided_of(session: Session) -> Mapping[str, str]:
    """Say why the workloads, by key, were given up that no run of a session has decided since."""
    decided = {result.workload.key for result in session.results()}
    events = session.events(LeftUndecided)
    return {event.workload: event.reason for event in events if event.workload not in decided}


class SkippedWorkloads:
    """What this run has given up, for want of memory say; the next run tries again.

    It is recorded once for each candidate's search and for the finals. Whatever comes later in the
    run leaves these workloads alone.
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


def unsearched_workloads(session: Session, candidate: str) -> Set[str]:
    """Name the undecided workloads, by key, on which the search of a candidate was given up.

    One whose finals came later has been searched to the end since.
    """
    unsearched: set[str] = set()
    for event in session.events(LeftUndecided):
        if event.candidate == candidate:
            unsearched.add(event.workload)
        elif not event.candidate:
            unsearched.discard(event.workload)
    return unsearched & undecided_of(session).keys()


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a session, as all of its steps see it.

    `pools` are those of the plan's candidate; another one's search has a run with its own.
    `prepare` has the device know, once, what configs are judged by; nothing runs before.
    """

    plan: Plan
    session: Session
    candidates: Candidates
    pools: dict[Workload, Pool]
    tracker: ProgressTracker
    verification: Verification
    skipped: SkippedWorkloads
    prepare: Callable[[], None] = lambda: None

    @property
    def device(self) -> Device:
        return self.candidates.device

    @property
    def evaluator(self) -> Evaluator:
        return self.candidates.evaluator(self.plan.candidate)

    def of(self, plan: Plan) -> Run:
        """Give the run as the search of another candidate sees it; raises as `pools_of`."""
        pools = pools_of(plan, self.candidates.evaluator(plan.candidate))
        return replace(self, plan=plan, pools=pools)


def pools_of(plan: Plan, evaluator: Evaluator) -> dict[Workload, Pool]:
    """Enumerate the valid configs of every tuned workload; raise `SpaceError` where none is."""
    pools = {}
    for workload in plan.tuned:
        pool = valid_configs(plan.space, evaluator.names(workload))
        if not len(pool):
            raise no_valid_config(plan.spec, plan.space, workload, pool)
        answered = evaluator.answered(workload)
        if answered is not None:
            # Where nothing is left the space has changed: then the trials say so.
            pool = pool.restricted(answered) or pool
        if plan.config.searcher == "exhaustive":
            require_listed(pool)
        pools[workload] = pool
    return pools


def no_valid_config(
    spec: KernelSpec, space: SearchSpace, workload: Workload, pool: Pool
) -> SpaceError:
    """Say which condition leaves a workload without any config."""
    condition, constraints = pool.emptied_by, "constraints"
    if space.prune:
        constraints = "constraints, or `prune`"
    which = f"all {constraints}" if condition is None else f"`{condition.text}`"
    message = f"no config satisfies {which} for workload {workload}"
    remedy = f"change the workload, the parameters' values or the {constraints}"
    if condition in space.prune:
        message = f"every config is left out as slow for workload {workload}: prune {which}"
        remedy = "loosen it, or try them all the same with --no-prune"
    line = None if condition is None else condition.line
    return SpaceError(message, path=spec.path, line=line, remedy=remedy)
