"""Every searcher keeps the contract of the seam."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterable, Sequence

import pytest
from searches import Timing, drive, make_space

from tuner.model.config import Config, SearchSpace
from tuner.model.errors import InputError
from tuner.search import pool as pool_module
from tuner.search.auto import strategies
from tuner.search.auto.portfolio import AutoSearcher
from tuner.search.base import Searcher
from tuner.search.factory import (
    RandomSearcher,
    default_budget,
    make_searcher,
    preload,
    resolve,
)
from tuner.search.optuna import OptunaSearcher
from tuner.search.pool import Pool, valid_configs

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
# a population at a time, one config at a time, everything at once
ALL_SEARCHERS = [
    "exhaustive",
    "random",
    "optuna",
    "kernel_tuner:genetic_algorithm",
    "kernel_tuner:simulated_annealing",
    "kernel_tuner:brute_force",
]


def smooth(config: Config) -> float | None:
    block, vector = float(config["block"]), float(config["vector"])
    return 10 + abs(math.log2(block / 64)) + abs(vector - 2) + (0 if config["prefetch"] else 3)


def half_fail(config: Config) -> float | None:
    return None if config["layout"] == "row" else smooth(config)


def all_fail(config: Config) -> float | None:
    return None


def make(name: str, pool: Pool = POOL, *, seed: int = 0, seeds: Iterable[Config] = ()) -> Searcher:
    space = SearchSpace(pool.parameters)
    return make_searcher(name, pool, space, seed=seed, budget=len(pool), seeds=tuple(seeds))


@pytest.mark.parametrize("name", ALL_SEARCHERS)
class TestConformance:
    @pytest.mark.parametrize("timing", [smooth, half_fail, all_fail])
    @pytest.mark.parametrize("batch", [1, 7])
    def test_proposes_every_valid_config_exactly_once(
        self, name: str, timing: Timing, batch: int
    ) -> None:
        searcher = make(name)
        asked = drive(searcher, timing, batch=batch)
        assert list(searcher.ask(3)) == []
        assert sorted(POOL.index(config) for config in asked) == list(range(len(POOL)))

    def test_seeds_come_first_and_only_once(self, name: str) -> None:
        invalid = Config.of({**POOL[0], "block": 256, "vector": 4})
        seeds = [POOL[5], invalid, POOL[3], POOL[5]]
        asked = drive(make(name, seeds=seeds), smooth)
        assert asked[:2] == [POOL[5], POOL[3]]
        assert len(set(asked)) == len(asked) == len(POOL)

    def test_the_same_seed_and_tells_give_the_same_asks(self, name: str) -> None:
        assert drive(make(name, seed=3), half_fail) == drive(make(name, seed=3), half_fail)

    def test_several_batches_may_be_outstanding(self, name: str) -> None:
        asked = drive(make(name), half_fail, batch=3, late=10)
        assert sorted(POOL.index(config) for config in asked) == list(range(len(POOL)))

    def test_a_pool_of_one_config_is_proposed(self, name: str) -> None:
        pool = Pool(POOL.parameters, POOL.encoded[:1])
        assert drive(make(name, pool), smooth) == [pool[0]]

    def test_an_empty_pool_proposes_nothing(self, name: str) -> None:
        pool = Pool(POOL.parameters, POOL.encoded[:0])
        assert list(make(name, pool).ask(4)) == []


@pytest.mark.parametrize("name", ["random", "optuna", "kernel_tuner:genetic_algorithm"])
def test_another_seed_gives_other_asks(name: str) -> None:
    assert drive(make(name, seed=1), smooth) != drive(make(name, seed=2), smooth)


HUGE = make_space(
    {**{f"p{i}": (1, 2, 4, 8, 16, 32) for i in range(10)}, "layout": ("row", "column")},
    "p0 * p1 * p2 <= 512",
    "p3 <= p4 or layout == 'row'",
)


def product_time(config: Config) -> float | None:
    return 5 + abs(math.log2(math.prod(float(config[f"p{i}"]) for i in range(10))) - 20)


@pytest.mark.parametrize("name", ["random", "optuna", "kernel_tuner:genetic_algorithm"])
class TestSampledSpaces:
    def search(self, name: str, seeds: Sequence[Config] = (), count: int = 60) -> list[Config]:
        pool = valid_configs(HUGE, {})
        assert pool.estimated_size > 10**7
        searcher = make_searcher(name, pool, HUGE, seed=2, budget=count, seeds=seeds)
        return drive(searcher, product_time, count)

    def test_proposes_different_valid_configs(self, name: str) -> None:
        asked = self.search(name)
        assert len(set(asked)) == len(asked) == 60
        assert all(HUGE.violated(config, {}) is None for config in asked)

    def test_the_same_seed_and_tells_give_the_same_asks(self, name: str) -> None:
        assert self.search(name) == self.search(name)

    def test_seeds_outside_the_sample_come_first(self, name: str) -> None:
        outside = valid_configs(HUGE, {}, seed=9)[77]
        assert outside not in set(valid_configs(HUGE, {}))
        assert self.search(name, [outside], count=9)[0] == outside


def test_random_goes_on_after_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SAMPLE", 50)
    searcher = make_searcher("random", valid_configs(HUGE, {}), HUGE, seed=0, budget=99)
    asked = drive(searcher, product_time, 2000)
    assert len(set(asked)) == 2000


def named(name: str, size: int) -> Searcher:
    space = make_space({"a": range(size)})
    return make_searcher(name, valid_configs(space, {}), space, seed=0, budget=size)


@pytest.mark.parametrize(
    ("name", "size", "kind"),
    [
        ("exhaustive", 3, RandomSearcher),
        ("random", 3, RandomSearcher),
        ("optuna", 3, OptunaSearcher),
        ("auto", 63, RandomSearcher),
        ("auto", 64, AutoSearcher),
        ("classifier", 3, AutoSearcher),
    ],
)
def test_names_make_their_searcher(name: str, size: int, kind: type) -> None:
    assert type(named(name, size)) is kind


@pytest.mark.parametrize("name", ["optunna", "kernel_tuner", "Random", ""])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(InputError) as caught:
        named(name, 3)
    assert f"{name!r} is no searcher" in str(caught.value)
    assert "exhaustive, random, optuna, classifier" in str(caught.value)


def test_the_default_budget_is_all_or_a_hundred() -> None:
    cases = [("exhaustive", 5000), ("auto", 63), ("auto", 5000), ("optuna", 60)]
    assert [default_budget(name, size) for name, size in cases] == [5000, 63, 100, 60]


def test_auto_tries_all_of_few_configs_if_it_may() -> None:
    cases = [(60, None), (60, 60), (60, 40), (5000, 9000)]
    names = [resolve("auto", size, trials) for size, trials in cases]
    assert names == ["exhaustive", "exhaustive", "auto", "auto"]
    assert resolve("random", 60) == "random"


@pytest.mark.parametrize(
    ("name", "size", "trials", "loads"),
    [
        ("auto", 60, None, False),
        ("auto", 60, 40, True),
        ("auto", 64, None, True),
        ("classifier", 5, None, True),
        ("random", 5000, 40, False),
    ],
)
def test_the_forest_is_loaded_ahead_for_each_search_that_fits_one(
    monkeypatch: pytest.MonkeyPatch, name: str, size: int, trials: int | None, loads: bool
) -> None:
    loaded: list[None] = []
    monkeypatch.setattr(strategies, "preload_forest", lambda: loaded.append(None))
    preload(name, size, trials)
    assert bool(loaded) is loads


def test_heavy_packages_are_only_imported_by_the_searchers_that_use_them() -> None:
    code = (
        "import sys, tuner.search.factory, tuner.search.pool;"
        "heavy = ('optuna', 'kernel_tuner', 'scipy', 'sklearn', 'pandas');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
