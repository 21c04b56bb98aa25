"""Every searcher keeps the contract of the seam."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

import pytest

from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.search import pool as pool_module
from tuner.search.auto.searcher import AutoSearcher
from tuner.search.base import Searcher
from tuner.search.factory import (
    RandomSearcher,
    default_budget,
    make_searcher,
    resolve,
)
from tuner.search.optuna import OptunaSearcher
from tuner.search.pool import valid_configs
from tuner.testing.searchers import (
    POOL,
    SPACE,
    SearcherContract,
    SearcherMaker,
    drive,
    make_space,
    smooth,
)

# a population at a time, one config at a time, everything at once
ALL_SEARCHERS = [
    "exhaustive",
    "random",
    "optuna",
    "kernel_tuner:genetic_algorithm",
    "kernel_tuner:simulated_annealing",
    "kernel_tuner:brute_force",
]


class TestConformance(SearcherContract):
    @pytest.fixture(params=ALL_SEARCHERS)
    def make(self, request: pytest.FixtureRequest) -> SearcherMaker:
        return partial(make_searcher, request.param)


@pytest.mark.parametrize("name", ["random", "optuna", "kernel_tuner:genetic_algorithm"])
def test_another_seed_gives_other_asks(name: str) -> None:
    searchers = [make_searcher(name, POOL, SPACE, seed=seed, budget=len(POOL)) for seed in (1, 2)]
    assert drive(searchers[0], smooth) != drive(searchers[1], smooth)


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
    ],
)
def test_names_make_their_searcher(name: str, size: int, kind: type) -> None:
    assert type(named(name, size)) is kind


@pytest.mark.parametrize("name", ["optunna", "kernel_tuner", "Random", ""])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(InputError) as caught:
        named(name, 3)
    assert f"{name!r} is no searcher" in str(caught.value)
    assert "exhaustive, random, optuna, kernel_tuner" in str(caught.value)


def test_the_default_budget_is_all_or_a_hundred() -> None:
    cases = [("exhaustive", 5000), ("auto", 63), ("auto", 5000), ("optuna", 60)]
    assert [default_budget(name, size) for name, size in cases] == [5000, 63, 100, 60]


def test_auto_tries_all_of_few_configs_if_it_may() -> None:
    cases = [(60, None), (60, 60), (60, 40), (5000, 9000)]
    names = [resolve("auto", size, trials) for size, trials in cases]
    assert names == ["exhaustive", "exhaustive", "auto", "auto"]
    assert resolve("random", 60) == "random"


LOADED = """
import sys, tuner.search.pool
from tuner.search.factory import preload
for asked in [(), ("random", 5000, 40), ("auto", 60, None), ("auto", 60, 40)]:
    if asked:
        preload(*asked)
    heavy = "optuna", "kernel_tuner", "scipy", "sklearn", "pandas"
    print(*[name for name in heavy if name in sys.modules])
"""


def test_heavy_packages_are_imported_ahead_of_the_searches_that_use_them_alone() -> None:
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "", "", "optuna scipy"]
