"""Importance finds the parameter that matters and is silent where it cannot tell."""

from __future__ import annotations

from itertools import product

import pytest

from tuner.model.config import Config
from tuner.model.trial import Trial
from tuner.search.importance import FEWEST_TRIALS, Importance, average, importance
from tuner.testing.searchers import make_trial


def trial(time_us: float, **values: int | bool) -> Trial:
    return make_trial(Config.of(values), time_us)


GRID = [
    trial(10 + abs(block - 3) + 0.01 * idle + 0.001 * index, block=block, idle=idle, fixed=4)
    for index, (block, idle) in enumerate(product(range(8), range(6)))
]


def test_the_parameter_that_decides_comes_first():
    found = importance(GRID)
    names = [name for name, _ in found.shares]
    assert names[0] == "block"
    assert names[-1] == "fixed"
    assert sum(share for _, share in found.shares) == pytest.approx(1.0)
    assert found.trials == len(GRID)


def test_false_and_zero_are_two_values():
    trials = [trial(1.0 + i % 2 + 0.01 * i, keep=bool(i % 2), n=i % 3) for i in range(30)]
    assert importance(trials).shares[0][0] == "keep"


@pytest.mark.parametrize(
    ("trials", "reason"),
    [
        ([], "0 correct trials; at least 20 are needed"),
        (GRID[: FEWEST_TRIALS - 1], "19 correct trials; at least 20 are needed"),
        ([trial(1.0 + i, block=1) for i in range(25)], "no parameter took two values"),
        ([trial(1.0, block=i) for i in range(25)], "every correct trial took the same time"),
    ],
)
def test_trials_that_tell_nothing_give_a_reason(trials, reason):
    found = importance(trials)
    assert (found.reason, found.shares) == (reason, ())


def test_trials_of_templates_with_other_parameters_are_left_out():
    others = [trial(1.0 + i, other=i) for i in range(5)]
    assert importance([*GRID, *others]) == importance(GRID)


def test_workloads_without_shares_do_not_weigh_in_the_average():
    known = Importance((("a", 0.75), ("b", 0.25)), 50)
    other = Importance((("b", 0.75), ("a", 0.25)), 50)
    unknown = Importance(reason="too few")
    assert average([known, unknown]) == (("a", 0.75), ("b", 0.25))
    assert dict(average([known, other])) == {"a": 0.5, "b": 0.5}
    assert average([unknown]) == ()
