"""Kernel Tuner's strategies run behind ask and tell without touching the rest of the program."""

from __future__ import annotations

import gc
import random
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernel_tuner.interface import strategy_map

from tuner.extensions.study import kernel_tuner_searcher
from tuner.extensions.study.kernel_tuner_searcher import KernelTunerSearcher
from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.search.pool import valid_configs
from tuner.testing import searchers
from tuner.testing.searchers import make_space, make_trial

SPACE = make_space(
    {
        "time": (1, 2, 4, 8, 16),
        "block_size_x": (128, 256, 2048),
        "layout": ("row", "column"),
        "ratio": (0.5, 1.0),
    }
)
POOL = valid_configs(SPACE, {})
STRATEGIES = (
    "adaptive_tabu_greywolf basinhopping bayes_opt diff_evo dual_annealing "
    "firefly_algorithm greedy_ils greedy_mls hybrid_vndx minimize mls nsga2 "
    "ordered_greedy_mls pso random_sample"
)


def make(
    strategy: str = "genetic_algorithm", budget: int = 40, seed: int = 0
) -> KernelTunerSearcher:
    return KernelTunerSearcher(POOL, SPACE, strategy, seed, budget)


def time_of(config: Config) -> float | None:
    if config["layout"] == "row" and config["time"] == 16:
        return None
    return 5 + abs(float(config["time"]) - 4) + float(config["block_size_x"]) / 256


def drive(searcher: KernelTunerSearcher, batch: int = 4, limit: int = 40) -> list[Config]:
    return searchers.drive(searcher, time_of, limit, batch=batch)


def strategy_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("kernel_tuner:")]


@pytest.mark.parametrize("strategy", STRATEGIES.split())
def test_every_strategy_runs_is_repeatable_and_prints_nothing(
    strategy: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = drive(make(strategy))
    assert len(set(first)) == len(first) == 40
    assert drive(make(strategy)) == first
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == [], "a strategy that broke was replaced by random configs"


def test_a_population_arrives_as_one_batch() -> None:
    assert len(make().ask(15)) == 15


def test_a_strategy_that_goes_step_by_step_gets_one_config_at_a_time() -> None:
    searcher = make("simulated_annealing")
    configs = searcher.ask(8)
    assert len(configs) == 1
    assert len(searcher.ask(8)) == 1, "asked again before the result: a random config"


def test_the_programs_random_numbers_are_left_alone() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()  # noqa: S311
    random.seed(5)
    np.random.seed(5)
    drive(make())
    assert (random.random(), np.random.rand()) == expected  # noqa: S311


def test_foreign_random_draws_do_not_change_the_search() -> None:
    expected = drive(make())
    searcher = make()
    random.seed(1)
    asked = list(searcher.ask(4))
    random.seed(2)
    np.random.seed(2)
    for config in asked:
        searcher.tell(make_trial(config, time_of(config)))
    assert asked + drive(searcher, limit=36) == expected


def test_a_dropped_search_ends_its_thread() -> None:
    gc.collect()
    before = set(strategy_threads())
    searcher = make()
    searcher.ask(2)
    (started,) = set(strategy_threads()) - before
    del searcher
    gc.collect()
    started.join(timeout=10)
    assert not started.is_alive()


def test_a_finished_search_leaves_no_thread() -> None:
    before = set(strategy_threads())
    searcher = make(budget=60)
    searcher.ask(1)
    started = set(strategy_threads()) - before
    drive(searcher, batch=8, limit=1000)
    for thread in started:
        thread.join(timeout=10)
    assert len(started) == 1
    assert set(strategy_threads()) <= before


def test_a_strategy_that_breaks_is_reported_and_the_search_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(space: Any, runner: Any, options: Any) -> None:
        runner.run(space.list[:3], options)
        raise ZeroDivisionError("no progress")

    monkeypatch.setitem(strategy_map, "pso", SimpleNamespace(tune=tune))
    asked = drive(make("pso"), batch=2, limit=1000)
    assert asked[:3] == [POOL[0], POOL[1], POOL[2]]
    assert len(set(asked)) == len(asked) == len(POOL)
    assert caplog.messages == ["kernel_tuner:pso stopped: no progress; going on at random"]


def test_a_strategy_that_goes_in_circles_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(space: Any, runner: Any, options: Any) -> None:
        while not options.budget.is_done():
            runner.run(space.list[:3], options)

    monkeypatch.setitem(strategy_map, "pso", SimpleNamespace(tune=tune))
    assert len(drive(make("pso"), batch=2, limit=1000)) == len(POOL)


def test_a_strategy_that_draws_without_an_end_is_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def tune(space: Any, runner: Any, options: Any) -> None:
        runner.run(space.list[:3], options)
        while True:
            random.random()  # noqa: S311

    monkeypatch.setattr(kernel_tuner_searcher, "MAX_IDLE_STEPS", 100_000)
    monkeypatch.setitem(strategy_map, "pso", SimpleNamespace(tune=tune))
    assert len(drive(make("pso"), batch=2, limit=1000)) == len(POOL)
    assert "asks for no config" in caplog.text


def test_a_genetic_algorithm_whose_last_generation_has_one_member_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_tuner_searcher, "MAX_IDLE_STEPS", 100_000)
    space = make_space({"time": (1, 2, 3, 4, 5), "block_size_x": (32, 64, 96, 128, 160)})
    searcher = KernelTunerSearcher(valid_configs(space, {}), space, "genetic_algorithm", 0, 20)
    assert len(searchers.drive(searcher, lambda config: float(config["time"]), 25, batch=4)) == 25


def test_an_unknown_strategy_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="genetic_algorithm") as caught:
        make("genetic")
    assert "'genetic'" in caught.value.message


@pytest.mark.parametrize(
    ("strategy", "package"), [("skopt", "skopt"), ("pyatf_strategies", "pyatf")]
)
def test_a_strategy_without_its_package_says_which(strategy: str, package: str) -> None:
    with pytest.raises(InputError, match=f"needs the package {package}"):
        make(strategy)
