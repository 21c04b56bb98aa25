"""Search the workloads of a candidate together, each learning from what the others find."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil

import numpy as np

from tuner.model.config import Config, SearchSpace
from tuner.model.errors import OutOfMemory, SpaceError, TemplateError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.settings import ENOUGH
from tuner.model.trial import INITIAL, Status, Trial, fastest
from tuner.search.base import Features, StaticFeatureAware
from tuner.search.factory import default_budget, learns_from_others, make_searcher, require_listed
from tuner.search.journal import JournalFile
from tuner.search.pool import Pool, valid_configs
from tuner.session.events import SearchEnded, SpacePruned
from tuner.session.session import Session
from tuner.space.plan import Plan, distance
from tuner.space.template import Template
from tuner.tuning.evaluator import Evaluator, Pending
from tuner.tuning.executor import AHEAD, PrecompilingSearcher, depth_of, executing
from tuner.tuning.homes import keep_homes
from tuner.tuning.lanes import lane_of
from tuner.tuning.progress import ProgressTracker
from tuner.tuning.scheduler import FIRST_TURN_TRIALS, WorkloadScheduler, WorkloadSearch
from tuner.tuning.undecided import Undecided

JOURNAL = "optuna.journal"
# What each workload after the first adds to the trials of a search that learns from the others,
# unless told otherwise, or to look on for less than usual: ten workloads take four times the
# trials of one. With 22 many had no turn but the first, and lost 1 % by it
# (benchmarks/simulated_seeds.py).
FURTHER_TRIALS = 30
# A template that fails this many times before it compiles once is broken, not unlucky.
HOPELESS_COMPILES = 12
_UNCOMPILED = frozenset({Status.COMPILE, Status.TIMEOUT})
# What can be seen before a config runs.
_FORESEEN = frozenset({Status.COMPILE, Status.RESOURCE_LIMIT, Status.CONSTRAINT})
# Of the trials of a search of several workloads, so many of each are kept for this.
TRANSFERRED_CONFIGS = 3
# How often the neighbours of the best are tried, and then what is best on other workloads, where
# one of them is among the best from then on. With neighbours alone two seeds of a fleet end apart
# at 1.8 of 18 numbers of tokens, with both at 1.5 (benchmarks/simulated_fleet.py).
LOOKS_AROUND = 3
# Of so many of a workload's fastest. Of one alone two seeds of a fleet end apart more often, and
# with five they agree hardly better for as many trials again (benchmarks/simulated_fleet.py).
AROUND = 3
# So many of each at most, those whose values are nearest in the parameters' lists: a parameter with
# hundreds of values would else take more trials than the search.
NEIGHBOURS = 30
# Of so many others, the nearest, a workload learns: with the trials of all 57 of a space proposals
# take more than twice as long (benchmarks/many_workloads.py), and with those of 22 none were better
# (simulated_seeds.py).
LEARNT_FROM = 12


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


def note_space(
    plan: Plan, session: Session, evaluator: Evaluator, pools: Mapping[Workload, Pool]
) -> None:
    """Record for every tuned workload how many configs `prune`, or a recording, leaves of all."""
    noted = {(one.candidate, one.workload) for one in session.events(SpacePruned)}
    for workload, pool in pools.items():
        recorded = None if evaluator.answered(workload) is None else len(pool)
        if (plan.space.prune or recorded) and (plan.candidate, workload.key) not in noted:
            valid = valid_configs(plan.space.unpruned, evaluator.names(workload))
            sizes = valid.estimated_size, pool.estimated_whole, recorded
            session.record_event(SpacePruned(0, plan.candidate, workload.key, *sizes))


def cross_workload_transfer(
    completed: Sequence[Trial], pools: Mapping[Workload, Pool], most: int
) -> Iterator[tuple[Workload, Config]]:
    """Name untried configs: two of the nearest workload's best, then one of each farther one.

    Of each workload so many at most.
    """
    tried = {(trial.workload, trial.config) for trial in completed}
    ranked: dict[Workload, list[Config]] = {}
    for trial in fastest(completed):
        ranked.setdefault(trial.workload, []).append(trial.config)
    for own, pool in pools.items():
        near = sorted((w for w in ranked if w != own), key=lambda other: distance(own, other))
        wanted = [config for other in near[:1] for config in ranked[other][:2]]
        wanted += [ranked[other][0] for other in near[1:]]
        untried = (c for c in dict.fromkeys(wanted) if c in pool and (own, c) not in tried)
        yield from ((own, config) for config in islice(untried, most))


def next_to_the_best(
    completed: Sequence[Trial], pools: Mapping[Workload, Pool]
) -> Iterator[tuple[Workload, Config]]:
    """Name what differs from one of a workload's `AROUND` fastest in one parameter, untried.

    Of each, `NEIGHBOURS` at most. Searches that ended apart have mostly ended so near to each
    other: of the 7 numbers of tokens of a fused MoE kernel at which two seeds differed, 4 in one
    parameter alone.
    """
    told = {(trial.workload, trial.config) for trial in completed}
    best: dict[Workload, list[Config]] = {}
    for trial in fastest(completed):
        best.setdefault(trial.workload, []).append(trial.config)
    for own, pool in pools.items():
        for config in best.get(own, [])[:AROUND]:
            for near in _nearest_first(pool, pool.index(config)):
                if (own, near) not in told:
                    told.add((own, near))
                    yield own, near


def _nearest_first(pool: Pool, index: int) -> Iterator[Config]:
    around = pool.neighbours(index)
    steps = np.abs(np.subtract(pool.encoded[around], pool.encoded[index], dtype=np.int64))
    for near in around[np.argsort(steps.max(axis=1), kind="stable")][:NEIGHBOURS]:
        yield pool[int(near)]


def budget(plan: Plan, pool: Pool) -> int:
    """Say how many trials a workload gets: what was asked for, at most all."""
    return min(
        plan.config.trials or default_budget(plan.config.searcher, len(pool)), pool.estimated_size
    )


def nearest(own: Workload, workloads: Sequence[Workload]) -> frozenset[Workload]:
    """Choose the other workloads that one learns from."""
    others = (one for one in workloads if one != own)
    return frozenset(sorted(others, key=lambda other: distance(own, other))[:LEARNT_FROM])


def search_all(
    plan: Plan,
    session: Session,
    evaluator: Evaluator,
    progress: ProgressTracker,
    pools: dict[Workload, Pool],
    undecided: Undecided,
    *,
    searches_left: int = 1,
    warm: Mapping[Workload, Sequence[Config]] | None = None,
) -> None:
    """Search every tuned workload; `searches_left` counts this candidate, `warm` is tried first.

    Where memory ends on one, that one is left undecided.
    """
    workloads: Sequence[Workload] = plan.tuned
    later = any(one.name != plan.candidate for one in session.candidates()[-1:])
    if later or session.results() or session.trials(plan.candidate, stage="finals"):
        # An earlier run has gone on to what follows the search of this candidate.
        again = undecided.unsearched(plan.candidate)
        workloads = [workload for workload in plan.tuned if workload.key in again]
        progress.recount(plan.candidate, without=workloads)
    else:
        note_space(plan, session, evaluator, pools)
    for workload in workloads:
        if workload in undecided:
            undecided.skip(workload, plan.candidate)
    left = [workload for workload in workloads if workload not in undecided]
    if left:
        of = plan, session, evaluator, progress, pools, undecided
        Search(*of, left, warm or {}).run(searches_left)


@dataclass(eq=False)
class Search:
    """Propose, try and learn, for `workloads` of one plan together; of the others all is known."""

    plan: Plan
    session: Session
    evaluator: Evaluator
    progress: ProgressTracker
    pools: dict[Workload, Pool]
    undecided: Undecided
    workloads: Sequence[Workload]
    warm: Mapping[Workload, Sequence[Config]]

    def __post_init__(self) -> None:
        # What each workload is thought to take, and most of what all may take together.
        self._planned = {w: budget(self.plan, self.pools[w]) for w in self.workloads}
        config = self.plan.config
        # Who looks on for little looks as long as it takes, and around the best that was found.
        self._looks_on = config.trials is None and config.enough < ENOUGH
        if config.trials is None and not self._looks_on:
            for workload in self.plan.tuned[1:]:
                if workload in self._planned and self._learns_from_others(self.pools[workload]):
                    self._planned[workload] = min(self._planned[workload], FURTHER_TRIALS)
        in_turns = sum(self._planned.values()) - TRANSFERRED_CONFIGS * len(self._joined())
        # For good: where a member is lost, another does the work of its lane.
        self._lanes = {w: lane_of(self.evaluator.device, w) for w in self.workloads}
        self._scheduler = WorkloadScheduler(
            *([*self.workloads], self._begin_search, in_turns, self._lanes.__getitem__)
        )
        self._completed: list[tuple[Trial, Features | None]] = [
            (trial, None)
            for trial in self.session.trials(self.plan.candidate)
            if trial.workload not in self.workloads
        ]
        self._others_known = bool(self._completed)
        self._journal = JournalFile(self.session.directory / JOURNAL)
        self._near = {workload: nearest(workload, self.plan.tuned) for workload in self.plan.tuned}

    def run(self, searches_left: int) -> None:
        """Search until budgets, time, spaces or expectations are used up."""
        self.progress.expect(self._planned, searches_left=searches_left)
        self.progress.announce("search")
        lane = self._lanes.__getitem__
        with executing(self.evaluator, self._keep, lane) as self._executor:
            try:
                self._search()
            finally:
                self.progress.add_lanes(self._executor.device_s, self._executor.compiler_s)
        for search in self._scheduler.searches:
            search.searcher.close()
            trials = self.session.trials(self.plan.candidate, search.workload)
            if search.workload not in self.undecided:
                require_one_compiles(trials, self.plan.template)
                if search.found_enough and search.proposed < search.max_trials:
                    self._note_end(search, search.gain)
            self._expect(search, search.proposed)

    def _search(self) -> None:
        executor, scheduler = self._executor, self._scheduler
        lanes = sorted({*self._lanes.values()})
        while True:
            for lane in lanes:
                self._fill(lane)
            if not len(executor):
                break
            trial = self._taken()
            if trial is not None:
                search = scheduler.of(trial.workload)
                search.searcher.tell(trial)
                self._learn(search, trial)
        completed = [trial for trial, _ in self._completed]
        shared = cross_workload_transfer(completed, self._joined(), TRANSFERRED_CONFIGS)
        completed += self._try_all(shared)
        for _ in range(LOOKS_AROUND if self._looks_on else 0):
            before = len(completed)
            completed += self._try_all(next_to_the_best(completed, self._learning()), extra=True)
            shared = cross_workload_transfer(completed, self._joined(), LEARNT_FROM)
            completed += self._try_all(shared, extra=True)
            if len(completed) == before:
                break

    def _try_all(
        self, wanted: Iterable[tuple[Workload, Config]], *, extra: bool = False
    ) -> list[Trial]:
        """Try what no searcher has asked for; `extra` is beside the workloads' budgets.

        As many are under way as compile at a time: what was begun when the time is over still runs.
        """
        waiting: defaultdict[int, deque[tuple[Workload, Config]]] = defaultdict(deque)
        for workload, config in wanted:
            waiting[self._lanes[workload]].append((workload, config))
        depth = max(AHEAD, self.evaluator.device.info.parallel)
        taken: list[Trial] = []
        while True:
            for lane, left in waiting.items():
                while left and self._executor.under_way(lane) < depth:
                    self._try_besides(*left.popleft(), extra=extra)
            if not len(self._executor):
                return taken
            trial = self._taken()
            if trial is not None:
                taken.append(trial)

    def _try_besides(self, workload: Workload, config: Config, *, extra: bool) -> None:
        search = self._scheduler.of(workload)
        if workload in self.undecided:
            return
        search.max_trials += extra
        if not self._try(search, config):
            search.max_trials -= extra

    def _taken(self) -> Trial | None:
        """Take and keep a trial; None where memory ended on its workload, which ends its search."""
        try:
            trial = self._executor.take()
        except OutOfMemory as error:
            search = self._scheduler.of_key(error.workload)
            self.undecided.give_up(search.workload, error, self.plan.candidate)
            search.exhausted = True
            search.proposed -= 1
            return None
        self._keep(trial)
        return trial

    def _fill(self, lane: int) -> None:
        """Propose until enough trials of a lane are under way, or its search is over."""
        while (search := self._scheduler.current(lane)) is not None:
            if self._executor.under_way(lane) >= search.depth:
                return
            self._propose(search)

    def _joined(self) -> dict[Workload, Pool]:
        joined = [pool for pool in self.pools.values() if self._learns_from_others(pool)]
        return self._learning() if len(joined) > 1 else {}

    def _learning(self) -> dict[Workload, Pool]:
        """Say whose searches are guided by what is tried; some searchers take the whole space."""
        return {
            workload: self.pools[workload]
            for workload in self.workloads
            if workload not in self.undecided and self._learns_from_others(self.pools[workload])
        }

    def _propose(self, search: WorkloadSearch) -> None:
        pending = search.searcher.next()
        for refused in search.searcher.refused():
            self.progress.expect_more(search.workload, 1)
            self._keep(refused)
            self._learn(search, refused)
        if pending is None or not self._try(search, pending.config, pending):
            search.exhausted = True

    def _try(self, search: WorkloadSearch, config: Config, pending: Pending | None = None) -> bool:
        """Send a config, or what is known of it, to the device; False where none may begin."""
        known = self.session.trial(self.plan.candidate, search.workload, config)
        if known is None:
            if not search.may_begin:
                return False
            if search.deadline_s is not None and time.monotonic() >= search.deadline_s:
                self._note_end(search, late=True)
                return False
        search.not_proposed.discard(config)
        search.proposed += 1
        self._expect(search, max(search.proposed, self._planned[search.workload]))
        self._executor.begin(known or pending or self.evaluator.start(search.workload, config))
        return True

    def _keep(self, trial: Trial) -> None:
        for gone in keep_homes(self.session, self.evaluator.device):
            self.progress.announce("search", trial.workload, gone)
        known = self.session.trial(trial.candidate, trial.workload, trial.config)
        if known is None:
            self.session.record(trial)
        self.progress.count(trial, measured=known is None)

    def _learn(self, search: WorkloadSearch, trial: Trial) -> None:
        features = search.searcher.features(trial.config)
        self._completed.append((trial, features))
        for other in self._scheduler.searches:
            if trial.workload in self._near[other.workload]:
                other.searcher.share(trial, features)
        search.completed += 1
        search.compiled = search.compiled or trial.status not in _UNCOMPILED
        if search.completed >= HOPELESS_COMPILES and not search.compiled:
            search.exhausted = True

    def _begin_search(self, workload: Workload) -> WorkloadSearch:
        plan, pool, key = self.plan, self.pools[workload], workload.key
        parallel = self.evaluator.device.info.parallel
        most = budget(plan, pool)
        searcher = make_searcher(
            plan.config.searcher,
            pool,
            plan.space,
            seed=plan.config.seed,
            budget=most,
            seeds=self._seeds(workload),
            axes=workload.values,
            journal=self._journal,
            study_name=key if plan.candidate == INITIAL else f"{plan.candidate} {key}",
        )
        waited = self._executor.waited
        precompiling = PrecompilingSearcher(searcher, self.evaluator, workload, waited)
        for trial, features in self._completed:
            if trial.workload in self._near[workload]:
                precompiling.share(trial, features)
        # A searcher that knows the others' trials is asked again when all have had a turn. The
        # first one of each lane has no others to know: they share what one alone would take.
        first_turn = most
        if self._learns_from_others(pool):
            several = len({*self._lanes.values()})
            first_turn = FIRST_TURN_TRIALS if self._completed else ceil(most / several)
        tried = self.session.trials(plan.candidate, workload)
        foreseeing = isinstance(searcher, StaticFeatureAware)
        late = [(e.candidate, e.workload) for e in self.session.events(SearchEnded) if e.late]
        search = WorkloadSearch(
            workload,
            precompiling,
            most,
            first_turn=first_turn,
            not_proposed={t.config for t in tried if not (foreseeing and t.status in _FORESEEN)},
            deadline_s=self.progress.deadline_s(workload, self._beside(workload)),
            replaying=(plan.candidate, key) in late,
            depth=max(depth_of(searcher), parallel),
            enough=plan.config.enough,
        )
        if self._others_known and precompiling.learns_from_others:
            self._take_up(search, tried)
        precompiling.begin()
        return search

    def _take_up(self, search: WorkloadSearch, tried: Sequence[Trial]) -> None:
        """Tell a search what was tried before: knowing more of the others, it proposes others."""
        pool = self.pools[search.workload]
        for trial in (one for one in tried if one.config in pool):
            if trial.config in search.not_proposed:
                search.not_proposed.remove(trial.config)
                search.proposed += 1
            else:  # it cost no trial
                self.progress.expect_more(search.workload, 1)
            self._keep(trial)
            search.searcher.tell(trial)
            self._learn(search, trial)

    def _beside(self, workload: Workload) -> list[Workload]:
        """List the workloads of a lane, in the order in which they are searched."""
        return [w for w, lane in self._lanes.items() if lane == self._lanes[workload]]

    def _note_end(
        self, search: WorkloadSearch, expected_gain: float | None = None, *, late: bool = False
    ) -> None:
        name, key = self.plan.candidate, search.workload.key
        ended = SearchEnded(0, name, key, search.proposed, expected_gain, late)
        if ended not in self.session.events(SearchEnded):
            self.session.record_event(ended)

    def _expect(self, search: WorkloadSearch, trials: int) -> None:
        more = trials - self._planned[search.workload]
        if more:
            self.progress.expect_more(search.workload, more)
            self._planned[search.workload] = trials

    def _seeds(self, workload: Workload) -> tuple[Config, ...]:
        """Start from the space's own configs, what past runs found, and what is best near by."""
        pool, space = self.pools[workload], self.plan.space
        warm = self.warm.get(workload, ())
        if self.evaluator.answered(workload) is None:
            # What was fast before is no less so for being thought slow.
            names, unpruned = self.evaluator.names(workload), space.unpruned
            pool.with_also(config for config in warm if unpruned.allows(config, names))
        wanted: list[Config | None] = [*space.asked_for, *warm]
        if not self._learns_from_others(pool):
            before = [search.workload for search in self._scheduler.searches]
            near = sorted(before, key=lambda other: distance(workload, other))
            ranked = fastest(trial for trial, _ in self._completed)
            best = {trial.workload: trial.config for trial in reversed(ranked)}
            wanted += [best.get(other) for other in near]
        return tuple(dict.fromkeys(c for c in wanted if c is not None and c in pool))

    def _learns_from_others(self, pool: Pool) -> bool:
        return learns_from_others(self.plan.config.searcher, len(pool), self.plan.config.trials)


def require_one_compiles(trials: Sequence[Trial], template: Template) -> None:
    """Raise `TemplateError` with the compiler's first error where no config compiled."""
    failed = [trial for trial in trials if trial.status in _UNCOMPILED]
    if failed and len(failed) == len(trials):
        raise TemplateError(
            f"none of {len(trials)} configs compiles; the first error, for {failed[0].config}:\n"
            f"{failed[0].reason}",
            path=template.path,
        )
