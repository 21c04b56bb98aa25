"""Which variants go on to the finals: those that may be the best, and some besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from tuner.dispatch.evidence import find_wrong_variants
from tuner.dispatch.kernels import VariantRenderer
from tuner.dispatch.table import (
    NEAR_ENOUGH,
    DispatchTable,
    SessionDispatch,
    SetSelection,
    assign_variants,
)
from tuner.model.errors import InputError
from tuner.model.expressions import Value
from tuner.model.kernel import DEVICE_NAMES, Workload
from tuner.model.statistics import SURE, relative_standard_error
from tuner.model.trial import Status, Trial, Variant
from tuner.space.plan import distance
from tuner.tuning.race import Raced
from tuner.tuning.run import Run
from tuner.tuning.verification import VERIFY

# A search's times are known to a few percent: what is further behind is not worth a comparison,
# but for the first few, since the best may fail a check, and for those whose 95 % intervals meet.
# Behind the last of these few: a single one may have been lucky. With 2,048 tokens of a fused MoE
# layer on an H200 two configs took 471 and 486 us in the search, and 533 both in the finals.
WITHIN = 1.05
FEWEST = 3
# Among more than that chance would choose, and each of them costs the rounds of a race.
CONTENDERS = 16

# The best one may fail a check.
FEWEST_FINALISTS = 2

# The fastest first, with what a race said of them; None of whom did not run in it.
Ranking = dict[Variant, Raced | None]
Rank = Callable[[Workload, list[Variant]], Ranking]


def contenders(timed: Sequence[Trial], most: int) -> list[Variant]:
    """Choose, of the trials of a workload, the fastest first, at most so many that may be best."""
    if not timed:
        return []
    time_us, error = _time_and_error(timed[:FEWEST][-1])
    limit_us = time_us * max(WITHIN, 1.0 + SURE * error)

    def may_win(trial: Trial) -> bool:
        time_us, error = _time_and_error(trial)
        return time_us * (1.0 - SURE * error) <= limit_us

    return [trial.variant for trial in timed if may_win(trial)][:most]


def worth_comparing(ranking: Ranking, within: float) -> list[Variant]:
    """Leave out whom a race proved slower by more than this share, but for the second.

    They neither win nor serve their workload for the sake of fewer variants.
    """
    raced_us = [one.us for one in ranking.values() if one is not None]
    most_us = (1.0 + within) * min(raced_us, default=0.0)
    return [
        variant
        for place, (variant, one) in enumerate(ranking.items())
        if place < FEWEST_FINALISTS or one is None or not one.slower or one.us <= most_us
    ]


def _time_and_error(trial: Trial) -> tuple[float, float]:
    assert trial.measurement is not None
    error = relative_standard_error(trial.measurement.times_us)
    return trial.measurement.median_us, error or 0.0


class FinalistSelection:
    """Choose what to compare; `ranked` has the order of an objective other than time."""

    def __init__(self, run: Run, ranked: Mapping[Workload, tuple[Variant, ...]]) -> None:
        self._run, self._ranked = run, ranked
        self._plan, self._session, self._verification = run.plan, run.session, run.verification
        self._choice = SetSelection(run.plan.config.variants_within, run.plan.config.max_variants)
        self._assignment: Mapping[Workload, Variant] | None = None
        self._serving: tuple[Variant, ...] | None = None
        self._made: tuple[tuple[int, frozenset[Variant]], DispatchTable] | None = None

    def of(self, workload: Workload, rank: Rank) -> list[Variant]:
        """Return the variants to verify and to compare."""
        if workload.held_out:
            return self._inherit(workload)
        most = self._plan.config.finalists
        if workload in self._ranked:
            return [v for v in self._ranked[workload] if self._may_win(v, workload)][:most]
        timed = [
            trial
            for trial in self._session.fastest(workload=workload, full=True)
            if self._may_win(trial.variant, workload)
        ]
        found = contenders(timed, max(CONTENDERS, most))
        besides = self._besides(workload)
        ranking = rank(workload, list(dict.fromkeys([*found, *besides])))
        best = {one: its for one, its in ranking.items() if one in found}
        # Of a recording others ask more than what is best here.
        within = self._plan.config.variants_within
        within = NEAR_ENOUGH if within is None else within
        within = inf if self._plan.config.surveyed is not None else within
        chosen = worth_comparing(best, within)[:most]
        return [one for one in ranking if one in chosen or one in besides]

    def _may_win(self, variant: Variant, workload: Workload) -> bool:
        """Tell whether nothing is known against it, here or on any other workload."""
        where = variant.candidate, workload, variant.config
        judged = self._session.trial(*where, stage="finals")
        wrong = judged is not None and judged.status is not Status.CORRECT
        return not wrong and not self._verification.failed(variant)

    def _besides(self, workload: Workload) -> list[Variant]:
        """Name those that are compared however fast they are."""
        # By the search's times alone, which don't change: a resumed run finds the same.
        if self._assignment is None:
            self._assignment = self._smallest_set(workload, self._session.trials())
        serving, found = self._assignment.get(workload), []
        if serving is not None and not self._verification.failed(serving):
            found.append(serving)
        if self._plan.config.surveyed is not None:
            found += self._everywhere(workload)
        if self._plan.config.keep_bits:
            # The config whose bits are kept has them on every input if no other does.
            assert self._plan.space.default is not None
            own = Variant(self._plan.candidate, self._plan.space.default)
            timed = self._session.fastest(workload=workload)
            found += [trial.variant for trial in timed if trial.variant == own]
        return found

    def _everywhere(self, workload: Workload) -> list[Variant]:
        """Name the smallest set for what the space tunes: a recording's users dispatch to it.

        Without what the space leaves out here as slow: of shapes far apart that is most of it.
        """
        if self._serving is None:
            left_out = set(self._plan.spec.held_out)
            trials = [t for t in self._session.trials() if t.workload not in left_out]
            served = self._smallest_set(workload, trials)
            self._serving = tuple(dict.fromkeys(served.values()))
        candidates = self._run.candidates
        offered = []
        for one in self._serving:
            names = candidates.evaluator(one.candidate).names(workload)
            allowed = candidates.plan(one.candidate).space.allows(one.config, names)
            if allowed and self._may_run(one, workload):
                offered.append(one)
        return offered

    def _smallest_set(
        self, workload: Workload, trials: Sequence[Trial]
    ) -> Mapping[Workload, Variant]:
        baselines_us = {w: b.measurement.median_us for w, b in self._session.baselines().items()}
        candidates, numbers = self._session.candidates(), self._device_numbers(workload)
        kernels = VariantRenderer(candidates, self._plan.config.operators, numbers)
        return assign_variants(
            trials, baselines_us, find_wrong_variants(trials, ()), kernels.of, self._choice
        )

    def _inherit(self, workload: Workload) -> list[Variant]:
        """Choose what production will run there, or else what won on the nearest tuned workload."""
        wanted: list[Variant] = []
        if not self._ranked:
            held_out = (h for h in self._table(workload).held_out if h.workload == workload)
            wanted = [one.kernel.variant for one in held_out if one.kernel is not None]
        place = self._plan.config.workloads.index
        results = [result for result in self._session.results() if not result.workload.held_out]
        results.sort(key=lambda one: (distance(workload, one.workload), place(one.workload)))
        wanted += [result.variant for result in results]
        return [v for v in dict.fromkeys(wanted) if self._may_run(v, workload)][:1]

    def _table(self, workload: Workload) -> DispatchTable:
        """Make the table, unless nothing that decides on it has changed: that takes a second."""
        count = sum(not one.workload.held_out for one in self._session.comparisons())
        out = find_wrong_variants(self._session.trials(stage=None), self._session.checks())
        if self._made is None or self._made[0] != (count, out):
            numbers = self._device_numbers(workload)
            table = SessionDispatch(self._session, self._choice, numbers).table
            self._made = (count, out), table
        return self._made[1]

    def _device_numbers(self, workload: Workload) -> Mapping[str, Value]:
        names = self._run.candidates.evaluator(self._plan.candidate).names(workload)
        return {name: value for name, value in names.items() if name in DEVICE_NAMES}

    def _may_run(self, variant: Variant, workload: Workload) -> bool:
        """Whether a config is valid here, and renders: a template may divide by an axis."""
        if self._verification.failed(variant):
            return False
        evaluator = self._run.candidates.evaluator(variant.candidate)
        space = self._run.candidates.plan(variant.candidate).space
        try:
            if space.violated(variant.config, evaluator.names(workload)) is not None:
                return False
            evaluator.key(workload, variant.config)
        except InputError as error:
            self._verification.fail(VERIFY, workload, variant, str(error))
            return False
        return True
