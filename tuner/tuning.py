"""The loop: baseline, search, finals; everything it learns is in the session before it goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import log

from tuner.compiler.base import Compiler
from tuner.device.base import Device
from tuner.errors import InputError, SpaceError, TemplateError
from tuner.evaluate import Candidate, Evaluator, Pending
from tuner.kernel import KernelSpec, Workload
from tuner.progress import Listener, Phase, Progress, WorkloadProgress
from tuner.search.base import Searcher
from tuner.search.factory import default_budget, make_searcher
from tuner.search.pool import Pool, valid_configs
from tuner.session import Session
from tuner.space import Config, SearchSpace
from tuner.statistics import paired_interval, roofline_share, unpaired_interval
from tuner.template import Template
from tuner.trial import Comparison, Result, Status, Trial

CANDIDATE = "initial"
JOURNAL = "optuna.journal"
# Configs proposed ahead of the device, so that it never waits for the compiler. Fixed, not taken
# from the number of cores: the same seed must make the same proposals everywhere.
LOOKAHEAD = 8
# A template that fails this many times before it compiles once is broken, not unlucky.
HOPELESS_COMPILES = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """What to tune and how long; `trials` is per workload, `time_s` for the whole run."""

    spec: KernelSpec
    space: SearchSpace
    template: Template
    searcher: str
    trials: int | None
    time_s: float | None
    seed: int
    workloads: tuple[Workload, ...]
    operators: Mapping[str, str]
    finalists: int = 5
    rounds: int = 40

    @property
    def tuned(self) -> tuple[Workload, ...]:
        """The workloads to search."""
        return tuple(workload for workload in self.workloads if not workload.held_out)


def tune(
    plan: Plan, *, session: Session, device: Device, compiler: Compiler, listener: Listener
) -> tuple[Result, ...]:
    """Run or resume a session to its end; what it holds already is not measured again."""
    candidate = Candidate(CANDIDATE, plan.space, plan.template)
    evaluator = Evaluator(plan.spec, candidate, plan.operators, compiler, device)
    space_text = plan.spec.path.read_text(encoding="utf-8")
    session.add_candidate(CANDIDATE, plan.template.text, space_text)
    session.mark("running")
    run = _Run(plan, session, device, evaluator, listener)
    try:
        run.announce("baseline")
        for workload in plan.workloads:
            run.measure_baseline(workload)
        for workload in plan.tuned:
            run.search(workload)
        for workload in (*plan.tuned, *(w for w in plan.workloads if w.held_out)):
            run.decide(workload)
    except KeyboardInterrupt:
        session.mark("interrupted")
        raise
    finally:
        run.save_time()
    session.mark("complete")
    run.announce("done")
    return tuple(session.results())


class _Run:
    """The state of one run: what was asked for, and where it stands."""

    def __init__(
        self,
        plan: Plan,
        session: Session,
        device: Device,
        evaluator: Evaluator,
        listener: Listener,
    ) -> None:
        self._plan, self._session, self._device = plan, session, device
        self._evaluator, self._listener = evaluator, listener
        self._started_s = self._saved_s = time.monotonic()
        self._before_s = session.seconds
        self._measured = 0
        self._phase: Phase = "baseline"
        self._current: Workload | None = None
        self._progress: dict[Workload, WorkloadProgress] = {}
        self._pools: dict[Workload, Pool] = {}
        for workload in plan.tuned:
            self._progress[workload] = WorkloadProgress(workload, self._budget(workload))

    # The three steps

    def measure_baseline(self, workload: Workload) -> None:
        """Verify and time the baseline on one workload, unless the session has it."""
        self._current = workload
        known = self._session.baselines().get(workload)
        if known is None:
            trial = self._evaluator.baseline(workload)
            assert trial.measurement is not None
            self._session.record_baseline(
                workload, trial.measurement, trial.correctness, trial.resources, trial.occupancy
            )
            baseline_us = trial.measurement.median_us
        else:
            baseline_us = known.measurement.median_us
        if workload in self._progress:
            self._advance(workload, baseline_us=baseline_us)
        self.announce("baseline")

    def search(self, workload: Workload) -> None:
        """Search one workload until its budget, its time or its space is used up."""
        self._phase, self._current = "search", workload
        budget, deadline_s = self._budget(workload), self._deadline_s(workload)
        searcher = self._searcher(workload, budget)
        if self._is_over(workload):
            budget, deadline_s = len(self._session.trials(CANDIDATE, workload)), None
        under_way: deque[Pending | Trial] = deque()
        asked = 0
        while True:
            room = min(LOOKAHEAD - len(under_way), budget - asked)
            if room > 0 and (deadline_s is None or time.monotonic() < deadline_s):
                configs = searcher.ask(room)
                asked += len(configs) if configs else budget
                under_way.extend(self._begin(workload, config) for config in configs)
            if not under_way:
                break
            trial = self._end(under_way.popleft())
            searcher.tell(trial)
            self._count(trial)
        self._require_a_compiled_config(workload)

    def decide(self, workload: Workload) -> None:
        """Compare the best configs with the baseline, interleaved, and record the result."""
        self._current = workload
        self.announce("finals")
        if any(result.workload == workload for result in self._session.results()):
            return
        finalists = self._verified(workload, self._finalists(workload))
        if not finalists:
            return
        comparison = self._compare(workload, [trial.config for trial in finalists])
        self._session.record_comparison(comparison)
        compared = [trial for trial in finalists if trial.config in comparison.finalists]
        result = self._result(comparison, compared)
        source = self._evaluator.render(workload, result.config).source
        self._session.write_variant(workload, result.config, source)
        self._session.record_result(result)  # last: a resumed run takes it for the end of the step

    # What they are made of

    def announce(self, phase: Phase) -> None:
        """Tell the listener where the run stands."""
        self._phase = phase
        seconds = time.monotonic() - self._started_s
        rate = self._measured / seconds if seconds else 0.0
        left = sum(max(0, p.budget - p.done) for p in self._progress.values())
        remaining_s = left / rate if self._measured else None
        if remaining_s is not None and self._plan.time_s is not None:
            remaining_s = min(remaining_s, max(0.0, self._plan.time_s - seconds))
        self._listener.update(
            Progress(
                kernel=self._plan.spec.name,
                device=self._device.info.name,
                phase=phase,
                workloads=tuple(self._progress.values()),
                current=self._current,
                seconds=self._before_s + seconds,
                trials_per_second=rate,
                remaining_s=remaining_s,
            )
        )

    def save_time(self) -> None:
        """Add the time since the last call to the session's."""
        now_s = time.monotonic()
        self._session.add_time(now_s - self._saved_s)
        self._saved_s = now_s

    def _begin(self, workload: Workload, config: Config) -> Pending | Trial:
        known = self._session.trial(CANDIDATE, workload, config)
        return known or self._evaluator.start(workload, config)

    def _end(self, under_way: Pending | Trial) -> Trial:
        if isinstance(under_way, Trial):
            return under_way
        incumbent_us = self._progress[under_way.workload].best_us
        trial = self._evaluator.finish(under_way, incumbent_us=incumbent_us)
        self._session.record(trial)
        self._measured += 1
        return trial

    def _count(self, trial: Trial) -> None:
        progress = self._progress[trial.workload]
        counts = {**progress.counts, trial.status: progress.counts.get(trial.status, 0) + 1}
        best_us, best_config = progress.best_us, progress.best_config
        if trial.time_us is not None and (best_us is None or trial.time_us < best_us):
            best_us, best_config = trial.time_us, trial.config
        self._advance(trial.workload, counts=counts, best_us=best_us, best_config=best_config)
        self.announce("search")
        self._require_hope(trial.workload)

    def _advance(self, workload: Workload, **changes: object) -> None:
        self._progress[workload] = replace(self._progress[workload], **changes)  # type: ignore[arg-type]

    def _pool(self, workload: Workload) -> Pool:
        if workload not in self._pools:
            pool = valid_configs(self._plan.space, self._evaluator.names(workload))
            if not len(pool):
                raise _no_config(workload, pool)
            self._pools[workload] = pool
        return self._pools[workload]

    def _budget(self, workload: Workload) -> int:
        size = len(self._pool(workload))
        wanted = self._plan.trials or default_budget(self._plan.searcher, size)
        return min(wanted, size)

    def _deadline_s(self, workload: Workload) -> float | None:
        """Give each workload that is left an equal share of the time that is left."""
        if self._plan.time_s is None:
            return None
        now_s = time.monotonic()
        left_s = self._plan.time_s - self._before_s - (now_s - self._started_s)
        waiting = len(self._plan.tuned) - self._plan.tuned.index(workload)
        return now_s + max(0.0, left_s) / waiting

    def _is_over(self, workload: Workload) -> bool:
        """Whether an earlier run ended this search for want of time and went on to what follows."""
        if self._plan.time_s is None:
            return False
        later = self._plan.tuned[self._plan.tuned.index(workload) + 1 :]
        follows = self._session.trials(CANDIDATE, stage="finals")
        return bool(follows) or any(self._session.trials(CANDIDATE, w) for w in later)

    def _searcher(self, workload: Workload, budget: int) -> Searcher:
        return make_searcher(
            self._plan.searcher,
            self._pool(workload),
            self._plan.space,
            seed=self._plan.seed,
            budget=budget,
            seeds=self._seeds(workload),
            journal=self._session.directory / JOURNAL,
            study_name=workload.key,
        )

    def _seeds(self, workload: Workload) -> tuple[Config, ...]:
        """Start from the space's default and what won on the workloads searched before."""
        before = self._plan.tuned[: self._plan.tuned.index(workload)]
        near = sorted(before, key=lambda other: _distance(workload, other))
        best = (self._progress[other].best_config for other in near)
        pool = self._pool(workload)
        wanted = (self._plan.space.default, *best)
        return tuple(dict.fromkeys(c for c in wanted if c is not None and c in pool))

    def _finalists(self, workload: Workload) -> list[Config]:
        if workload.held_out:
            return self._inherited(workload)
        trials = self._session.trials(CANDIDATE, workload)
        timed = [
            trial
            for trial in trials
            if trial.time_us is not None
            and trial.measurement is not None
            and not trial.measurement.stopped_early
        ]
        timed.sort(key=lambda trial: trial.time_us or 0.0)
        return [trial.config for trial in timed[: self._plan.finalists]]

    def _inherited(self, workload: Workload) -> list[Config]:
        """A held-out workload gets what won on the nearest tuned one: nothing is tuned for it."""
        results = [result for result in self._session.results() if not result.workload.held_out]
        results.sort(key=lambda result: _distance(workload, result.workload))
        names = self._evaluator.names(workload)
        valid = [r.config for r in results if not self._plan.space.violated(r.config, names)]
        return valid[:1]

    def _verified(self, workload: Workload, configs: Iterable[Config]) -> list[Trial]:
        """Run every finalist once more with all checks; keep those that pass."""
        passed = []
        for config in configs:
            trial = self._session.trial(CANDIDATE, workload, config, stage="finals")
            if trial is None:
                pending = self._evaluator.start(workload, config)
                trial = self._evaluator.finish(pending, stage="finals")
                self._session.record(trial)
            if trial.status is Status.CORRECT:
                passed.append(trial)
        return passed

    def _compare(self, workload: Workload, configs: list[Config]) -> Comparison:
        """Time finalists and baseline interleaved, or as many of them as a recording has so."""
        rounds = self._plan.rounds
        baseline = self._evaluator.baseline_program(workload)
        programs = {config: self._evaluator.program(workload, config) for config in configs}
        compared = self._device.compare([baseline, *programs.values()], rounds=rounds)
        if not compared.paired and len(programs) > 1:
            programs = {
                config: program
                for config, program in programs.items()
                if self._device.compare([baseline, program], rounds=rounds).paired
            } or dict(list(programs.items())[:1])
            compared = self._device.compare([baseline, *programs.values()], rounds=rounds)
        return Comparison(
            workload, tuple(programs), compared.times_us, compared.paired, compared.isolated_us
        )

    def _result(self, comparison: Comparison, finalists: list[Trial]) -> Result:
        """Choose on the first rounds, report on the others: a choice must not judge itself."""
        rounds = comparison.rounds
        choosing = max(1, len(rounds) // 4) if len(finalists) > 1 and len(rounds) > 3 else 0
        reporting = rounds[choosing:]
        columns = list(zip(*(rounds[:choosing] or rounds), strict=True))
        medians = [sorted(column)[len(column) // 2] for column in columns[1:]]
        winner = medians.index(min(medians))
        baseline_us = [row[0] for row in reporting]
        tuned_us = [row[winner + 1] for row in reporting]
        interval = paired_interval if comparison.paired else unpaired_interval
        speedup, bounds = interval(baseline_us, tuned_us, self._plan.seed)
        workload, trial = comparison.workload, finalists[winner]
        traffic = self._plan.spec.traffic.integer(workload.values)
        middle_us = sorted(tuned_us)[len(tuned_us) // 2]
        isolated = comparison.isolated_us
        return Result(
            workload=workload,
            baseline_us=sorted(baseline_us)[len(baseline_us) // 2],
            tuned_us=middle_us,
            speedup=speedup,
            interval=bounds,
            paired=comparison.paired,
            roofline_share=roofline_share(traffic, middle_us, self._device.info.streaming_gbps),
            config=trial.config,
            resources=trial.resources,
            occupancy=trial.occupancy,
            baseline_wins=bounds[1] < 1.0,
            isolated_us=isolated[winner + 1] if isolated else None,
            isolated_baseline_us=isolated[0] if isolated else None,
        )

    def _require_hope(self, workload: Workload) -> None:
        counts = self._progress[workload].counts
        if counts.get(Status.COMPILE, 0) >= HOPELESS_COMPILES and len(counts) == 1:
            self._require_a_compiled_config(workload)

    def _require_a_compiled_config(self, workload: Workload) -> None:
        trials = self._session.trials(CANDIDATE, workload)
        if not trials or any(trial.status is not Status.COMPILE for trial in trials):
            return
        raise TemplateError(
            f"none of {len(trials)} configs compiles; the first error, for {trials[0].config}:\n"
            f"{trials[0].reason}",
            path=self._plan.template.path,
        )


def _distance(a: Workload, b: Workload) -> float:
    """Distance in log axes: what matters is how many times larger, not by how much."""
    other = b.values
    return sum((log(value) - log(other[name])) ** 2 for name, value in a.axes)


def _no_config(workload: Workload, pool: Pool) -> InputError:
    constraint = pool.emptied_by
    if constraint is None:
        return SpaceError(f"no config satisfies all constraints for workload {workload}")
    return SpaceError(
        f"no config satisfies `{constraint.text}` for workload {workload}",
        path=constraint.path,
        line=constraint.line,
        remedy="change the workload, the parameter's values or the constraint",
    )
