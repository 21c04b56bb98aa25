"""Which variants go on to the finals: those that may be the best, and some besides."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import numpy as np

from tuner.device.base import RankedRounds
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
from tuner.model.statistics import SURE, relative_standard_error, trimmed_mean
from tuner.model.trial import Status, Trial, Variant
from tuner.space.plan import distance
from tuner.tuning.run import Run
from tuner.tuning.verification import VERIFY

# Rounds before anybody drops out.
FIRST_ROUNDS = 12
# Who is so many standard errors behind is out; in so few rounds 1 in 70 that are as fast would be.
PROVED = 3.0
# Costs that differ by less are the same: whoever of them wins, next to nothing is lost. With 0.003
# finals take a sixth longer and choose no better (benchmarks/simulated_seeds.py).
APART = 0.01
# Rounds are added to at most so many times those so far: then fewer may be left to run.
GROWTH = 4
# For all rounds but the first: a noisy workload takes as long as some twenty trials.
SECONDS = 2.0
# Of differences as good as normal, the trimmed mean needs two thirds of the median's rounds.
TRIMMED = 0.2

Measure = Callable[[Sequence[int], int], RankedRounds]
Matrix = np.ndarray[Any, np.dtype[np.float64]]
Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Raced:
    """What a runner takes (us), and whether it was proved `slower` than somebody."""

    us: float
    slower: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """How far each runner is behind the leader, with the standard error of that, in us."""

    leader: int
    leader_us: float
    behind_us: Vector
    errors_us: Vector

    @property
    def running(self) -> list[int]:
        """Who is not proved slower."""
        return np.flatnonzero(self.behind_us <= PROVED * self.errors_us).tolist()

    def growth(self) -> float:
        """Say how many times the rounds so far would tell all apart; at most 1 where they are."""
        small = APART * self.leader_us / SURE
        open_ = [k for k in self.running if k != self.leader and self.errors_us[k] > small]
        if not open_:
            return 1.0
        wanted = np.maximum(self.behind_us[open_] / PROVED, small)
        return float(((self.errors_us[open_] / wanted) ** 2).max())


@dataclass(frozen=True, slots=True)
class _Behind:
    """Who drops out, behind whom and by how many us; the leader takes `leader_us` until then."""

    runner: int
    leader: int
    leader_us: float
    us: float
    slower: bool


def race(
    measure: Measure,
    count: int,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Raced | None, ...]:
    """Return what each of `count` runners takes, None for those that went wrong.

    `measure` times the runners of these numbers together, in so many rounds: a row each, with None
    for whoever went wrong. What is said of one that dropped out rests on the rounds until then.
    """
    running, wanted, left_s = list(range(count)), FIRST_ROUNDS, seconds
    rounds = np.zeros((0, count))
    behind: list[_Behind] = []
    while True:
        began_s = clock()
        # None becomes NaN, which is not finite.
        rounds = np.vstack([rounds, np.array(measure(running, wanted), dtype=float)])
        took_s = clock() - began_s
        right = np.flatnonzero(np.isfinite(rounds).all(axis=0)).tolist()
        running, rounds = [running[k] for k in right], rounds[:, right]
        if not running:
            return (None,) * count
        now = standing(rounds)
        leader, ahead = running[now.leader], now.running
        if len(rounds) > FIRST_ROUNDS:
            left_s -= took_s
        round_s = took_s / wanted * (len(ahead) + 1) / (len(running) + 1)
        more = (min(now.growth(), 1.0 + GROWTH) - 1.0) * len(rounds)
        wanted = ceil(min(more, left_s / round_s) if round_s > 0.0 else more)
        out = [k for k in range(len(running)) if wanted < FIRST_ROUNDS or k not in ahead]
        behind += [
            _Behind(running[k], leader, now.leader_us, float(now.behind_us[k]), k not in ahead)
            for k in out
        ]
        if wanted < FIRST_ROUNDS:
            return _costs(count, behind)
        running, rounds = [running[k] for k in ahead], rounds[:, ahead]


def _costs(count: int, behind: Sequence[_Behind]) -> tuple[Raced | None, ...]:
    """Put together who was how far behind whom: whom it was behind may have dropped out later.

    Or it went wrong after that: then nothing is proved of those that it left behind.
    """
    last = behind[-1]
    costs = {last.leader: Raced(last.leader_us, slower=False)}
    for one in reversed(behind):
        if one.runner != last.leader:
            ahead = costs.get(one.leader)
            leader_us = ahead.us if ahead else one.leader_us
            costs[one.runner] = Raced(leader_us + one.us, one.slower and ahead is not None)
    return tuple(map(costs.get, range(count)))


def standing(rounds: Matrix) -> Standing:
    """Compare the columns with the fastest one's, round by round."""
    means_us, _ = trimmed_mean(rounds, TRIMMED)
    leader = int(np.argmin(means_us))
    behind_us, errors_us = trimmed_mean(rounds - rounds[:, [leader]], TRIMMED)
    # By the differences another one may lead.
    if behind_us.min() < 0.0:
        leader = int(np.argmin(behind_us))
        behind_us, errors_us = trimmed_mean(rounds - rounds[:, [leader]], TRIMMED)
        behind_us = np.maximum(behind_us, 0.0)
    return Standing(leader, float(means_us[leader]), behind_us, errors_us)


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
        variants = contenders(timed, max(CONTENDERS, most))
        besides = self._besides(workload)
        ranking = rank(workload, list(dict.fromkeys([*variants, *besides])))
        best = {variant: its for variant, its in ranking.items() if variant in variants}
        # Of a recording others ask more than what is best here.
        within = self._plan.config.variants_within
        within = NEAR_ENOUGH if within is None else within
        within = inf if self._plan.config.surveyed is not None else within
        chosen = worth_comparing(best, within)[:most]
        return [variant for variant in ranking if variant in chosen or variant in besides]

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
        for variant in self._serving:
            names = candidates.evaluator(variant.candidate).names(workload)
            allowed = candidates.plan(variant.candidate).space.allows(variant.config, names)
            if allowed and self._may_run(variant, workload):
                offered.append(variant)
        return offered

    def _smallest_set(
        self, workload: Workload, trials: Sequence[Trial]
    ) -> Mapping[Workload, Variant]:
        baselines_us = {w: b.measurement.median_us for w, b in self._session.baselines().items()}
        candidates, numbers = self._session.candidates(), self._device_numbers(workload)
        kernels = VariantRenderer(candidates, self._plan.config.operators, numbers)
        wrong, weights = find_wrong_variants(trials, ()), self._plan.config.weights
        return assign_variants(trials, baselines_us, wrong, kernels.of, self._choice, weights)

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
        count = sum(not comparison.workload.held_out for comparison in self._session.comparisons())
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
