"""What every searcher does, for who writes one: derive from `SearcherContract` in a pytest module.

    class TestMine(SearcherContract):
        @pytest.fixture
        def make(self):            # of a `SearcherMaker`
            return lambda pool, space, *, seed, budget, seeds: Mine(pool, seed, seeds)

A searcher derives from `tuner.search.base.Searcher`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import pytest

from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.expressions import Expression, Value
from tuner.model.kernel import Workload
from tuner.model.trial import Measurement, Status, Trial
from tuner.search.base import Searcher
from tuner.search.pool import Pool, valid_configs

NO_WORKLOAD = Workload(())
Timing = Callable[[Config], float | None]


class SearcherMaker(Protocol):
    """Opens a searcher that may try `budget` configs, those of `seeds` first."""

    def __call__(
        self, pool: Pool, space: SearchSpace, *, seed: int, budget: int, seeds: Sequence[Config]
    ) -> Searcher: ...


def make_space(parameters: Mapping[str, Sequence[Value]], *constraints: str) -> SearchSpace:
    """Make a space of parameters by name, and of constraints as a file has them."""
    return SearchSpace(
        tuple(Parameter(name, tuple(values)) for name, values in parameters.items()),
        tuple(Expression.parse(text) for text in constraints),
    )


def make_trial(
    config: Config,
    time_us: float | None,
    workload: Workload = NO_WORKLOAD,
    *,
    early: bool = False,
    status: Status = Status.RESOURCE_LIMIT,
) -> Trial:
    """Make a trial of this time; where there is none, one that ended with `status`."""
    if time_us is None:
        return Trial("c", workload, config, status, "failed")
    measurement = Measurement((time_us,), 1, 1, stopped_early=early)
    return Trial("c", workload, config, Status.CORRECT, measurement=measurement)


def drive(
    searcher: Searcher, timing: Timing, count: int = 10**6, *, batch: int = 4, late: int = 0
) -> list[Config]:
    """Ask for up to `batch` configs at a time, with `late` others outstanding; return them all."""
    asked: list[Config] = []
    outstanding: deque[Config] = deque()
    while len(asked) < count and (configs := searcher.ask(min(batch, count - len(asked)))):
        asked += configs
        outstanding.extend(configs)
        while len(outstanding) > late:
            config = outstanding.popleft()
            searcher.tell(make_trial(config, timing(config)))
    return asked


SPACE = make_space(
    {
        "block": (32, 64, 128, 256),
        "vector": (1, 2, 4),
        "layout": ("row", "column"),
        "prefetch": (False, True),
        "scale": (0.5, 1.0),
        "fixed": (7,),
    },
    "block * vector <= 256 and (prefetch or vector > 1)",
)
POOL = valid_configs(SPACE, {})


def smooth(config: Config) -> float | None:
    """Return a time that falls evenly towards one config of `SPACE`."""
    block, vector = float(config["block"]), float(config["vector"])
    return 10 + abs(math.log2(block / 64)) + abs(vector - 2) + (0 if config["prefetch"] else 3)


def half_fail(config: Config) -> float | None:
    return None if config["layout"] == "row" else smooth(config)


def all_fail(config: Config) -> float | None:
    return None


class SearcherContract:
    """Subclasses give the fixture `make`."""

    def open(
        self, make: SearcherMaker, pool: Pool = POOL, seed: int = 0, seeds: Sequence[Config] = ()
    ) -> Searcher:
        return make(pool, SearchSpace(pool.parameters), seed=seed, budget=len(pool), seeds=seeds)

    @pytest.mark.parametrize("timing", [smooth, half_fail, all_fail])
    @pytest.mark.parametrize("batch", [1, 7])
    def test_proposes_every_valid_config_exactly_once(
        self, make: SearcherMaker, timing: Timing, batch: int
    ) -> None:
        searcher = self.open(make)
        asked = drive(searcher, timing, batch=batch)
        assert list(searcher.ask(3)) == []
        assert sorted(POOL.index(config) for config in asked) == list(range(len(POOL)))

    def test_seeds_come_first_and_only_once(self, make: SearcherMaker) -> None:
        invalid = Config.of({**POOL[0], "block": 256, "vector": 4})
        seeds = [POOL[5], invalid, POOL[3], POOL[5]]
        asked = drive(self.open(make, seeds=seeds), smooth)
        assert asked[:2] == [POOL[5], POOL[3]]
        assert len(set(asked)) == len(asked) == len(POOL)

    def test_the_same_seed_and_tells_give_the_same_asks(self, make: SearcherMaker) -> None:
        first, second = (drive(self.open(make, seed=3), half_fail) for _ in range(2))
        assert first == second

    def test_several_batches_may_be_outstanding(self, make: SearcherMaker) -> None:
        asked = drive(self.open(make), half_fail, batch=3, late=10)
        assert sorted(POOL.index(config) for config in asked) == list(range(len(POOL)))

    def test_a_pool_of_one_config_is_proposed(self, make: SearcherMaker) -> None:
        pool = Pool(POOL.parameters, POOL.encoded[:1])
        assert drive(self.open(make, pool), smooth) == [pool[0]]

    def test_an_empty_pool_proposes_nothing(self, make: SearcherMaker) -> None:
        pool = Pool(POOL.parameters, POOL.encoded[:0])
        assert list(self.open(make, pool).ask(4)) == []
