"""Search by Optuna's tree-structured Parzen estimator over categories."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from tuner.expressions import Value
from tuner.search.optuna_journal import OptunaJournal
from tuner.search.untried import Untried

if TYPE_CHECKING:
    from tuner.search.pool import Pool
    from tuner.space import Config, SearchSpace
    from tuner.trial import Trial

STARTUP_TRIALS = 10
# Optuna's 24 leave a score of 0.43 over eight recorded spaces (benchmarks/search_recorded_spaces),
# 64 and more give 0.48 to 0.53; far more of them crowd the configs of a batch together.
CANDIDATES = 64


class OptunaSearcher:
    """Propose what the estimator wishes, moved to the nearest valid config not yet tried.

    Every value is a category: on recorded spaces that finds more than treating values as numbers
    does. The study that proposes is in memory; `journal` is a file that optuna-dashboard opens,
    with one study per workload.
    """

    def __init__(
        self,
        pool: Pool,
        space: SearchSpace,
        seed: int,
        seeds: Sequence[Mapping[str, Value]] = (),
        *,
        journal: Path | None = None,
        study_name: str = "tune",
    ) -> None:
        self._pool = pool
        self._untried = Untried(pool, seeds)
        self._rng = np.random.default_rng(seed)
        self._distributions: dict[str, BaseDistribution] = {
            p.name: CategoricalDistribution(p.values) for p in space.parameters
        }
        self._open = {n: d for n, d in self._distributions.items() if not d.single()}
        with quiet_optuna():
            # `_choose` counts the start-up trials itself.
            self._sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=0, n_ei_candidates=CANDIDATES, constant_liar=True
            )
            self._study = optuna.create_study(sampler=self._sampler)
            self._journal = (
                OptunaJournal(journal, study_name, self._distributions) if journal else None
            )
        # The sampler proposes for a running trial and leaves that one out of what it learns from.
        self._study.ask()
        self._proposing = self._study.get_trials(deepcopy=False)[0]
        self._asked = 0
        self._correct = 0
        self._pruned = 0
        self._failed: deque[int] = deque()
        self._numbers: dict[int, int] = {}

    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs, each knowing of the ones still outstanding."""
        return [self._propose() for _ in range(min(count, len(self._untried)))]

    def tell(self, trial: Trial) -> None:
        """Teach the estimator a time, or that the config is worse than every timed one."""
        number = self._numbers.pop(self._pool.index(trial.config))
        if trial.time_us is None:
            self._failed.append(number)
        else:
            self._study.tell(number, trial.time_us)
            self._correct += 1
        self._tell_failures()
        if self._journal is not None:
            self._journal.add(trial)

    def _tell_failures(self) -> None:
        # Told as failed, a trial would be ignored; told as pruned, it ranks below all timed ones.
        # But the best tenth counts as good, so that many failures among few timed configs would
        # be good ones: those wait as running trials, which a constant liar counts as bad.
        while self._failed and self._correct + self._pruned < 10 * self._correct:
            self._study.tell(self._failed.popleft(), state=TrialState.PRUNED)
            self._pruned += 1

    def _propose(self) -> Config:
        index = self._choose()
        config = self._pool[index]
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING, params=dict(config), distributions=self._distributions
            )
        )
        self._asked += 1
        self._numbers[index] = self._asked
        return config

    def _choose(self) -> int:
        seed = self._untried.take_seed()
        if seed is not None:
            return seed
        if self._asked < STARTUP_TRIALS or not self._correct or not self._open:
            return self._untried.take_random(self._rng)
        wish = self._sampler.sample_relative(self._study, self._proposing, self._open)
        row = np.array(
            [p.values.index(wish[p.name]) if p.name in wish else 0 for p in self._pool.parameters]
        )
        return self._untried.take_nearest(row)


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's announcements off the terminal, and its settings as they were."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
