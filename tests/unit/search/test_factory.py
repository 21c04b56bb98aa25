"""Searchers are made by the names that the command line takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tuner.model.config import Parameter, SearchSpace
from tuner.model.errors import InputError
from tuner.search.auto.portfolio import AutoSearcher
from tuner.search.factory import default_budget, make_searcher, resolve
from tuner.search.optuna import OptunaSearcher
from tuner.search.pool import valid_configs
from tuner.search.random import ExhaustiveSearcher, RandomSearcher


def make(name: str, size: int) -> object:
    space = SearchSpace((Parameter("a", tuple(range(size))),))
    return make_searcher(name, valid_configs(space, {}), space, seed=0, budget=size)


@pytest.mark.parametrize(
    ("name", "size", "kind"),
    [
        ("exhaustive", 3, ExhaustiveSearcher),
        ("random", 3, RandomSearcher),
        ("optuna", 3, OptunaSearcher),
        ("auto", 199, ExhaustiveSearcher),
        ("auto", 200, AutoSearcher),
        ("classifier", 3, AutoSearcher),
    ],
)
def test_names_make_their_searcher(name: str, size: int, kind: type) -> None:
    assert type(make(name, size)) is kind


@pytest.mark.parametrize("name", ["optunna", "kernel_tuner", "kernel_tuner:", "Random", ""])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(InputError) as caught:
        make(name, 3)
    assert caught.value.remedy is not None


def test_the_message_says_what_was_found_and_what_is_right() -> None:
    with pytest.raises(
        InputError, match=r"unknown searcher 'optunna'\n.*exhaustive, random, optuna, classifier"
    ):
        make("optunna", 3)


@pytest.mark.parametrize(
    ("name", "size", "budget"),
    [
        ("exhaustive", 5000, 5000),
        ("auto", 199, 199),
        ("auto", 5000, 100),
        ("random", 5000, 100),
        ("kernel_tuner:pso", 60, 60),
        ("optuna", 0, 0),
    ],
)
def test_the_default_budget_is_all_or_a_hundred(name: str, size: int, budget: int) -> None:
    assert default_budget(name, size) == budget


@pytest.mark.parametrize(
    ("name", "size", "trials", "searcher"),
    [
        ("auto", 150, None, "exhaustive"),
        ("auto", 150, 150, "exhaustive"),
        ("auto", 150, 40, "auto"),
        ("auto", 5000, 9000, "auto"),
        ("random", 5, 9, "random"),
    ],
)
def test_auto_tries_all_of_few_configs_if_it_may(
    name: str, size: int, trials: int | None, searcher: str
) -> None:
    assert resolve(name, size, trials) == searcher


def test_heavy_packages_are_only_imported_by_the_searchers_that_use_them() -> None:
    code = (
        "import sys, tuner.search.factory, tuner.search.pool;"
        "heavy = ('optuna', 'kernel_tuner', 'scipy', 'sklearn', 'pandas');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
