"""Search one workload after the other, each starting from what won on its neighbours."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from tuner.errors import SpaceError, TemplateError
from tuner.evaluate import Evaluator, Pending
from tuner.kernel import KernelSpec, Workload
from tuner.plan import CANDIDATE, Plan, distance
from tuner.search.base import Searcher
from tuner.search.factory import default_budget, make_searcher
from tuner.search.pool import Pool, valid_configs
from tuner.session import Session
from tuner.space import Config
from tuner.standing import Standing
from tuner.template import Template
from tuner.trial import Status, Trial

JOURNAL = "optuna.journal"
# Configs proposed ahead of the device, so that it never waits for the compiler. Fixed, not taken
# from the number of cores: the same seed must make the same proposals everywhere.
LOOKAHEAD = 8
# A template that fails this many times before it compiles once is broken, not unlucky.
HOPELESS_COMPILES = 12


def pools_of(plan: Plan, evaluator: Evaluator) -> dict[Workload, Pool]:
    """Enumerate the valid configs of every tuned workload; raise `SpaceError` where none is."""
    pools = {}
    for workload in plan.tuned:
        pool = valid_configs(plan.space, evaluator.names(workload))
        if not len(pool):
            raise no_valid_config(plan.spec, workload, pool)
        pools[workload] = pool
    return pools


def budget(plan: Plan, pool: Pool) -> int:
    """Say how many trials a workload gets: what was asked for, at most all."""
    return min(plan.trials or default_budget(plan.searcher, len(pool)), len(pool))


class Search:
    """Propose, try and learn, for the workloads of one plan."""

    def __init__(
        self,
        plan: Plan,
        session: Session,
        evaluator: Evaluator,
        standing: Standing,
        pools: dict[Workload, Pool],
    ) -> None:
        self._plan, self._session = plan, session
        self._evaluator, self._standing = evaluator, standing
        self._pools = pools

    def run(self, workload: Workload) -> None:
        """Search one workload until its budget, its time or its space is used up."""
        most = budget(self._plan, self._pools[workload])
        deadline_s = self._standing.deadline_s(workload)
        if self._is_over(workload):
            most, deadline_s = len(self._session.trials(CANDIDATE, workload)), None
        searcher = self._searcher(workload)
        under_way: deque[Pending | Trial] = deque()
        asked = 0
        while True:
            room = min(LOOKAHEAD - len(under_way), most - asked)
            if room > 0 and (deadline_s is None or time.monotonic() < deadline_s):
                configs = searcher.ask(room)
                asked += len(configs) if configs else most
                under_way.extend(self._begin(workload, config) for config in configs)
            if not under_way:
                break
            searcher.tell(self._end(under_way.popleft()))
            self._require_hope(workload)
        self._require_a_compiled_config(workload)

    def _begin(self, workload: Workload, config: Config) -> Pending | Trial:
        known = self._session.trial(CANDIDATE, workload, config)
        return known or self._evaluator.start(workload, config)

    def _end(self, under_way: Pending | Trial) -> Trial:
        if isinstance(under_way, Trial):
            self._standing.count(under_way, measured=False)
            return under_way
        incumbent_us = self._standing.of(under_way.workload).best_us
        trial = self._evaluator.finish(under_way, incumbent_us=incumbent_us)
        self._session.record(trial)
        self._standing.count(trial, measured=True)
        return trial

    def _is_over(self, workload: Workload) -> bool:
        """Whether an earlier run ended this search for want of time and went on to what follows."""
        if self._plan.time_s is None:
            return False
        later = self._plan.tuned[self._plan.tuned.index(workload) + 1 :]
        follows = self._session.trials(CANDIDATE, stage="finals")
        return bool(follows) or any(self._session.trials(CANDIDATE, w) for w in later)

    def _searcher(self, workload: Workload) -> Searcher:
        pool = self._pools[workload]
        return make_searcher(
            self._plan.searcher,
            pool,
            self._plan.space,
            seed=self._plan.seed,
            budget=budget(self._plan, pool),
            seeds=self._seeds(workload),
            journal=self._session.directory / JOURNAL,
            study_name=workload.key,
        )

    def _seeds(self, workload: Workload) -> tuple[Config, ...]:
        """Start from the space's default and what won on the workloads searched before."""
        before = self._plan.tuned[: self._plan.tuned.index(workload)]
        near = sorted(before, key=lambda other: distance(workload, other))
        best = (self._standing.of(other).best_config for other in near)
        pool = self._pools[workload]
        wanted = (self._plan.space.default, *best)
        return tuple(dict.fromkeys(c for c in wanted if c is not None and c in pool))

    def _require_hope(self, workload: Workload) -> None:
        counts = self._standing.of(workload).counts
        if counts.get(Status.COMPILE, 0) >= HOPELESS_COMPILES and len(counts) == 1:
            self._require_a_compiled_config(workload)

    def _require_a_compiled_config(self, workload: Workload) -> None:
        trials = self._session.trials(CANDIDATE, workload)
        require_one_compiles(trials, self._plan.template)


def require_one_compiles(trials: Sequence[Trial], template: Template) -> None:
    """Raise `TemplateError` with the compiler's first error where no config compiled."""
    failed = [trial for trial in trials if trial.status in (Status.COMPILE, Status.TIMEOUT)]
    if failed and len(failed) == len(trials):
        raise TemplateError(
            f"none of {len(trials)} configs compiles; the first error, for {failed[0].config}:\n"
            f"{failed[0].reason}",
            path=template.path,
        )


def no_valid_config(spec: KernelSpec, workload: Workload, pool: Pool) -> SpaceError:
    """Say which constraint leaves a workload without any config."""
    constraint = pool.emptied_by
    which = "all constraints" if constraint is None else f"`{constraint.text}`"
    return SpaceError(
        f"no config satisfies {which} for workload {workload}",
        path=spec.path,
        line=None if constraint is None else constraint.line,
        remedy="change the workload, the parameters' values or the constraints",
    )
