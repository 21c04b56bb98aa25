"""Search by one of Kernel Tuner's own strategies."""

from __future__ import annotations

import logging
import random
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
from kernel_tuner.interface import Options, strategy_map
from kernel_tuner.runners.runner import Runner
from kernel_tuner.searchspace import Searchspace
from kernel_tuner.util import InvalidConfig, RuntimeFailedConfig, StopCriterionReached, TuningBudget

from tuner.model.config import Config, SearchSpace
from tuner.model.errors import InputError
from tuner.model.expressions import Value
from tuner.model.trial import Trial
from tuner.search.pool import Pool, RemainingConfigs

_NEEDS = {"skopt": "skopt", "pyatf_strategies": "pyatf"}
# A strategy that has converged walks over known configs for ever; its budget then counts as spent.
MAX_IDLE_CALLS = 300
# And one that no longer comes to ask: of functions, some seconds; what strategies do between two
# batches of spaces of 100,000 configs takes a tenth.
MAX_IDLE_STEPS = 20_000_000


class _Dropped(BaseException):  # not an error: no strategy may swallow it
    """Unwind a strategy whose search is over."""


def find_strategy(name: str) -> Callable[..., Any]:
    """Load a strategy; raise `InputError` for an unknown or unavailable one."""
    known = sorted(n for n in strategy_map if n not in _NEEDS or find_spec(_NEEDS[n]))
    if name not in known:
        missing = f" needs the package {_NEEDS[name]}, which" if name in _NEEDS else ""
        raise InputError(
            f"Kernel Tuner's strategy {name!r}{missing} is not available",
            remedy=f"available: {', '.join(known)}",
        )
    # Loaded here, not at its first turn: libraries that it imports draw random numbers.
    tune: Callable[..., Any] = strategy_map[name].tune
    if name == "bayes_opt":
        from kernel_tuner.strategies import bayes_opt

        bayes_opt.LatinHypercube = _seeded_hypercube
    return tune


def _seeded_hypercube(d: int) -> Any:
    """Stand in for SciPy's sampler, which takes fresh entropy: no seed would repeat a search."""
    from scipy.stats.qmc import LatinHypercube

    return LatinHypercube(d=d, rng=np.random.default_rng(np.random.randint(2**31)))


class StrategyRun:
    """One run of a strategy over configs given as rows of numbers, from start to its end.

    Configs are named by their position in `rows`. `results` holds what is known: a time, or None
    for a failure; the caller adds to it between the turns of the strategy.
    """

    def __init__(
        self,
        strategy: str,
        values: Sequence[Sequence[float]],
        rows: Sequence[Sequence[float]],
        results: Mapping[int, float | None],
        *,
        seed: int,
        budget: int,
    ) -> None:
        tune = find_strategy(strategy)
        self._inbox: SimpleQueue[bool] = SimpleQueue()
        self._outbox: SimpleQueue[list[int] | BaseException | None] = SimpleQueue()
        python = random.Random(seed)  # noqa: S311
        numpy = np.random.RandomState(seed % 2**32)
        self._random_state: tuple[Any, Any] = python.getstate(), numpy.get_state()
        tune_params = {f"parameter_{i}_": list(one) for i, one in enumerate(values)}
        # A new one for every run: it remembers the neighbours that earlier runs asked for.
        configs = {i: dict(zip(tune_params, row, strict=True)) for i, row in enumerate(rows)}
        cache = {"tune_params": tune_params, "cache": configs}
        space = _Space(None, None, None, from_cache=cache)
        runner = _BatchRunner(self._inbox, self._outbox, space, results)
        options = Options(
            tune_params=tune_params,
            objective=["time"],
            objective_higher_is_better=[False],
            strategy=strategy,
            strategy_options=Options({} if strategy == "brute_force" else {"max_fevals": budget}),
            max_fevals=budget,
            budget=TuningBudget(max_fevals=budget),
            seed=seed % 2**32,
            cache={},
            cachefile=None,
            restrictions=[],
            metrics=None,
            simulation_mode=False,
            verbose=False,
            quiet=True,
        )

        def run() -> None:
            ended = None
            try:
                # Steps and no seconds: a search that is stopped by them repeats itself.
                sys.setprofile(runner.count_step)
                tune(space, runner, options)
            except (_Dropped, StopCriterionReached):
                pass
            except Exception as error:  # noqa: BLE001  # raised again in the searcher's thread
                ended = error
            finally:
                sys.setprofile(None)
            runner.outbox.put(ended)

        name = f"kernel_tuner:{strategy}"
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._ended = False
        # The thread holds no reference to this object, so that dropping it ends the thread.
        weakref.finalize(self, self._inbox.put, False).atexit = False

    def next_batch(self) -> list[int] | None:
        """Let the strategy go on until it wants configs without a result; None once it has ended.

        Raises what the strategy raised.
        """
        if self._ended:
            return None
        with self._own_random_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._thread.is_alive():
                self._inbox.put(True)
            else:
                self._thread.start()
            batch = self._outbox.get()
        if isinstance(batch, list):
            return batch
        self._ended = True
        self._thread.join()
        if batch is not None:
            raise batch
        return None

    @contextmanager
    def _own_random_state(self) -> Iterator[None]:
        # Strategies draw from the global generators, which belong to the rest of the program.
        # Only one side runs at a time.
        outside = random.getstate(), np.random.get_state()
        _set_state(self._random_state)
        try:
            yield
        finally:
            self._random_state = random.getstate(), np.random.get_state()
            _set_state(outside)


class _Space(Searchspace):  # type: ignore[misc]  # Kernel Tuner has no types
    """A search space whose Latin hypercube obeys the seed, and may be as large as the space."""

    def get_LHS_sample_indices(self, num_samples: int) -> list[int]:  # noqa: N802
        """Draw configs spread over every parameter; SciPy's own would take fresh entropy."""
        encoded = self.get_list_param_indices_numpy().astype(np.int64)
        low, high = encoded.min(axis=0), encoded.max(axis=0)
        chosen: dict[int, None] = {}
        strata = [np.random.permutation(num_samples) for _ in range(encoded.shape[1])]
        places = (np.column_stack(strata) + np.random.rand(num_samples, 1)) / num_samples
        for target in (low + places * (high - low + 1)).astype(np.int64):
            chosen[int(np.abs(encoded - target).sum(axis=1).argmin())] = None
        for index in np.random.permutation(self.size).tolist():
            if len(chosen) >= min(num_samples, self.size):
                break
            chosen[index] = None
        return list(chosen)


class _BatchRunner(Runner):  # type: ignore[misc]  # Kernel Tuner has no types
    """Stand where Kernel Tuner compiles and times: hand out what is new and wait."""

    def __init__(
        self,
        inbox: SimpleQueue[bool],
        outbox: SimpleQueue[list[int] | BaseException | None],
        space: Searchspace,
        results: Mapping[int, float | None],
    ) -> None:
        super().__init__()
        self.inbox, self.outbox = inbox, outbox
        self._space, self._results = space, results
        self._idle_calls = self._idle_steps = 0
        # Some strategies prune by it; every config of ours is valid already.
        self.dev = SimpleNamespace(max_threads=2**31)

    def count_step(self, *_: object) -> None:
        """Count a function that a strategy calls; raise where it calls them without an end."""
        self._idle_steps += 1
        if self._idle_steps > MAX_IDLE_STEPS:
            raise RuntimeError("it asks for no config, and does not end")

    def get_device_info(self) -> None:
        """Strategies don't use it."""

    def get_environment(self, tuning_options: Any) -> dict[str, Any]:
        return {}

    def run(self, parameter_space: Any, tuning_options: Any) -> list[dict[str, Any] | None]:
        """Get results for a batch; None for those beyond the budget."""
        self._idle_steps = 0
        configs = [tuple(config) for config in parameter_space]
        positions = [self._space.get_param_config_index(config) for config in configs]
        wanted = dict.fromkeys(p for p in positions if p is not None and p not in self._results)
        budget = tuning_options.budget
        batch = list(wanted)[: budget.max_fevals - len(self._results)]
        if batch:
            self._idle_calls = 0
            self.outbox.put(batch)
            if not self.inbox.get():
                raise _Dropped
        else:
            self._idle_calls += 1
        spent = budget.max_fevals if self._idle_calls > MAX_IDLE_CALLS else len(self._results)
        budget.num_fevals = spent
        found: list[dict[str, Any] | None] = []
        for config, position in zip(configs, positions, strict=True):
            result = dict(zip(self._space.param_names, config, strict=True))
            if position is None:
                found.append({**result, "__error__": InvalidConfig()})
            elif position not in self._results:
                found.append(None)
            else:
                time = self._results[position]
                failed = {"__error__": RuntimeFailedConfig()}
                found.append({**result, **(failed if time is None else {"time": time})})
        return found


def _set_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


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
        self._pool, self._remaining = pool, RemainingConfigs(pool, seeds)
        self._rng = np.random.default_rng(seed)
        self._strategy, self._seed = strategy, seed
        self._budget = max(1, min(budget, len(pool)))
        self._values: list[list[float]] = []
        for values in (parameter.values for parameter in space.parameters):
            # Strategies measure distances between values: text and switches become positions.
            named = any(isinstance(value, bool | str) for value in values)
            numbers = [value for value in values if not isinstance(value, str)]
            self._values.append(list(range(len(values))) if named else list(numbers))
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
        while len(indices) < min(count, len(indices) + len(self._remaining)):
            index = self._remaining.take_seed()
            if index is None:
                index = self._take_next()
            if index is None and indices and self._run is not None:
                break
            if index is None:
                index = self._remaining.take_random(self._rng)
            indices.append(index)
        if not self._remaining:
            self._run = None
        return [self._pool[index] for index in indices]

    def tell(self, trial: Trial) -> None:
        index = self._pool.index(trial.config)
        self._results[index] = trial.time_us
        self._awaited.discard(index)

    def _take_next(self) -> int | None:
        """Take the next config that the strategy wants; None while it waits or once it is over."""
        while self._run is not None:
            while self._queue:
                index = self._queue.popleft()
                if index in self._remaining:
                    return self._remaining.take(index)
            if self._awaited:
                return None
            try:
                batch = self._run.next_batch()
            except Exception as error:  # noqa: BLE001  # a strategy may raise anything
                said = "kernel_tuner:%s stopped: %s; going on at random"
                _log.warning(said, self._strategy, error)
                batch, self._found_new = None, False
            if batch is not None:
                self._found_new = True
                self._queue.extend(batch)
                self._awaited.update(batch)
            else:
                again = self._found_new and len(self._results) < self._budget
                self._seed += again
                self._run = self._start() if again else None
        return None

    def _start(self) -> StrategyRun:
        self._found_new = False
        return StrategyRun(
            *(self._strategy, self._values, self._rows, self._results),
            seed=self._seed,
            budget=self._budget,
        )


class KernelTunerStrategies:
    """Kernel Tuner's strategies as a family of searchers; implements `Strategies`."""

    make = KernelTunerSearcher

    def require(self, strategy: str) -> None:
        find_strategy(strategy)


STRATEGIES = KernelTunerStrategies()
