"""Search the workloads of a candidate together, each learning from what the others find."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice

import numpy as np

from tuner.model.config import Config
from tuner.model.errors import TemplateError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Status, Trial
from tuner.search.base import Features, Searcher, StaticFeatureAware
from tuner.search.factory import default_budget, learns_from_others, make_searcher
from tuner.search.pool import Pool
from tuner.session.events import SearchEnded
from tuner.session.session import Session
from tuner.space.plan import Plan, distance
from tuner.space.template import Template
from tuner.tuning.evaluator import Evaluator, Pending
from tuner.tuning.executor import (
    DEPTH,
    DEPTH_FORESEEN,
    PrecompilingSearcher,
    TrialExecutor,
    prompt_threads,
)
from tuner.tuning.progress import ProgressTracker
from tuner.tuning.scheduler import FIRST_TURN_TRIALS, WorkloadScheduler, WorkloadSearch

# Of the trials of a search of several workloads, so many of each are kept for this.
CROSSED = 3


def crossings(
    told: Sequence[Trial], pools: Mapping[Workload, Pool]
) -> Iterator[tuple[Workload, Config]]:
    """Name up to `CROSSED` valid, untried configs for each workload of `pools`.

    First the best two of the nearest other workload, then the best one of each that is farther.
    """
    tried = {(trial.workload, trial.config) for trial in told}
    ranked: dict[Workload, list[Config]] = {}
    timed = (trial for trial in told if trial.time_us is not None)
    for trial in sorted(timed, key=lambda trial: trial.time_us or 0.0):
        ranked.setdefault(trial.workload, []).append(trial.config)
    for own, pool in pools.items():
        near = sorted((w for w in ranked if w != own), key=lambda other: distance(own, other))
        wanted = [config for other in near[:1] for config in ranked[other][:2]]
        wanted += [ranked[other][0] for other in near[1:]]
        untried = (c for c in dict.fromkeys(wanted) if c in pool and (own, c) not in tried)
        yield from ((own, config) for config in islice(untried, CROSSED))


JOURNAL = "optuna.journal"
# The kind of note, in round 0, that says why a search ended before its budget.
# What each workload after the first adds to the trials of a search that learns from the others,
# unless told otherwise: ten workloads take three times the trials of one.
FURTHER_TRIALS = 22
# A template that fails this many times before it compiles once is broken, not unlucky.
HOPELESS_COMPILES = 12
_UNCOMPILED = frozenset({Status.COMPILE, Status.TIMEOUT})
# What can be seen before a config runs.
_FORESEEN = frozenset({Status.COMPILE, Status.RESOURCE_LIMIT, Status.CONSTRAINT})


def budget(plan: Plan, pool: Pool) -> int:
    """Say how many trials a workload gets: what was asked for, at most all."""
    return min(
        plan.config.trials or default_budget(plan.config.searcher, len(pool)), pool.estimated_size
    )


def _planned(plan: Plan, pools: Mapping[Workload, Pool]) -> dict[Workload, int]:
    """Say how many trials each workload is thought to take, most of what all may take together."""
    budgets = {workload: budget(plan, pool) for workload, pool in pools.items()}
    if plan.config.trials is None:
        for workload in plan.tuned[1:]:
            if learns_from_others(plan.config.searcher, len(pools[workload]), plan.config.trials):
                budgets[workload] = min(budgets[workload], FURTHER_TRIALS)
    return budgets


def search_all(
    plan: Plan,
    session: Session,
    evaluator: Evaluator,
    standing: ProgressTracker,
    pools: dict[Workload, Pool],
    *,
    searches_left: int = 1,
    warm: Mapping[Workload, Sequence[Config]] | None = None,
) -> None:
    """Search every tuned workload of a plan's candidate.

    `searches_left` counts the candidates that may still be searched, this one included. `warm`
    holds the configs of earlier runs that each workload tries first.
    """
    if _is_over(plan, session):
        standing.recount(plan.candidate)
        return
    standing.expect(_planned(plan, pools), searches_left=searches_left)
    Search(plan, session, evaluator, standing, pools, warm or {}).run()


class Search:
    """Propose, try and learn, for all workloads of one plan together."""

    def __init__(
        self,
        plan: Plan,
        session: Session,
        evaluator: Evaluator,
        standing: ProgressTracker,
        pools: dict[Workload, Pool],
        warm: Mapping[Workload, Sequence[Config]],
    ) -> None:
        self._plan, self._session, self._warm = plan, session, warm
        self._evaluator, self._standing = evaluator, standing
        self._pools = pools
        self._planned = _planned(plan, pools)
        in_turns = sum(self._planned.values()) - CROSSED * len(self._joined())
        self._turns = WorkloadScheduler(plan.tuned, self._begin_part, in_turns)
        self._pipeline = TrialExecutor(evaluator)
        self._told: list[tuple[Trial, Features | None]] = []

    def run(self) -> None:
        """Search until budgets, time, spaces or expectations are used up."""
        with ExitStack() as stack:
            stack.enter_context(prompt_threads())
            stack.callback(self._pipeline.close)
            try:
                self._run()
            except BaseException:
                for trial in self._pipeline.finished():
                    self._keep(trial)
                raise
        for part in self._turns.parts:
            part.proposer.close()
            self._require_a_compiled_config(part.workload)
            if part.found_enough and part.asked < part.most:
                self._note_end(part, part.gain)
            self._expect(part, part.asked)

    def _run(self) -> None:
        pipeline = self._pipeline
        while True:
            while (part := self._turns.current()) is not None and len(pipeline) < part.depth:
                self._propose(part)
            if not len(pipeline):
                break
            trial = pipeline.take()
            self._keep(trial)
            (part,) = (part for part in self._turns.parts if part.workload == trial.workload)
            part.proposer.tell(trial)
            self._learn(part, trial)
        self._cross()

    def _cross(self) -> None:
        """Try on every workload what won near by, where nobody has."""
        parts = {part.workload: part for part in self._turns.parts}
        told = [trial for trial, _ in self._told]
        for workload, config in crossings(told, self._joined()):
            self._try(parts[workload], config)
        while len(self._pipeline):
            self._keep(self._pipeline.take())

    def _joined(self) -> dict[Workload, Pool]:
        """Return the workloads that learn from each other."""
        joined = {w: pool for w, pool in self._pools.items() if self._learns_from_others(pool)}
        return joined if len(joined) > 1 else {}

    def _propose(self, part: WorkloadSearch) -> None:
        pending = part.proposer.next()
        for refused in part.proposer.refused():
            self._standing.expect_more(part.workload, 1)
            self._keep(refused)
            self._learn(part, refused)
        if pending is None:
            part.over = True
            return
        if not self._try(part, pending.config, pending):
            part.over = True

    def _try(self, part: WorkloadSearch, config: Config, pending: Pending | None = None) -> bool:
        """Send a config to the device, or what is known of it; False where nothing new may begin.

        `pending` is there where its compilation has begun.
        """
        known = self._session.trial(self._plan.candidate, part.workload, config)
        if known is None and not self._may_begin(part):
            return False
        part.unasked.discard(config)
        part.asked += 1
        self._expect(part, max(part.asked, self._planned[part.workload]))
        self._pipeline.begin(known or pending or self._evaluator.start(part.workload, config))
        return True

    def _may_begin(self, part: WorkloadSearch) -> bool:
        if not part.may_begin:
            return False
        late = part.deadline_s is not None and time.monotonic() >= part.deadline_s
        if late:
            self._note_end(part, late=True)
        return not late

    def _keep(self, trial: Trial) -> None:
        """Record a trial, unless an earlier run has, and count it."""
        known = self._session.trial(trial.candidate, trial.workload, trial.config)
        if known is None:
            self._session.record(trial)
        self._standing.count(trial, measured=known is None)

    def _learn(self, part: WorkloadSearch, trial: Trial) -> None:
        features = part.proposer.features(trial.config)
        self._told.append((trial, features))
        for other in self._turns.parts:
            if other is not part:
                other.proposer.share(trial, features)
        part.told += 1
        part.compiled = part.compiled or trial.status not in _UNCOMPILED
        if part.told >= HOPELESS_COMPILES and not part.compiled:
            part.over = True

    def _begin_part(self, workload: Workload) -> WorkloadSearch:
        searcher = self._searcher(workload)
        proposer = PrecompilingSearcher(searcher, self._evaluator, workload)
        for trial, features in self._told:
            proposer.share(trial, features)
        pool = self._pools[workload]
        most = budget(self._plan, pool)
        # A searcher that knows the others' trials is asked again when all have had a turn.
        joins = self._told and self._learns_from_others(pool)
        tried = self._session.trials(self._plan.candidate, workload)
        foreseeing = isinstance(searcher, StaticFeatureAware)
        return WorkloadSearch(
            workload,
            proposer,
            most,
            first_turn=FIRST_TURN_TRIALS if joins else most,
            unasked={t.config for t in tried if not (foreseeing and t.status in _FORESEEN)},
            deadline_s=self._standing.deadline_s(workload),
            replaying=self._is_ended(workload),
            depth=DEPTH_FORESEEN if foreseeing else DEPTH,
        )

    def _note_end(
        self, part: WorkloadSearch, expected_gain: float | None = None, *, late: bool = False
    ) -> None:
        """Write down why a search ended before its budget."""
        name, key = self._plan.candidate, part.workload.key
        ended = SearchEnded(0, name, key, part.asked, expected_gain, late)
        if ended not in self._session.events(SearchEnded):
            self._session.record_event(ended)

    def _expect(self, part: WorkloadSearch, trials: int) -> None:
        more = trials - self._planned[part.workload]
        if more:
            self._standing.expect_more(part.workload, more)
            self._planned[part.workload] = trials

    def _is_ended(self, workload: Workload) -> bool:
        """Whether an earlier run ended this search for want of time."""
        name, key = self._plan.candidate, workload.key
        return any(
            (ended.candidate, ended.workload, ended.late) == (name, key, True)
            for ended in self._session.events(SearchEnded)
        )

    def _searcher(self, workload: Workload) -> Searcher:
        pool = self._pools[workload]
        return make_searcher(
            self._plan.config.searcher,
            pool,
            self._plan.space,
            seed=self._plan.config.seed,
            budget=budget(self._plan, pool),
            seeds=self._seeds(workload),
            axes=workload.values,
            journal=self._session.directory / JOURNAL,
            study_name=self._study(workload),
        )

    def _study(self, workload: Workload) -> str:
        name = self._plan.candidate
        return workload.key if name == INITIAL else f"{name} {workload.key}"

    def _seeds(self, workload: Workload) -> tuple[Config, ...]:
        """Start from the space's own configs, what past runs found, and what is best near by.

        A searcher that learns from other workloads makes more of those trials than their best.
        """
        pool = self._pools[workload]
        space = self._plan.space
        wanted = [space.default, *space.suggestions, *self._warm.get(workload, ())]
        if not self._learns_from_others(pool):
            before = [part.workload for part in self._turns.parts]
            near = sorted(before, key=lambda other: distance(workload, other))
            wanted += [self._best(other) for other in near]
        return tuple(dict.fromkeys(c for c in wanted if c is not None and c in pool))

    def _learns_from_others(self, pool: Pool) -> bool:
        return learns_from_others(self._plan.config.searcher, len(pool), self._plan.config.trials)

    def _best(self, workload: Workload) -> Config | None:
        told = [trial for trial, _ in self._told if trial.workload == workload]
        timed = [(trial.time_us, trial.config) for trial in told if trial.time_us is not None]
        return min(timed, key=lambda one: one[0])[1] if timed else None

    def _require_a_compiled_config(self, workload: Workload) -> None:
        trials = self._session.trials(self._plan.candidate, workload)
        require_one_compiles(trials, self._plan.template)


def _is_over(plan: Plan, session: Session) -> bool:
    """Whether an earlier run has gone on to what follows the search of this candidate."""
    if session.results() or session.trials(plan.candidate, stage="finals"):
        return True
    return any(one.name != plan.candidate for one in session.candidates()[-1:])


def require_one_compiles(trials: Sequence[Trial], template: Template) -> None:
    """Raise `TemplateError` with the compiler's first error where no config compiled."""
    failed = [trial for trial in trials if trial.status in _UNCOMPILED]
    if failed and len(failed) == len(trials):
        raise TemplateError(
            f"none of {len(trials)} configs compiles; the first error, for {failed[0].config}:\n"
            f"{failed[0].reason}",
            path=template.path,
        )


# Of each workload's configs, so many of the fastest are measured on all the others: what a
# dispatch chooses among has to be known everywhere.
BEST = 3


class Survey:
    """Fill up every workload of a searched candidate to `plan.config.surveyed` measured configs.

    First what is fastest on the other workloads, then random configs, the same on all of them as
    far as they are valid. What the session holds is not measured again.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        evaluator: Evaluator,
        standing: ProgressTracker,
        pools: Mapping[Workload, Pool],
    ) -> None:
        self._plan, self._session = plan, session
        self._evaluator, self._standing = evaluator, standing
        self._pools, self._configs = pools, plan.config.surveyed or 0

    def run(self) -> None:
        """Measure what is missing, compiling ahead of the device."""
        pipeline = TrialExecutor(self._evaluator)
        with ExitStack() as stack:
            stack.enter_context(prompt_threads())
            stack.callback(pipeline.close)
            try:
                for workload, config in self._missing():
                    if len(pipeline) >= DEPTH:
                        self._keep(pipeline)
                    pipeline.begin(self._evaluator.start(workload, config))
                while len(pipeline):
                    self._keep(pipeline)
            except BaseException:
                for trial in pipeline.finished():
                    self._session.record(trial)
                raise

    def _missing(self) -> Iterator[tuple[Workload, Config]]:
        best = self._best()
        for workload in self._plan.tuned:
            pool, name = self._pools[workload], self._plan.candidate
            known = {trial.config for trial in self._session.trials(name, workload)}
            others = [c for c in best if c in pool and c not in known]
            left = max(0, min(self._configs, len(pool)) - len(known) - len(others))
            drawn = (c for c in self._shuffled(pool) if c not in known and c not in others)
            wanted = [*others, *(config for config, _ in zip(drawn, range(left), strict=False))]
            self._standing.expect_more(workload, len(wanted))
            yield from ((workload, config) for config in wanted)

    def _best(self) -> list[Config]:
        found: dict[Config, None] = {}
        for workload in self._plan.tuned:
            trials = self._session.trials(self._plan.candidate, workload)
            timed = sorted((t.time_us, n, t) for n, t in enumerate(trials) if t.time_us is not None)
            found |= dict.fromkeys(trial.config for _, _, trial in timed[:BEST])
        return list(found)

    def _shuffled(self, pool: Pool) -> Iterator[Config]:
        order = np.random.default_rng(self._plan.config.seed).permutation(len(pool))
        return (pool[int(index)] for index in order)

    def _keep(self, pipeline: TrialExecutor) -> None:
        trial = pipeline.take()
        self._session.record(trial)
        self._standing.count(trial, measured=True)
