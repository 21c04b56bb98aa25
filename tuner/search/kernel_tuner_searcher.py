"""Search by one of Kernel Tuner's own strategies."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tuner.expressions import Value
from tuner.search.kernel_tuner_strategy import StrategyRun
from tuner.search.untried import Untried

if TYPE_CHECKING:
    from tuner.search.pool import Pool
    from tuner.space import Config, Parameter, SearchSpace
    from tuner.trial import Trial

_log = logging.getLogger(__name__)


class KernelTunerSearcher:
    """Propose what a Kernel Tuner strategy asks its runner for, whole batches at once.

    A strategy waits for all results of a batch. Asked for more meanwhile, the searcher proposes a
    random config, and answers the strategy from its result should it come to it. A strategy that
    converges before the budget is spent starts again elsewhere; when a start finds nothing new,
    the rest is random. Of a sampled pool a strategy knows the sample alone.
    """

    def __init__(
        self,
        pool: Pool,
        space: SearchSpace,
        strategy: str,
        seed: int,
        budget: int,
        seeds: Sequence[Mapping[str, Value]] = (),
    ) -> None:
        self._pool = pool
        self._untried = Untried(pool, seeds)
        self._rng = np.random.default_rng(seed)
        self._strategy = strategy
        self._seed = seed
        self._budget = max(1, min(budget, len(pool)))
        self._values = [_numbers(parameter) for parameter in space.parameters]
        columns = [np.array(v)[pool.encoded[:, i]].tolist() for i, v in enumerate(self._values)]
        self._rows = list(zip(*columns, strict=True)) if columns else [()] * len(pool)
        self._results: dict[int, float | None] = {}
        self._queue: deque[int] = deque()
        self._awaited: set[int] = set()
        self._found_new = False
        self._run: StrategyRun | None = self._start()

    def ask(self, count: int) -> Sequence[Config]:
        """Propose up to `count` configs, fewer where the strategy waits for results."""
        indices: list[int] = []
        while len(indices) < min(count, len(indices) + len(self._untried)):
            index = self._untried.take_seed()
            if index is None:
                index = self._next_wanted()
            if index is None and indices and self._run is not None:
                break
            if index is None:
                index = self._untried.take_random(self._rng)
            indices.append(index)
        if not self._untried:
            self._run = None
        return [self._pool[index] for index in indices]

    def tell(self, trial: Trial) -> None:
        """Keep the result for the strategy's next turn."""
        index = self._pool.index(trial.config)
        self._results[index] = trial.time_us
        self._awaited.discard(index)

    def _next_wanted(self) -> int | None:
        """Take the next config that the strategy wants; None while it waits or once it is over."""
        while self._run is not None:
            while self._queue:
                index = self._queue.popleft()
                if index in self._untried:
                    return self._untried.take(index)
            if self._awaited:
                return None
            self._advance(self._run)
        return None

    def _advance(self, run: StrategyRun) -> None:
        try:
            batch = run.next_batch()
        except Exception as error:  # noqa: BLE001  # a strategy of Kernel Tuner may raise anything
            _log.warning("kernel_tuner:%s stopped: %s; going on at random", self._strategy, error)
            self._run = None
            return
        if batch is not None:
            self._found_new = True
            self._queue.extend(batch)
            self._awaited.update(batch)
        elif self._found_new and len(self._results) < self._budget:
            self._seed += 1
            self._run = self._start()
        else:
            self._run = None

    def _start(self) -> StrategyRun:
        self._found_new = False
        return StrategyRun(
            self._strategy,
            self._values,
            self._rows,
            self._results,
            seed=self._seed,
            budget=self._budget,
        )


def _numbers(parameter: Parameter) -> list[float]:
    # Strategies measure distances between values: text and switches become their positions.
    if any(isinstance(value, bool | str) for value in parameter.values):
        return list(range(len(parameter.values)))
    return [value for value in parameter.values if not isinstance(value, str)]
