"""The `auto` searcher: several methods that share one memory of trials and one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, expm1
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tuner.model.expressions import Value
from tuner.search.auto.context import Memory, Row, SearchContext
from tuner.search.auto.features import ConfigColumns
from tuner.search.auto.models import single_threaded
from tuner.search.auto.remaining import RemainingConfigs
from tuner.search.auto.strategies import ClassifierStrategy, GaussianStrategy, Strategy, TpeStrategy
from tuner.search.optuna import CategoricalTpe, OptunaJournal, quiet_optuna
from tuner.search.static_choice import Compiled

if TYPE_CHECKING:
    from tuner.model.config import Config, SearchSpace
    from tuner.model.trial import Trial
    from tuner.search.auto.features import Vector
    from tuner.search.auto.strategies import Outlook
    from tuner.search.base import Features
    from tuner.search.pool import Pool

# What a member has found is forgotten by half after this many of its trials.
HALF_LIFE = 20
# No member falls under this share: the one that fails now may be the only one that can go on.
LEAST_SHARE = 0.05
# Finds and trials that a member is given at first: its share moves once it has a few more.
_PRIOR_FINDS, _PRIOR_TRIALS = 1.0, 4.0


class BanditAllocator:
    """Draw members in proportion to their first share and to the rate of their finds."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = dict(shares)
        self._finds = dict.fromkeys(shares, 0.0)
        self._trials = dict.fromkeys(shares, 0.0)

    def draw(self, rng: np.random.Generator) -> str:
        """Draw the member that proposes next."""
        odds = self.odds()
        return list(odds)[int(rng.choice(len(odds), p=list(odds.values())))]

    def odds(self) -> dict[str, float]:
        """Return the probability of every member."""
        raw = {
            name: share * (self._finds[name] + _PRIOR_FINDS) / (self._trials[name] + _PRIOR_TRIALS)
            for name, share in self._shares.items()
        }
        total = sum(raw.values())
        raised = {name: max(value / total, LEAST_SHARE) for name, value in raw.items()}
        total = sum(raised.values())
        return {name: value / total for name, value in raised.items()}

    def count(self, name: str, *, found: bool) -> None:
        """Note whether a member's trial was a find."""
        kept = 0.5 ** (1 / HALF_LIFE)
        self._finds[name] = self._finds[name] * kept + found
        self._trials[name] = self._trials[name] * kept + 1.0


# The candidates of which the most is expected: the others add nothing to the sum.
CONSIDERED = 500
# Logs of ratios of times between which the gain is integrated, and in how many steps.
_LEAST_GAIN, _MOST_GAIN, _STEPS = 1e-4, 2.0, 30
# A model is sure of itself too early. What this many trials found, the next ones may find too.
WINDOW = 20


def expected_gain(outlook: Outlook, own: list[Row]) -> float:
    """Return the share of the best time that all candidates together may still save.

    The larger of two: the expected gain of the best of the candidates, as the model sees them,
    each on its own; and what the last `WINDOW` of the searcher's own trials have gained.
    """
    if not outlook.free.any():
        return 0.0
    return max(_by_model(outlook), _of_late(own))


def _by_model(outlook: Outlook) -> float:
    from scipy.special import log_ndtr

    mean, deviation = outlook.mean[outlook.free], outlook.deviation[outlook.free]
    hopeful = np.argsort((mean - outlook.best) / deviation, kind="stable")[:CONSIDERED]
    mean, deviation = mean[hopeful], deviation[hopeful]
    gains: Vector = np.r_[0.0, np.geomspace(_LEAST_GAIN, _MOST_GAIN, _STEPS)]
    # how likely none of them is better than the best by this much
    short = (mean + gains[:, np.newaxis] - outlook.best) / deviation
    exceeding = -np.expm1(log_ndtr(short).sum(1))
    return float(np.trapezoid(exceeding * np.exp(-gains), gains))


def _of_late(own: list[Row]) -> float:
    times = [row.log_us for row in own]
    before = min((t for t in times[:-WINDOW] if t is not None), default=None)
    late = min((t for t in times[-WINDOW:] if t is not None), default=None)
    if late is None:
        return 0.0
    if before is None:
        return -expm1(late - max(t for t in times if t is not None))
    return max(0.0, 1 - exp(late - before))


# The share of the proposals that each member begins with.
SHARES = {"gaussian": 0.8, "classifier": 0.1, "tpe": 0.1}
# The first configs are spread: of a few random ones the farthest from all before.
STARTUP_TRIALS = 10
SPREAD_OVER = 30
# Where configs are told late, the spread start goes on until a model has this much to go by.
LEAST_TOLD = 5
# The last share of the budget goes to the incumbent's neighbours.
POLISH_SHARE = 0.05
# A find is among this share of the trials, when it is told.
FIND_SHARE = 0.1


class AutoSearcher:
    """Propose seeds, a spread start, what a member of the portfolio takes, and a local polish.

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
        members: Sequence[str] = tuple(SHARES),
        journal: Path | None = None,
        study_name: str = "tune",
    ) -> None:
        self._pool, self._budget = pool, budget
        self._rng = np.random.default_rng(seed)
        self._untried, self._memory = RemainingConfigs(pool, seeds), Memory()
        columns = ConfigColumns(space.parameters)
        self._ground = SearchContext(
            pool, self._untried, self._memory, columns, dict(axes or {}), self._rng
        )
        self._tpe = CategoricalTpe(space.parameters, seed)
        self._gaussian = GaussianStrategy(self._ground)
        known: dict[str, Strategy] = {
            "gaussian": self._gaussian,
            "classifier": ClassifierStrategy(self._ground),
            "tpe": TpeStrategy(self._ground, self._tpe),
        }
        self._members = {name: known[name] for name in members}
        self._credit = BanditAllocator({name: SHARES[name] for name in members})
        self._compiled = Compiled(self._ground, self._gaussian)
        with quiet_optuna():
            distributions = self._tpe.distributions
            self._journal = OptunaJournal(journal, study_name, distributions) if journal else None
        self._rows: dict[int, Row] = {}
        self._numbers: dict[int, int] = {}
        self._asked = 0

    @single_threaded
    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs, each knowing of the ones still outstanding.

        While a shortlist is being compiled, only what was foreseen is proposed: fewer than asked
        for, or none, where the rest isn't ready.
        """
        asked: list[Config] = []
        while len(asked) < count:
            index = self._compiled.take() if self._memory.waiting else self._choose()
            if index is None:
                break
            self._asked += 1
            asked.append(self._begin(index))
        return asked

    def tell(self, trial: Trial) -> None:
        """Teach every member what came of a config, also of one that was only compiled."""
        index = self._pool.index(trial.config)
        if index not in self._numbers:
            self._begin(index)
        row = self._rows[index]
        self._memory.finish(row, trial)
        self._compiled.drop(index)
        self._tpe.end(self._numbers[index], trial.time_us)
        if row.member is not None:
            self._credit.count(row.member, found=self._memory.is_find(row, FIND_SHARE))
        if self._journal is not None:
            self._journal.add(trial)

    @single_threaded
    def shortlist(self, count: int) -> Sequence[Config]:
        """Name the configs to compile before `count` are asked for, several times as many."""
        named = []
        for _ in range(self._compiled.wanted(count)):
            index = self._choose()
            if index is None:
                break
            self._memory.named.append(self._row(index))
            self._compiled.name(self._row(index))
            named.append(self._pool[index])
        return named

    def foresee(self, config: Config, features: Features) -> None:
        """Learn what the compiler says of a config of the shortlist."""
        self._compiled.foresee(self._pool.index(config), features)

    def share(self, trial: Trial, features: Features | None = None) -> None:
        """Learn from a finished trial on another workload."""
        values = [p.values.index(trial.config[p.name]) for p in self._pool.parameters]
        axes = trial.workload.values
        x = self._ground.x_of(np.array([values]), axes)[0]
        row = Row(x, self._memory.group(trial.workload), features=features)
        if trial.config in self._pool:
            row.index = self._pool.index(trial.config)
        self._memory.rows.append(row)
        self._memory.finish(row, trial)

    @single_threaded
    def expected_gain(self) -> float | None:
        """Estimate the share of the best time that the untried configs may still save.

        Changes nothing: the same tells give the same asks, whether or not this is called.
        """
        own = [row for row in self._memory.rows if not row.group and row.says_something]
        if sum(row.log_us is not None for row in own) < STARTUP_TRIALS:
            return None
        outlook = self._gaussian.glance()
        return None if outlook is None else expected_gain(outlook, own)

    def _row(self, index: int) -> Row:
        if index not in self._rows:
            self._rows[index] = Row(self._ground.x(np.array([index]))[0], 0, index)
        return self._rows[index]

    def _begin(self, index: int) -> Config:
        config = self._pool[index]
        self._memory.rows.append(self._row(index))
        self._numbers[index] = self._tpe.begin(config)
        return config

    def _choose(self) -> int | None:
        """Take an untried config; None where none is left."""
        if not len(self._untried):
            return None
        index = self._untried.take_seed()
        if index is not None:
            self._row(index).is_seed = True
            return index
        if self._is_start():
            return self._take_far()
        if self._budget - self._asked <= POLISH_SHARE * self._budget:
            index = self._gaussian.polish()
        return self._take_by_member() if index is None else index

    def _is_start(self) -> bool:
        rows = self._memory.rows
        told = sum(row.says_something for row in rows)
        return told < LEAST_TOLD or len(rows) + len(self._memory.named) < STARTUP_TRIALS

    def _take_by_member(self) -> int:
        first = self._credit.draw(self._rng)
        for name in dict.fromkeys([first, *self._members]):
            index = self._members[name].take()
            if index is not None:
                self._row(index).member = name
                return index
        return self._untried.take_random(self._rng)

    def _take_far(self) -> int:
        drawn = np.unique(self._rng.integers(len(self._pool), size=SPREAD_OVER))
        drawn = drawn[[index in self._untried for index in drawn.tolist()]]
        rows = [*self._memory.rows, *self._memory.named]
        if not len(drawn) or not rows:
            return self._untried.take_random(self._rng)
        width = -self._ground.codes
        x, tried = self._ground.x(drawn)[:, :width], np.array([row.x[:width] for row in rows])
        apart = ((x[:, np.newaxis] - tried) ** 2).sum(2).min(1)
        return self._untried.take(int(drawn[apart.argmax()]))
