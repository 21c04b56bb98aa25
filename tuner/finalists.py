"""Whom the finals compare with the baseline on a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.candidates import Candidates
from tuner.dispatch.ahead import assigned
from tuner.dispatch.evidence import distrusted
from tuner.dispatch.kernels import Kernels
from tuner.dispatch.of_session import SessionDispatch
from tuner.dispatch.table import Choice, Table
from tuner.errors import InputError
from tuner.expressions import Value
from tuner.kernel import DEVICE_NAMES, Workload
from tuner.plan import Plan, distance
from tuner.session import Session
from tuner.trial import Trial, Variant
from tuner.verification import VERIFY, Verification

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
        self._choice = Choice(plan.variants_within, plan.max_variants)
        self._assignment: Mapping[Workload, Variant] | None = None
        self._serving: tuple[Variant, ...] | None = None
        self._made: tuple[tuple[int, frozenset[Variant]], Table] | None = None

    def of(self, workload: Workload) -> list[Variant]:
        """Return the variants to verify and to compare."""
        if workload.held_out:
            return self._inherited(workload)
        if workload in self._ranked:
            left = [v for v in self._ranked[workload] if not self._verification.failed(v)]
            return left[: self._plan.finalists]
        found = self._fastest(workload)
        serving = self._assigned(workload)
        everywhere = self._everywhere(workload) if self._plan.surveyed is not None else []
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
        count = min(max(near, FEWEST), self._plan.finalists)
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
            self._session.candidates(), self._plan.operators, self._device_numbers(workload)
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
