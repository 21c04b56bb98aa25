"""Scores: what random search expects is exact, and 0 and 1 are what they are said to be."""

from __future__ import annotations

from itertools import permutations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.search.compare.scores import Score, expected_random, half, mean_of, score_of

TIMES = st.lists(st.one_of(st.none(), st.integers(1, 9).map(float)), min_size=1, max_size=6).filter(
    any
)


@given(TIMES)
def test_random_search_is_averaged_over_all_orders(times: list[float | None]) -> None:
    worst = max(time for time in times if time is not None)
    known = [worst if time is None else time for time in times]
    orders = list(permutations(known))
    exact = [fmean(min(order[: k + 1]) for order in orders) for k in range(len(known))]
    assert expected_random(times, len(times)) == pytest.approx(exact)


@given(TIMES, st.integers(1, 20))
def test_after_all_configs_random_search_has_the_optimum(
    times: list[float | None], more: int
) -> None:
    curve = expected_random(times, len(times) + more)
    best = min(time for time in times if time is not None)
    assert curve[len(times) - 1 :] == pytest.approx([best] * (more + 1))
    assert (np.diff(curve) <= 1e-12).all()


def scored(*found: list[float]) -> Score:
    random_us = expected_random([10.0, 20.0, 40.0, None], 4)
    return score_of(np.array(found), random_us, 10.0, [1.0] * len(found))


def test_what_finds_the_optimum_at_once_scores_one() -> None:
    assert scored([10.0] * 4, [10.0] * 4) == Score(1.0, 1.0, 1.0, 1.0, 1.0)


def test_what_finds_as_random_expects_scores_zero() -> None:
    assert scored(expected_random([10.0, 20.0, 40.0, None], 4).tolist()).score == pytest.approx(0.0)


def test_shares_are_means_over_the_seeds() -> None:
    score = scored([40.0, 20.0, 20.0, 10.5], [40.0, 40.0, 20.0, 20.0])
    assert score.share_50 == pytest.approx((10 / 20 + 10 / 40) / 2)
    assert score.share_100 == pytest.approx((10 / 10.5 + 10 / 20) / 2)
    assert score.within_95 == 0.5


def test_equal_configs_leave_nothing_to_find() -> None:
    random_us = expected_random([7.0, 7.0, None], 3)
    assert score_of(np.full((2, 3), 7.0), random_us, 7.0, [1.0, 1.0]).score == 1.0


def test_seconds_are_the_median_and_spaces_count_alike() -> None:
    random_us = expected_random([1.0, 2.0], 1)
    score = score_of(np.array([[1.0]] * 3), random_us, 1.0, [5.0, 1.0, 2.0])
    assert score.seconds_per_run == 2.0
    assert mean_of([score, Score(0, 0, 0, 0, 0)]).share_100 == 0.5


@pytest.mark.parametrize(("trials", "at"), [(1, 1), (3, 1), (100, 50)])
def test_half_of_the_trials_is_at_least_one(trials: int, at: int) -> None:
    assert half(trials) == at
