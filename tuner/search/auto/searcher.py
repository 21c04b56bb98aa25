"""The `auto` searcher: what it proposes when, and what is left to find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, expm1

import numpy as np

from tuner.model.config import Config, SearchSpace
from tuner.model.expressions import Value
from tuner.model.trial import Trial
from tuner.search.auto.context import (
    ConfigColumns,
    Memory,
    SearchContext,
    SearchTrial,
    Vector,
    group_numbers,
    targets,
)
from tuner.search.auto.gaussian import (
    LEAST_GROWTH,
    MOST_FITTED,
    THREADS,
    CovarianceKernel,
    GaussianModel,
    Outlook,
    Posterior,
    expected_improvement,
    fit_kernel,
    least,
)
from tuner.search.base import Features
from tuner.search.journal import JournalFile
from tuner.search.optuna import open_study
from tuner.search.pool import Pool, RemainingConfigs

# Configs that are compiled for each one that is timed.
AHEAD = 2
# Before this many trials with features, compiled configs are proposed in the order of naming.
LEAST_TRIALS = 10


class Shortlist:
    """Choose among configs that were compiled ahead, by what the compiler said of them."""

    def __init__(self, context: SearchContext, gaussian: GaussianModel) -> None:
        self._context, self._gaussian = context, gaussian
        self._waiting = context.memory.waiting
        self._kernel: CovarianceKernel | None = None
        self._fitted = 0

    def take(self) -> int | None:
        """Take a compiled config off the list; None while there is none."""
        ready = [index for index, row in self._waiting.items() if row.features is not None]
        if not ready:
            return None
        compiled = [row for row in self._context.memory.told() if row.features is not None]
        seeds = [index for index in ready if self._waiting[index].is_seed]
        if seeds or len(compiled) < LEAST_TRIALS:
            chosen = (seeds or ready)[0]
        # what a feature means differs between workloads: it is believed after own trials
        elif sum(not row.group for row in compiled) >= LEAST_TRIALS:
            gains, means = self._judge_waiting(ready, compiled)
            # where nothing is expected of any, the one that should be fastest
            chosen = ready[int(np.lexsort((means.round(9), -gains.round(9)))[0])]
        else:
            chosen = ready[int(self._gaussian.gains_of(ready).round(9).argmax())]
        del self._waiting[chosen]
        return chosen

    def _judge_waiting(self, ready: list[int], trials: list[SearchTrial]) -> tuple[Vector, Vector]:
        memory = self._context.memory
        under_way = [r for r in memory.rows if r.status is None and r.features is not None]
        judged = [self._waiting[index] for index in ready]
        # Put the features, each over its range in these rows, in front of the other columns.
        rows = [*trials, *under_way, *judged]
        names = sorted(rows[0].features or ())
        for row in rows:
            if row.levels is None:
                features = row.features or {}
                values = np.array([features.get(name, 0.0) for name in names])
                # amounts of instructions or bytes run over several powers of ten
                row.levels = np.sign(values) * np.log1p(np.abs(values))
        table = np.array([row.levels for row in rows])
        low, span = table.min(0), np.ptp(table, axis=0)
        scaled = np.divide(table - low, span, out=np.zeros_like(table), where=span > 0)
        x = np.hstack([scaled, np.array([row.x for row in rows])])
        numbers = group_numbers([*trials, *under_way])
        count, tried = len(trials), len(trials) + len(under_way)
        z, scales = targets(trials)
        if self._kernel is None or count >= self._fitted + LEAST_GROWTH:
            last = slice(max(0, count - MOST_FITTED), count)
            groups = numbers[last]
            self._kernel = fit_kernel(x[last], self._context.codes, z[last], groups, self._kernel)
            self._fitted = count
        posterior = Posterior(self._kernel, x[tried:])
        posterior.extend(x[:tried], numbers)
        mean, deviation = posterior.predict(z, np.arange(tried) < count)
        gains = expected_improvement(least(trials, z), mean, deviation) * float(scales[0])
        return gains, mean


# The candidates of which the most is expected: the others add nothing to the sum.
CONSIDERED = 500
# Logs of ratios of times between which the gain is integrated, and in how many steps.
_LEAST_GAIN, _MOST_GAIN, _STEPS = 1e-4, 2.0, 30
# A model is sure of itself too early. What this many trials found, the next ones may find too.
WINDOW = 20


def expected_gain(outlook: Outlook, own: list[SearchTrial]) -> float:
    """Return the share of the best time that all candidates together may still save.

    The larger of two: the expected gain of the best of the candidates, as the model sees them,
    each on its own; and what the last `WINDOW` of the searcher's own trials have gained.
    """
    if not outlook.free.any():
        return 0.0
    times = [row.log_us for row in own]
    before = min((t for t in times[:-WINDOW] if t is not None), default=None)
    late = min((t for t in times[-WINDOW:] if t is not None), default=None)
    gained = 0.0
    if late is not None:
        worst = max(t for t in times if t is not None)
        gained = -expm1(late - worst) if before is None else max(0.0, 1 - exp(late - before))
    from scipy.special import log_ndtr

    mean, deviation = outlook.mean[outlook.free], outlook.deviation[outlook.free]
    hopeful = np.argsort((mean - outlook.best) / deviation, kind="stable")[:CONSIDERED]
    mean, deviation = mean[hopeful], deviation[hopeful]
    gains: Vector = np.r_[0.0, np.geomspace(_LEAST_GAIN, _MOST_GAIN, _STEPS)]
    # how likely none of them is better than the best by this much
    short = (mean + gains[:, np.newaxis] - outlook.best) / deviation
    exceeding = -np.expm1(log_ndtr(short).sum(1))
    return max(float(np.trapezoid(exceeding * np.exp(-gains), gains)), gained)


# The first configs are spread: of a few random ones the farthest from all before.
STARTUP_TRIALS = 10
SPREAD_OVER = 30
# Where configs are told late, the spread start goes on until a model has this much to go by.
LEAST_TOLD = 5
# The last share of the budget goes to the incumbent's neighbours.
POLISH_SHARE = 0.05


class AutoSearcher:
    """Propose seeds, a spread start, what a model expects most of, and a local polish.

    `axes` are the workload's. Trials of other workloads (`share`) and what the compiler says of
    configs (`foresee`) are used when there are any.
    """

    def __init__(
        self,
        pool: Pool,
        space: SearchSpace,
        seed: int,
        budget: int,
        seeds: Sequence[Mapping[str, Value]] = (),
        *,
        axes: Mapping[str, int] | None = None,
        journal: JournalFile | None = None,
        study_name: str = "tune",
    ) -> None:
        self._pool, self._budget = pool, budget
        self._rng = np.random.default_rng(seed)
        self._remaining, self._memory = RemainingConfigs(pool, seeds), Memory()
        columns = ConfigColumns(space.parameters)
        self._context = SearchContext(
            pool, self._remaining, self._memory, columns, dict(axes or {}), self._rng
        )
        self._journal = open_study(journal, study_name, space.parameters) if journal else None
        self._gaussian = GaussianModel(self._context)
        self._shortlist = Shortlist(self._context, self._gaussian)
        self._rows: dict[int, SearchTrial] = {}
        self._begun: set[int] = set()
        self._asked = 0

    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs, each knowing of the ones still outstanding.

        While a shortlist is being compiled, only what was foreseen is proposed: fewer than asked
        for, or none, where the rest isn't ready.
        """
        asked: list[Config] = []
        with THREADS.limit(limits=1):
            while len(asked) < count:
                index = self._shortlist.take() if self._memory.waiting else self._choose()
                if index is None:
                    break
                self._asked += 1
                asked.append(self._begin(index))
        return asked

    def tell(self, trial: Trial) -> None:
        """Learn what came of a config, also of one that was never asked for."""
        index = self._pool.index(trial.config)
        if index not in self._begun:
            if index in self._remaining:  # nor compiled: an earlier run tried it
                self._remaining.take(index)
                self._asked += 1
            self._begin(index)
        self._memory.finish(self._rows[index], trial)
        self._memory.waiting.pop(index, None)
        if self._journal is not None:
            self._journal.add(trial)

    def shortlist(self, count: int) -> Sequence[Config]:
        """Name the configs to compile before `count` are asked for, several times as many."""
        named: list[Config] = []
        with THREADS.limit(limits=1):
            while len(named) < AHEAD * count and (index := self._choose()) is not None:
                self._memory.named.append(self._row(index))
                self._memory.waiting[index] = self._row(index)
                named.append(self._pool[index])
        return named

    def foresee(self, config: Config, features: Features) -> None:
        self._memory.waiting[self._pool.index(config)].features = features

    def share(self, trial: Trial, features: Features | None = None) -> None:
        values = [p.values.index(trial.config[p.name]) for p in self._pool.parameters]
        x = self._context.x_of(np.array([values]), trial.workload.values)[0]
        index = self._pool.index(trial.config) if trial.config in self._pool else None
        row = SearchTrial(x, self._memory.group(trial.workload), index, features=features)
        self._memory.rows.append(row)
        self._memory.finish(row, trial)

    def expected_gain(self) -> float | None:
        """Estimate the share of the best time that the untried configs may still save.

        Changes nothing: the same tells give the same asks, whether or not this is called.
        """
        own = [row for row in self._memory.told() if not row.group]
        if sum(row.log_us is not None for row in own) < STARTUP_TRIALS:
            return None
        with THREADS.limit(limits=1):
            outlook = self._gaussian.glance()
            return None if outlook is None else expected_gain(outlook, own)

    def _row(self, index: int) -> SearchTrial:
        if index not in self._rows:
            self._rows[index] = SearchTrial(self._context.x(np.array([index]))[0], 0, index)
        return self._rows[index]

    def _begin(self, index: int) -> Config:
        self._begun.add(index)
        self._memory.rows.append(self._row(index))
        return self._pool[index]

    def _choose(self) -> int | None:
        if not len(self._remaining):
            return None
        index = self._remaining.take_seed()
        if index is not None:
            self._row(index).is_seed = True
            return index
        begun = len(self._memory.rows) + len(self._memory.named)
        if len(self._memory.told()) < LEAST_TOLD or begun < STARTUP_TRIALS:
            drawn = np.unique(self._rng.integers(len(self._pool), size=SPREAD_OVER))
            drawn = drawn[self._remaining.are_free(drawn)]
            rows = [*self._memory.rows, *self._memory.named]
            if not len(drawn) or not rows:
                return self._remaining.take_random(self._rng)
            width = -self._context.codes
            x, tried = self._context.x(drawn)[:, :width], np.array([row.x[:width] for row in rows])
            apart = ((x[:, np.newaxis] - tried) ** 2).sum(2).min(1)
            return self._remaining.take(int(drawn[apart.argmax()]))
        if self._budget - self._asked <= POLISH_SHARE * self._budget:
            index = self._gaussian.polish()
        if index is None:
            index = self._gaussian.take()
        return self._remaining.take_random(self._rng) if index is None else index
