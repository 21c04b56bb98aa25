"""Search by Optuna's tree-structured Parzen estimator alone."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.expressions import Value
from tuner.model.trial import Trial
from tuner.search.journal import JournalFile, JournalStudy
from tuner.search.pool import Pool, RemainingConfigs

# Optuna's 24 leave a score of 0.43 over eight recorded spaces (benchmarks/search.py),
# 64 and more give 0.48 to 0.53; far more of them crowd the configs of a batch together.
CANDIDATES = 64


class CategoricalTpe:
    """Wish for values that are more frequent among the best trials than among the others.

    Every value is a category: on recorded spaces that finds more than treating values as numbers
    does. A wish may be invalid or tried already.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        seed: int,
        journal: JournalFile | None = None,
        study_name: str = "tune",
    ) -> None:
        self._parameters = tuple(parameters)
        self._distributions = distributions_of(self._parameters)
        self._open = {n: d for n, d in self._distributions.items() if not d.single()}
        self._journal = open_study(journal, study_name, self._parameters) if journal else None
        with quiet_optuna():
            # Whoever asks counts the start-up trials.
            self._sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=0, n_ei_candidates=CANDIDATES, constant_liar=True
            )
            self._study = optuna.create_study(sampler=self._sampler)
        # The sampler proposes for a running trial and leaves that one out of what it learns from.
        self._study.ask()
        self._proposing = self._study.get_trials(deepcopy=False)[0]
        self._numbers: dict[Config, int] = {}
        self._correct = 0
        self._pruned = 0
        self._failed: deque[int] = deque()

    @property
    def ready(self) -> bool:
        return bool(self._correct and self._open)

    def wish(self) -> np.ndarray[Any, np.dtype[np.intp]]:
        """Return the value indices of the config to try next."""
        wish = self._sampler.sample_relative(self._study, self._proposing, self._open)
        return np.array(
            [p.values.index(wish[p.name]) if p.name in wish else 0 for p in self._parameters]
        )

    def begin(self, config: Config) -> None:
        """Say that a config is being tried."""
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=dict(config.items_),
                distributions=self._distributions,
            )
        )
        self._numbers[config] = len(self._numbers) + 1

    def end(self, trial: Trial) -> None:
        """Teach the estimator a time, or that the config is worse than every timed one."""
        if trial.time_us is None:
            self._failed.append(self._numbers[trial.config])
        else:
            self._study.tell(self._numbers[trial.config], trial.time_us)
            self._correct += 1
        if self._journal is not None:
            self._journal.add(trial)
        # Told as failed, a trial would be ignored; told as pruned, it ranks below all timed ones.
        # But the best tenth counts as good, so that many failures among few timed configs would
        # be good ones: those wait as running trials, which a constant liar counts as bad.
        while self._failed and self._correct + self._pruned < 10 * self._correct:
            self._study.tell(self._failed.popleft(), state=TrialState.PRUNED)
            self._pruned += 1


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


def distributions_of(parameters: Sequence[Parameter]) -> dict[str, BaseDistribution]:
    """Make every value of every parameter a category."""
    return {p.name: CategoricalDistribution(p.values) for p in parameters}


def open_study(
    journal: JournalFile, study_name: str, parameters: Sequence[Parameter]
) -> JournalStudy:
    """Open a study of a journal for configs of these parameters."""
    with quiet_optuna():
        return JournalStudy(journal, study_name, distributions_of(parameters))


STARTUP_TRIALS = 10


class OptunaSearcher:
    """Propose what the estimator wishes, moved to the nearest valid config not yet tried.

    The study that proposes is in memory; `journal` is a file that optuna-dashboard opens, with one
    study per workload.
    """

    def __init__(
        self,
        pool: Pool,
        space: SearchSpace,
        seed: int,
        seeds: Sequence[Mapping[str, Value]] = (),
        *,
        journal: JournalFile | None = None,
        study_name: str = "tune",
    ) -> None:
        self._pool = pool
        self._remaining = RemainingConfigs(pool, seeds)
        self._rng = np.random.default_rng(seed)
        self._tpe = CategoricalTpe(space.parameters, seed, journal, study_name)
        self._asked = 0

    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs, each knowing of the ones still outstanding."""
        return [self._propose() for _ in range(min(count, len(self._remaining)))]

    def tell(self, trial: Trial) -> None:
        self._tpe.end(trial)

    def _propose(self) -> Config:
        index = self._remaining.take_seed()
        if index is None and self._asked >= STARTUP_TRIALS and self._tpe.ready:
            index = self._remaining.take_nearest(self._tpe.wish())
        if index is None:
            index = self._remaining.take_random(self._rng)
        config = self._pool[index]
        self._tpe.begin(config)
        self._asked += 1
        return config
