"""Optuna's tree-structured Parzen estimator over categories, told of every trial."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

if TYPE_CHECKING:
    from tuner.space import Config, Parameter

# Optuna's 24 leave a score of 0.43 over eight recorded spaces (benchmarks/search.py),
# 64 and more give 0.48 to 0.53; far more of them crowd the configs of a batch together.
CANDIDATES = 64


class CategoricalTpe:
    """Wish for values that are more frequent among the best trials than among the others.

    Every value is a category: on recorded spaces that finds more than treating values as numbers
    does. A wish may be invalid or tried already.
    """

    def __init__(self, parameters: Sequence[Parameter], seed: int) -> None:
        self._parameters = tuple(parameters)
        self.distributions: dict[str, BaseDistribution] = {
            p.name: CategoricalDistribution(p.values) for p in self._parameters
        }
        self._open = {n: d for n, d in self.distributions.items() if not d.single()}
        with quiet_optuna():
            # Whoever asks counts the start-up trials.
            self._sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=0, n_ei_candidates=CANDIDATES, constant_liar=True
            )
            self._study = optuna.create_study(sampler=self._sampler)
        # The sampler proposes for a running trial and leaves that one out of what it learns from.
        self._study.ask()
        self._proposing = self._study.get_trials(deepcopy=False)[0]
        self._begun = 0
        self._correct = 0
        self._pruned = 0
        self._failed: deque[int] = deque()

    @property
    def ready(self) -> bool:
        """Whether there is a time to learn from and a value to choose."""
        return bool(self._correct and self._open)

    def wish(self) -> np.ndarray[Any, np.dtype[np.intp]]:
        """Return the value indices of the config to try next."""
        wish = self._sampler.sample_relative(self._study, self._proposing, self._open)
        return np.array(
            [p.values.index(wish[p.name]) if p.name in wish else 0 for p in self._parameters]
        )

    def begin(self, config: Config) -> int:
        """Say that a config is being tried; return its number."""
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING, params=dict(config), distributions=self.distributions
            )
        )
        self._begun += 1
        return self._begun

    def end(self, number: int, time_us: float | None) -> None:
        """Teach the estimator a time, or that the config is worse than every timed one."""
        if time_us is None:
            self._failed.append(number)
        else:
            self._study.tell(number, time_us)
            self._correct += 1
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
