"""Search the workloads of a candidate together, each learning from what the others find."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import ceil

import numpy as np

from tuner.device.group import as_group
from tuner.model.config import Config
from tuner.model.errors import OutOfMemory, TemplateError
from tuner.model.kernel import Workload
from tuner.model.settings import ENOUGH
from tuner.model.trial import INITIAL, LEFT_OUT, Status, Trial, fastest
from tuner.search.base import Features, StaticFeatureAware
from tuner.search.factory import default_budget, learns_from_others, make_searcher
from tuner.search.journal import JournalFile
from tuner.search.pool import Pool, valid_configs
from tuner.session.events import SearchEnded, SpacePruned
from tuner.space.plan import Plan, distance
from tuner.space.template import Template
from tuner.tuning.device_queues import queue_of, record_assignment
from tuner.tuning.evaluator import Pending
from tuner.tuning.executor import AHEAD, DEPTH, PrecompilingSearcher, depth_of, executing
from tuner.tuning.hopeless import Hopeless
from tuner.tuning.keep_bits import CHOSEN, CLASSES, CONFIGS, choose_bits, list_class_members
from tuner.tuning.run import Run, unsearched_workloads
from tuner.tuning.scheduler import FIRST_TURN_TRIALS, WorkloadScheduler, WorkloadSearch

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
# Of each workload's configs, so many of the fastest are measured on all the others: what a
# dispatch chooses among has to be known everywhere.
CROSS_MEASURED = 3


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
    tried = {(trial.workload, trial.config) for trial in completed}
    best: dict[Workload, list[Config]] = {}
    for trial in fastest(completed):
        best.setdefault(trial.workload, []).append(trial.config)
    for own, pool in pools.items():
        for config in best.get(own, [])[:AROUND]:
            index = pool.index(config)
            around = pool.neighbours(index)
            steps = np.abs(np.subtract(pool.encoded[around], pool.encoded[index], dtype=np.int64))
            for near in around[np.argsort(steps.max(axis=1), kind="stable")][:NEIGHBOURS]:
                neighbour = pool[int(near)]
                if (own, neighbour) not in tried:
                    tried.add((own, neighbour))
                    yield own, neighbour


def budget_of(plan: Plan, pool: Pool) -> int:
    """Say how many trials a workload gets: what was asked for, at most all."""
    trials = plan.config.trials or default_budget(plan.config.searcher, len(pool))
    return min(trials, pool.estimated_size)


def nearest(own: Workload, workloads: Sequence[Workload]) -> frozenset[Workload]:
    """Choose the other workloads that one learns from."""
    others = (workload for workload in workloads if workload != own)
    return frozenset(sorted(others, key=lambda other: distance(own, other))[:LEARNT_FROM])


def search_all(
    run: Run, *, searches_left: int = 1, warm: Mapping[Workload, Sequence[Config]] | None = None
) -> None:
    """Search every tuned workload; `searches_left` counts this candidate, `warm` is tried first.

    Where memory ends on one, that one is left undecided.
    """
    plan, session, skipped = run.plan, run.session, run.skipped
    workloads: Sequence[Workload] = plan.tuned
    later = any(candidate.name != plan.candidate for candidate in session.candidates()[-1:])
    if later or session.results() or session.trials(plan.candidate, stage="finals"):
        # An earlier run has gone on to what follows the search of this candidate.
        again = unsearched_workloads(session, plan.candidate)
        workloads = [workload for workload in plan.tuned if workload.key in again]
        run.tracker.recount(plan.candidate, without=workloads)
    else:
        _record_space(run)
    for workload in workloads:
        if workload in skipped:
            skipped.skip(workload, plan.candidate)
    if left := [workload for workload in workloads if workload not in skipped]:
        Search(run, left, warm or {}).run(searches_left)


def _record_space(run: Run) -> None:
    """Record for every tuned workload how many configs `prune`, or a recording, leaves of all."""
    space, name = run.plan.space, run.plan.candidate
    noted = {(event.candidate, event.workload) for event in run.session.events(SpacePruned)}
    for workload, pool in run.pools.items():
        recorded = None if run.evaluator.answered(workload) is None else len(pool)
        if (space.prune or recorded) and (name, workload.key) not in noted:
            valid = valid_configs(space.unpruned, run.evaluator.names(workload))
            sizes = valid.estimated_size, pool.estimated_whole, recorded
            run.session.record_event(SpacePruned(0, name, workload.key, *sizes))


class Search:
    """Propose, try and learn, for `workloads` of one plan together; of the others all is known.

    `warm` is what past runs found, which is tried first.
    """

    def __init__(
        self, run: Run, workloads: Sequence[Workload], warm: Mapping[Workload, Sequence[Config]]
    ) -> None:
        self._run, self._workloads, self._warm = run, workloads, warm
        self._plan, self._session, self._tracker = run.plan, run.session, run.tracker
        self._pools, self._device = run.pools, run.evaluator.device
        self._group = as_group(self._device)
        config, tuned = self._plan.config, self._plan.tuned
        # What each workload is thought to take, and most of what all may take together.
        self._planned = {w: budget_of(self._plan, self._pools[w]) for w in workloads}
        # Who looks on for little looks as long as it takes, and around the best that was found.
        self._looks_on = config.trials is None and config.enough < ENOUGH
        if config.trials is None and not self._looks_on:
            for workload in tuned[1:]:
                if workload in self._planned and self._is_guided(workload):
                    self._planned[workload] = min(self._planned[workload], FURTHER_TRIALS)
        in_turns = sum(self._planned.values()) - TRANSFERRED_CONFIGS * len(self._sharing())
        # For good: where a member is lost, another does the work of its queue.
        self._queues = {w: queue_of(self._device, w) for w in workloads}
        self._scheduler = WorkloadScheduler(
            [*workloads], self._begin_search, in_turns, self._queues.__getitem__
        )
        self._completed: list[tuple[Trial, Features | None]] = [
            (trial, None)
            for trial in self._session.trials(self._plan.candidate)
            if trial.workload not in workloads
        ]
        self._others_known = bool(self._completed)
        self._hopeless = Hopeless(tries_all=not config.prune)
        self._journal = JournalFile(self._session.directory / JOURNAL)
        self._near = {workload: nearest(workload, tuned) for workload in tuned}

    def run(self, searches_left: int) -> None:
        """Search until budgets, time, spaces or expectations are used up."""
        self._tracker.expect(self._planned, searches_left=searches_left)
        self._tracker.announce("search")
        with executing(self._run.evaluator, self._keep, self._queues.__getitem__) as executor:
            self._executor = executor
            try:
                self._search_in_turns()
                self._try_what_is_near()
                self._choose_class()
            finally:
                self._tracker.add_device_time(executor.device_s, executor.compiler_s)
        for search in self._scheduler.searches:
            search.searcher.close()
            trials = self._session.trials(self._plan.candidate, search.workload)
            if search.workload not in self._run.skipped:
                require_one_compiles(trials, self._plan.template)
                if search.found_enough and search.proposed < search.max_trials:
                    self._note_end(search, search.gain)
            self._expect(search, search.proposed)

    def _search_in_turns(self) -> None:
        """Have searchers propose until enough trials of each queue are under way, and learn."""
        scheduler, executor = self._scheduler, self._executor
        queues = sorted({*self._queues.values()})
        while True:
            for queue in queues:
                while (search := scheduler.current(queue)) is not None:
                    if executor.under_way(queue) >= search.depth:
                        break
                    self._propose(search)
            if not len(executor):
                return
            if (trial := self._take()) is not None:
                search = scheduler.of(trial.workload)
                search.searcher.tell(trial)
                self._learn(search, trial)

    def _try_what_is_near(self) -> None:
        """Try what is best on other workloads and, where little is worth a trial, beside it."""
        completed = [trial for trial, _ in self._completed]
        shared = cross_workload_transfer(completed, self._sharing(), TRANSFERRED_CONFIGS)
        completed += self._try_all(shared)
        for _ in range(LOOKS_AROUND if self._looks_on else 0):
            before = len(completed)
            completed += self._try_all(next_to_the_best(completed, self._learning()), extra=True)
            shared = cross_workload_transfer(completed, self._sharing(), LEARNT_FROM)
            completed += self._try_all(shared, extra=True)
            if len(completed) == before:
                break

    def _choose_class(self) -> None:
        """Have a class of invariant rows chosen, once, and search among its configs.

        Configs that lead at one size are tried at the others, as a class is the same at all: for
        half a workload's budget more.
        """
        spec, kept = self._plan.spec, self._run.candidates.kept
        if spec.invariant is None or kept.bits or self._plan.config.surveyed is not None:
            return
        pools = {one: self._pools[one] for one in self._workloads if one not in self._run.skipped}
        left = {one: max(CLASSES, budget_of(self._plan, pool) // 2) for one, pool in pools.items()}

        def trials() -> list[Trial]:
            return self._session.trials(self._plan.candidate)

        def within(wanted: Iterable[tuple[Workload, Config]]) -> Iterator[tuple[Workload, Config]]:
            for workload, config in wanted:
                if left[workload]:
                    left[workload] -= 1
                    yield workload, config

        members = partial(list_class_members, pools=pools, spec=spec, mix=self._plan.config.mix)
        self._try_all(within(members(trials(), most=CONFIGS)), extra=True)
        choose_bits(self._run)
        self._try_all(within(members(trials(), most=CHOSEN)), extra=True)
        self._try_all(within(next_to_the_best(trials(), pools)), extra=True)

    def _try_all(
        self, wanted: Iterable[tuple[Workload, Config]], *, extra: bool = False
    ) -> list[Trial]:
        """Try what no searcher has asked for; `extra` is beside the workloads' budgets.

        As many are under way as compile at a time: what was begun when the time is over still runs.
        """
        waiting: defaultdict[int, deque[tuple[Workload, Config]]] = defaultdict(deque)
        for workload, config in wanted:
            waiting[self._queues[workload]].append((workload, config))
        depth = max(AHEAD, self._device.info.parallel)
        taken: list[Trial] = []
        while True:
            for queue, left in waiting.items():
                while left and self._executor.under_way(queue) < depth:
                    workload, config = left.popleft()
                    search = self._scheduler.of(workload)
                    if workload not in self._run.skipped:
                        search.max_trials += extra
                        if not self._try(search, config):
                            search.max_trials -= extra
            if not len(self._executor):
                return taken
            if (trial := self._take()) is not None:
                taken.append(trial)

    def _take(self) -> Trial | None:
        """Take and keep a trial; None where memory ended on its workload, which ends its search."""
        try:
            trial = self._executor.take()
        except OutOfMemory as error:
            workload = next(one for one in self._workloads if one.key == error.workload)
            search = self._scheduler.of(workload)
            self._run.skipped.give_up(workload, error, self._plan.candidate)
            search.exhausted = True
            search.proposed -= 1
            return None
        self._keep(trial)
        return trial

    def _is_guided(self, workload: Workload) -> bool:
        """Tell whether a search is guided by what is tried; some take the whole space."""
        config, size = self._plan.config, len(self._pools[workload])
        return learns_from_others(config.searcher, size, config.trials)

    def _learning(self) -> dict[Workload, Pool]:
        left = [workload for workload in self._workloads if workload not in self._run.skipped]
        return {one: self._pools[one] for one in left if self._is_guided(one)}

    def _sharing(self) -> dict[Workload, Pool]:
        several = sum(map(self._is_guided, self._pools)) > 1
        return self._learning() if several else {}

    def _propose(self, search: WorkloadSearch) -> None:
        pending = search.searcher.next()
        for refused in search.searcher.take_refused():
            self._tracker.expect_more(search.workload, 1)
            self._keep(refused)
            self._learn(search, refused)
        if pending is None or not self._try(search, pending.config, pending):
            search.exhausted = True

    def _try(self, search: WorkloadSearch, config: Config, pending: Pending | None = None) -> bool:
        """Send a config, or what is known of it, to the device; False where none may begin."""
        trial = self._session.trial(self._plan.candidate, search.workload, config)
        if trial is None:
            if not search.may_begin:
                return False
            if why := self._hopeless.why_not(config):
                where = self._plan.candidate, search.workload
                trial = Trial(*where, config, Status.CONSTRAINT, why)
            elif search.deadline_s is not None and time.monotonic() >= search.deadline_s:
                self._note_end(search, late=True)
                return False
        if trial is not None and trial.reason.startswith(LEFT_OUT):
            self._scheduler.allow_another(search)
        search.not_proposed.discard(config)
        search.proposed += 1
        self._expect(search, max(search.proposed, self._planned[search.workload]))
        self._executor.begin(trial or pending or self._run.evaluator.start(search.workload, config))
        return True

    def _keep(self, trial: Trial) -> None:
        if self._group is not None:
            for gone in record_assignment(self._session, self._group):
                self._tracker.announce("search", trial.workload, gone)
        known = self._session.trial(trial.candidate, trial.workload, trial.config)
        if known is None:
            self._session.record(trial)
        self._tracker.count(trial, measured=known is None)

    def _learn(self, search: WorkloadSearch, trial: Trial) -> None:
        self._hopeless.note(trial)
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
        plan, pool, key = self._plan, self._pools[workload], workload.key
        most = budget_of(plan, pool)
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
        precompiling = PrecompilingSearcher(
            searcher, self._run.evaluator, workload, self._executor.waited
        )
        for trial, features in self._completed:
            if trial.workload in self._near[workload]:
                precompiling.share(trial, features)
        # A searcher that knows the others' trials is asked again when all have had a turn. The
        # first one of each queue has no others to know: they share what one alone would take.
        first_turn = most
        if self._is_guided(workload):
            several = len({*self._queues.values()})
            first_turn = FIRST_TURN_TRIALS if self._completed else ceil(most / several)
        tried = self._session.trials(plan.candidate, workload)
        foreseeing = isinstance(searcher, StaticFeatureAware)
        late = [(e.candidate, e.workload) for e in self._session.events(SearchEnded) if e.late]
        beside = [w for w, queue in self._queues.items() if queue == self._queues[workload]]
        search = WorkloadSearch(
            workload,
            precompiling,
            most,
            first_turn=first_turn,
            not_proposed={t.config for t in tried if not (foreseeing and t.status in _FORESEEN)},
            deadline_s=self._tracker.deadline_s(workload, beside),
            replaying=(plan.candidate, key) in late,
            depth=max(depth_of(searcher), self._device.info.parallel),
            min_expected_gain=plan.config.enough,
        )
        if self._others_known and precompiling.learns_from_others:
            # Knowing more of the others, it proposes others than those that were tried before.
            for trial in (one for one in tried if one.config in pool):
                if trial.config in search.not_proposed:
                    search.not_proposed.remove(trial.config)
                    search.proposed += 1
                else:  # it cost no trial
                    self._tracker.expect_more(workload, 1)
                self._keep(trial)
                precompiling.tell(trial)
                self._learn(search, trial)
        precompiling.begin()
        return search

    def _note_end(
        self, search: WorkloadSearch, expected_gain: float | None = None, *, late: bool = False
    ) -> None:
        name, key = self._plan.candidate, search.workload.key
        ended = SearchEnded(0, name, key, search.proposed, expected_gain, late)
        if ended not in self._session.events(SearchEnded):
            self._session.record_event(ended)

    def _expect(self, search: WorkloadSearch, trials: int) -> None:
        more = trials - self._planned[search.workload]
        if more:
            self._tracker.expect_more(search.workload, more)
            self._planned[search.workload] = trials

    def _seeds(self, workload: Workload) -> tuple[Config, ...]:
        """Start from the space's own configs, what past runs found, and what is best near by."""
        pool, space, evaluator = self._pools[workload], self._plan.space, self._run.evaluator
        warm = self._warm.get(workload, ())
        if evaluator.answered(workload) is None:
            # What was fast before is no less so for being thought slow.
            names, unpruned = evaluator.names(workload), space.unpruned
            pool.with_also(config for config in warm if unpruned.allows(config, names))
        wanted: list[Config | None] = [*space.asked_for, *warm]
        if not self._is_guided(workload):
            before = [search.workload for search in self._scheduler.searches]
            near = sorted(before, key=lambda other: distance(workload, other))
            ranked = fastest(trial for trial, _ in self._completed)
            best = {trial.workload: trial.config for trial in reversed(ranked)}
            wanted += [best.get(other) for other in near]
        return tuple(dict.fromkeys(c for c in wanted if c is not None and c in pool))


def require_one_compiles(trials: Sequence[Trial], template: Template) -> None:
    """Raise `TemplateError` with the compiler's first error where no config compiled."""
    failed = [trial for trial in trials if trial.status in _UNCOMPILED]
    if failed and len(failed) == len(trials):
        raise TemplateError(
            f"none of {len(trials)} configs compiles; the first error, for {failed[0].config}:\n"
            f"{failed[0].reason}",
            path=template.path,
        )


def cross_measure(run: Run) -> None:
    """Fill up every workload to `surveyed` configs: the others' fastest, then random ones.

    What a recording holds. It is compiled ahead of the device; each queue has its workloads.
    """
    name, tuned, evaluator, skipped = run.plan.candidate, run.plan.tuned, run.evaluator, run.skipped
    ranked = [run.session.fastest(name, workload)[:CROSS_MEASURED] for workload in tuned]
    best = list(dict.fromkeys(trial.config for trials in ranked for trial in trials))
    queues = {workload: queue_of(evaluator.device, workload) for workload in tuned}

    def keep(trial: Trial) -> None:
        run.session.record(trial)
        run.tracker.count(trial, measured=True)

    def missing(queue: int) -> Iterator[tuple[Workload, Config]]:
        for workload in (w for w in tuned if queues[w] == queue and w not in skipped):
            pool = run.pools[workload]
            configs = {t.config for t in run.session.trials(name, workload)}
            others = [c for c in best if c in pool and c not in configs]
            most = min(run.plan.config.surveyed or 0, len(pool))
            order = np.random.default_rng(run.plan.config.seed).permutation(len(pool))
            shuffled = (pool[int(index)] for index in order)
            drawn = (c for c in shuffled if c not in configs and c not in others)
            wanted = [*others, *islice(drawn, max(0, most - len(configs) - len(others)))]
            run.tracker.expect_more(workload, len(wanted))
            yield from ((workload, config) for config in wanted if workload not in skipped)

    waiting = {queue: missing(queue) for queue in dict.fromkeys(queues.values())}
    with executing(evaluator, keep, queues.__getitem__) as executor:
        depth = max(DEPTH, evaluator.device.info.parallel)
        while True:
            for queue, left in waiting.items():
                for workload, config in islice(left, depth - executor.under_way(queue)):
                    executor.begin(evaluator.start(workload, config))
            if not len(executor):
                return
            try:
                keep(executor.take())
            except OutOfMemory as error:
                (workload,) = (one for one in tuned if one.key == error.workload)
                skipped.give_up(workload, error, name)
