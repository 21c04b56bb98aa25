"""The finals: the best configs against the baseline, verified again and timed in alternation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from tuner.device.base import Device
from tuner.dispatch.evidence import distrusted, split
from tuner.dispatch.kernels import Kernels
from tuner.dispatch.of_session import SessionDispatch
from tuner.dispatch.predicted import assigned
from tuner.dispatch.table import Choice, Table
from tuner.model.energy import accounts
from tuner.model.errors import InputError, KernelError
from tuner.model.expressions import Value
from tuner.model.kernel import DEVICE_NAMES, Workload
from tuner.model.statistics import paired_interval, roofline_share, unpaired_interval
from tuner.model.trial import RESOLUTION, Comparison, Result, Status, Trial, Variant
from tuner.session.session import Session
from tuner.space.plan import Plan, distance
from tuner.tuning.evaluator import Candidates
from tuner.tuning.peers import Peers
from tuner.tuning.verification import COMPARE, VERIFY, Verification

# A search's times are known to a few percent: what is further behind is not worth a comparison,
# but for the first few, since the best may fail a check.
WITHIN = 1.05
FEWEST = 3


class Finalists:
    """Choose among all candidates of a session; those that have failed a check are out.

    On a tuned workload: the fastest, and the variant that would serve it in the smallest set of
    variants, so that the set is proved. On a held-out one: what the dispatch chooses for it.
    `ranked` has the order of an objective other than time, the best first.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        candidates: Candidates,
        verification: Verification,
        ranked: Mapping[Workload, tuple[Variant, ...]],
    ) -> None:
        self._plan, self._session = plan, session
        self._candidates, self._verification = candidates, verification
        self._ranked = ranked
        self._choice = Choice(plan.config.variants_within, plan.config.max_variants)
        self._assignment: Mapping[Workload, Variant] | None = None
        self._serving: tuple[Variant, ...] | None = None
        self._made: tuple[tuple[int, frozenset[Variant]], Table] | None = None

    def of(self, workload: Workload) -> list[Variant]:
        """Return the variants to verify and to compare."""
        if workload.held_out:
            return self._inherited(workload)
        if workload in self._ranked:
            left = [v for v in self._ranked[workload] if not self._verification.failed(v)]
            return left[: self._plan.config.finalists]
        found = self._fastest(workload)
        serving = self._assigned(workload)
        everywhere = self._everywhere(workload) if self._plan.config.surveyed is not None else []
        return list(dict.fromkeys([*found, *([serving] if serving else []), *everywhere]))

    def _fastest(self, workload: Workload) -> list[Variant]:
        timed = [
            trial
            for trial in self._session.trials(workload=workload)
            if trial.time_us is not None
            and trial.measurement is not None
            and not trial.measurement.stopped_early
        ]
        timed.sort(key=lambda trial: trial.time_us or 0.0)
        near = sum((t.time_us or 0.0) <= WITHIN * (timed[0].time_us or 0.0) for t in timed)
        count = min(max(near, FEWEST), self._plan.config.finalists)
        return [trial.variant for trial in timed[:count]]

    def _assigned(self, workload: Workload) -> Variant | None:
        """Tell who serves the workload in the smallest set, by the search's times alone.

        They don't change any more, so that a resumed run finds the same.
        """
        if self._assignment is None:
            self._assignment = self._smallest_set(workload, self._session.trials())
        serving = self._assignment.get(workload)
        return None if serving is None or self._verification.failed(serving) else serving

    def _everywhere(self, workload: Workload) -> list[Variant]:
        """Name the smallest set for what the user's space tunes.

        Whoever answers from a recording dispatches held-out workloads to it.
        """
        if self._serving is None:
            left_out = set(self._plan.spec.held_out)
            trials = [t for t in self._session.trials() if t.workload not in left_out]
            served = self._smallest_set(workload, trials)
            self._serving = tuple(dict.fromkeys(served.values()))
        return [variant for variant in self._serving if self._may_run(variant, workload)]

    def _smallest_set(
        self, workload: Workload, trials: Sequence[Trial]
    ) -> Mapping[Workload, Variant]:
        baselines = self._session.baselines()
        kernels = Kernels(
            self._session.candidates(), self._plan.config.operators, self._device_numbers(workload)
        )
        return assigned(
            trials,
            {w: baseline.measurement.median_us for w, baseline in baselines.items()},
            distrusted(trials, ()),
            kernels.of,
            self._choice,
        )

    def _inherited(self, workload: Workload) -> list[Variant]:
        """A held-out workload gets what production will get there: nothing is tuned for it.

        Where that is the baseline, what won on the nearest tuned workload shows what is missed.
        """
        results = [result for result in self._session.results() if not result.workload.held_out]
        results.sort(key=lambda result: distance(workload, result.workload))
        served = [] if self._ranked else self._served(workload)
        wanted = dict.fromkeys([*served, *(result.variant for result in results)])
        return [variant for variant in wanted if self._may_run(variant, workload)][:1]

    def _served(self, workload: Workload) -> list[Variant]:
        return [
            one.kernel.variant
            for one in self._table(workload).held_out
            if one.workload == workload and one.kernel is not None
        ]

    def _table(self, workload: Workload) -> Table:
        """Make the table, unless nothing that decides on it has changed: that takes a second."""
        compared = sum(not one.workload.held_out for one in self._session.comparisons())
        out = distrusted(self._session.trials(stage=None), self._session.checks())
        known, made = (compared, out), self._made
        if made is None or made[0] != known:
            numbers = self._device_numbers(workload)
            made = known, SessionDispatch(self._session, self._choice, numbers).table
            self._made = made
        return made[1]

    def _device_numbers(self, workload: Workload) -> Mapping[str, Value]:
        names = self._candidates.evaluator(self._plan.candidate).names(workload)
        return {name: value for name, value in names.items() if name in DEVICE_NAMES}

    def _may_run(self, variant: Variant, workload: Workload) -> bool:
        """Whether a config is valid here, and renders: a template may divide by an axis."""
        if self._verification.failed(variant):
            return False
        evaluator = self._candidates.evaluator(variant.candidate)
        space = self._candidates.plan(variant.candidate).space
        try:
            if space.violated(variant.config, evaluator.names(workload)) is not None:
                return False
            evaluator.key(workload, variant.config)
        except InputError as error:
            self._verification.fail(VERIFY, workload, variant, str(error))
            return False
        return True


class Finals:
    """Decide each workload among all candidates; what the session holds already stands.

    `ranked` has the order of an objective other than time, the best first: the first that passes
    every check is compared alone.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        device: Device,
        candidates: Candidates,
        verification: Verification,
        ranked: Mapping[Workload, tuple[Variant, ...]] | None = None,
    ) -> None:
        self._plan, self._session = plan, session
        self._ranked = ranked or {}
        self._device, self._candidates = device, candidates
        self._verification = verification
        self._peers = Peers(plan, session, device)
        self._finalists = Finalists(plan, session, candidates, verification, self._ranked)

    def decide(self, workload: Workload) -> None:
        """Compare the best configs with the baseline, interleaved, and record the result."""
        if any(result.workload == workload for result in self._session.results()):
            return
        finalists = self._verified(workload, self._finalists.of(workload))
        self._verification.on_boundaries(trial.variant for trial in finalists)
        finalists = [trial for trial in finalists if not self._verification.failed(trial.variant)]
        if workload in self._ranked:
            finalists = finalists[:1]
        comparison = self._compared(workload, [trial.variant for trial in finalists])
        if comparison is None:
            return
        compared = [trial for trial in finalists if trial.variant in comparison.finalists]
        result = self._result(comparison, compared)
        evaluator = self._candidates.evaluator(result.candidate)
        source = evaluator.render(workload, result.config).source
        self._session.write_variant(workload, result.variant, source)
        # Last: a resumed run takes a result for the end of this step.
        self._session.record_result(result)

    def confirm(self) -> None:
        """Watch the winners with every tool; where one fails, decide again without it."""
        while True:
            results = self._session.results()
            self._verification.watch((result.workload, result.variant) for result in results)
            out = [r.workload for r in results if self._verification.failed(r.variant)]
            if not out:
                return
            for workload in out:
                self._session.withdraw_result(workload)
            # All: a held-out one may have had nothing to inherit before.
            for workload in (*self._plan.tuned, *self._plan.held_out):
                self.decide(workload)

    def _verified(self, workload: Workload, variants: Iterable[Variant]) -> list[Trial]:
        """Run every finalist once more with all checks; keep those that pass."""
        passed = []
        for one in variants:
            trial = self._session.trial(one.candidate, workload, one.config, stage="finals")
            if trial is None:
                evaluator = self._candidates.evaluator(one.candidate)
                pending = evaluator.start(workload, one.config)
                trial = evaluator.finish(pending, stage="finals")
                self._session.record(trial)
            if trial.status is Status.CORRECT:
                passed.append(trial)
        return passed

    def _compared(self, workload: Workload, variants: list[Variant]) -> Comparison | None:
        """Take the comparison from the session where it holds one of all these variants.

        A variant whose results were wrong after the rounds is left out, and the others stand; None
        where none is left.
        """
        for known in self._session.comparisons():
            if variants and known.workload == workload and set(variants) <= set(known.finalists):
                return _of_some(known, variants, known.peers)
        while variants:
            comparison, faults = self._compare(workload, variants)
            for one, fault in zip(comparison.finalists, faults, strict=False):
                if fault:
                    self._verification.fail(COMPARE, workload, one, fault)
            variants = [v for v in comparison.finalists if not self._verification.failed(v)]
            if len(variants) == len(comparison.finalists):
                self._session.record_comparison(comparison)
                return comparison
        return None

    def _compare(
        self, workload: Workload, variants: list[Variant]
    ) -> tuple[Comparison, tuple[str, ...]]:
        """Time finalists, baseline and peers interleaved, or as many as a recording has so.

        The second part says what was wrong with each finalist's results after the rounds.
        """
        rounds = self._plan.config.comparison_rounds
        baseline = self._candidates.evaluator(self._plan.candidate).baseline_program(workload)
        programs = {
            one: self._candidates.evaluator(one.candidate).program(workload, one.config)
            for one in variants
        }
        peers = self._peers.programs(workload)
        compared, names = self._peers.compared([baseline, *programs.values()], peers, rounds)
        if not compared.paired and len(programs) > 1:
            programs = {
                one: program
                for one, program in programs.items()
                if self._device.compare([baseline, program], rounds=rounds).paired
            } or dict(list(programs.items())[:1])
            compared, names = self._peers.compared([baseline, *programs.values()], peers, rounds)
        if compared.faults and compared.faults[0]:
            raise KernelError(
                f"the baseline is wrong on {workload} once it has been timed: {compared.faults[0]}",
                path=self._plan.spec.source,
            )
        comparison = Comparison(
            workload,
            tuple(programs),
            compared.times_us,
            compared.paired,
            compared.isolated_us,
            names,
        )
        return self._without_wrong_peers(comparison, compared.faults), compared.faults[1:]

    def _without_wrong_peers(self, comparison: Comparison, faults: tuple[str, ...]) -> Comparison:
        count = len(comparison.finalists)
        for name, fault in zip(comparison.peers, faults[1 + count :], strict=False):
            if fault:
                self._peers.fail(comparison.workload, name, Status.INCORRECT, fault)
        right = self._peers.programs(comparison.workload)
        names = [name for name in comparison.peers if name in right]
        return _of_some(comparison, list(comparison.finalists), names)

    def _result(self, comparison: Comparison, finalists: list[Trial]) -> Result:
        """Choose on the first rounds, report on the others: a choice must not judge itself."""
        choosing, reporting = split(comparison.rounds, len(finalists))
        medians = [median(column) for column in zip(*choosing, strict=True)]
        winner = min(range(len(finalists)), key=lambda k: medians[k + 1])
        baseline_us = [row[0] for row in reporting]
        tuned_us = [row[winner + 1] for row in reporting]
        interval = paired_interval if comparison.paired else unpaired_interval
        speedup, bounds = interval(baseline_us, tuned_us, self._plan.config.seed)
        workload, trial = comparison.workload, finalists[winner]
        traffic = self._plan.spec.min_bytes.integer(workload.values)
        middle_us = median(tuned_us)
        isolated = comparison.isolated_us
        return Result(
            workload=workload,
            baseline_us=median(baseline_us),
            tuned_us=middle_us,
            speedup=speedup,
            interval=bounds,
            paired=comparison.paired,
            roofline_share=roofline_share(traffic, middle_us, self._device.info.streaming_gbps),
            config=trial.config,
            resources=trial.resources,
            occupancy=trial.occupancy,
            baseline_wins=self._baseline_wins(workload, trial.variant, bounds),
            isolated_us=isolated[winner + 1] if isolated else None,
            isolated_baseline_us=isolated[0] if isolated else None,
            candidate=trial.candidate,
        )

    def _baseline_wins(
        self, workload: Workload, variant: Variant, bounds: tuple[float, float]
    ) -> bool:
        """Whether the baseline is better by the plan's objective, by time where that is unknown."""
        account = accounts(self._session.energies(workload)).get(workload)
        if self._plan.config.objective != "time" and account is not None:
            saving = account.saving(variant, self._plan.config.objective)
            return saving is not None and saving.range[1] < 1.0
        return bounds[1] < 1.0 - RESOLUTION


def _of_some(
    comparison: Comparison, variants: Sequence[Variant], peers: Sequence[str]
) -> Comparison:
    """Leave out the columns of finalists and peers that have failed a check since."""
    kept = [one for one in comparison.finalists if one in variants]
    right = [name for name in comparison.peers if name in peers]
    columns = [comparison.column(one) for one in (None, *kept, *right)]
    return replace(
        comparison,
        finalists=tuple(kept),
        peers=tuple(right),
        rounds=tuple(tuple(row[k] for k in columns) for row in comparison.rounds),
        isolated_us=tuple(comparison.isolated_us[k] for k in columns)
        if comparison.isolated_us
        else (),
    )
