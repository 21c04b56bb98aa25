"""Search by Optuna's tree-structured Parzen estimator alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tuner.expressions import Value
from tuner.search.optuna_journal import OptunaJournal
from tuner.search.tpe import CategoricalTpe, quiet_optuna
from tuner.search.untried import Untried

if TYPE_CHECKING:
    from tuner.search.pool import Pool
    from tuner.space import Config, SearchSpace
    from tuner.trial import Trial

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
        journal: Path | None = None,
        study_name: str = "tune",
    ) -> None:
        self._pool = pool
        self._untried = Untried(pool, seeds)
        self._rng = np.random.default_rng(seed)
        self._tpe = CategoricalTpe(space.parameters, seed)
        with quiet_optuna():
            self._journal = (
                OptunaJournal(journal, study_name, self._tpe.distributions) if journal else None
            )
        self._asked = 0
        self._numbers: dict[int, int] = {}

    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs, each knowing of the ones still outstanding."""
        return [self._propose() for _ in range(min(count, len(self._untried)))]

    def tell(self, trial: Trial) -> None:
        """Teach the estimator a time, or that the config is worse than every timed one."""
        self._tpe.end(self._numbers.pop(self._pool.index(trial.config)), trial.time_us)
        if self._journal is not None:
            self._journal.add(trial)

    def _propose(self) -> Config:
        index = self._choose()
        config = self._pool[index]
        self._numbers[index] = self._tpe.begin(config)
        self._asked += 1
        return config

    def _choose(self) -> int:
        seed = self._untried.take_seed()
        if seed is not None:
            return seed
        if self._asked < STARTUP_TRIALS or not self._tpe.ready:
            return self._untried.take_random(self._rng)
        return self._untried.take_nearest(self._tpe.wish())
