"""Search one workload after the other, each starting from what won on its neighbours."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from tuner.errors import SpaceError, TemplateError
from tuner.evaluate import Evaluator, Pending
from tuner.kernel import KernelSpec, Workload
from tuner.plan import Plan, distance
from tuner.search.base import Searcher
from tuner.search.factory import default_budget, make_searcher
from tuner.search.pool import Pool, valid_configs
from tuner.session import Session
from tuner.space import Config
from tuner.standing import Standing
from tuner.template import Template
from tuner.trial import INITIAL, Status, Trial

JOURNAL = "optuna.journal"
# Configs proposed ahead of the device, so that it never waits for the compiler. Fixed, not taken
# from the number of cores: the same seed must make the same proposals everywhere.
LOOKAHEAD = 8
# A template that fails this many times before it compiles once is broken, not unlucky.
HOPELESS_COMPILES = 12
_UNCOMPILED = frozenset({Status.COMPILE, Status.TIMEOUT})


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


def search_all(
    plan: Plan,
    session: Session,
    evaluator: Evaluator,
    standing: Standing,
    pools: dict[Workload, Pool],
    *,
    searches_left: int = 1,
) -> None:
    """Search every tuned workload of a plan's candidate.

    `searches_left` counts the candidates that may still be searched, this one included.
    """
    budgets = {workload: budget(plan, pool) for workload, pool in pools.items()}
    standing.expect(budgets, searches_left=searches_left)
    search = Search(plan, session, evaluator, standing, pools)
    for workload in plan.tuned:
        standing.announce("search", workload)
        search.run(workload)


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
            most, deadline_s = len(self._session.trials(self._plan.candidate, workload)), None
        searcher = self._searcher(workload)
        under_way: deque[Pending | Trial] = deque()
        asked = told = 0
        compiled = False
        while True:
            room = min(LOOKAHEAD - len(under_way), most - asked)
            if room > 0 and (deadline_s is None or time.monotonic() < deadline_s):
                configs = searcher.ask(room)
                asked += len(configs) if configs else most
                under_way.extend(self._begin(workload, config) for config in configs)
            if not under_way:
                break
            trial = self._end(under_way.popleft())
            searcher.tell(trial)
            told, compiled = told + 1, compiled or trial.status not in _UNCOMPILED
            if told == HOPELESS_COMPILES and not compiled:
                break
        self._require_a_compiled_config(workload)

    def _begin(self, workload: Workload, config: Config) -> Pending | Trial:
        known = self._session.trial(self._plan.candidate, workload, config)
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
        name = self._plan.candidate
        later = self._plan.tuned[self._plan.tuned.index(workload) + 1 :]
        return (
            bool(self._session.trials(stage="finals"))
            or self._session.candidates()[-1].name != name
            or any(self._session.trials(name, w) for w in later)
        )

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
            study_name=self._study(workload),
        )

    def _study(self, workload: Workload) -> str:
        name = self._plan.candidate
        return workload.key if name == INITIAL else f"{name} {workload.key}"

    def _seeds(self, workload: Workload) -> tuple[Config, ...]:
        """Start from the space's default and what won on the workloads searched before."""
        before = self._plan.tuned[: self._plan.tuned.index(workload)]
        near = sorted(before, key=lambda other: distance(workload, other))
        best = (self._best(other) for other in near)
        pool = self._pools[workload]
        wanted = (self._plan.space.default, *best)
        return tuple(dict.fromkeys(c for c in wanted if c is not None and c in pool))

    def _best(self, workload: Workload) -> Config | None:
        trials = self._session.trials(self._plan.candidate, workload)
        timed = [(trial.time_us, trial.config) for trial in trials if trial.time_us is not None]
        return min(timed, key=lambda one: one[0])[1] if timed else None

    def _require_a_compiled_config(self, workload: Workload) -> None:
        trials = self._session.trials(self._plan.candidate, workload)
        require_one_compiles(trials, self._plan.template)


def require_one_compiles(trials: Sequence[Trial], template: Template) -> None:
    """Raise `TemplateError` with the compiler's first error where no config compiled."""
    failed = [trial for trial in trials if trial.status in _UNCOMPILED]
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
