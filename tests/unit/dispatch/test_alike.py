"""Among configs that are as fast as each other every tuning makes the same choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from callable_project import callable_project, read_project
from dispatch_sample import ONE, comparison

from tuner.dispatch.alike import alike, canonical
from tuner.model.config import Config
from tuner.model.trial import INITIAL, Variant


def variant(pieces: int, *, shift: bool = True) -> Variant:
    return Variant(INITIAL, Config.of({"pieces": pieces, "shift": shift, "method": "exp"}))


NEAR, FASTEST, SLOWER = variant(1), variant(2), variant(4)
FOUND = comparison(ONE, {FASTEST: 5.0, NEAR: 5.001, SLOWER: 5.2})


@pytest.mark.parametrize("raced", [FASTEST, NEAR, SLOWER])
def test_the_fastest_is_so_by_the_final_rounds_whoever_won_the_race(raced: Variant) -> None:
    assert alike(FOUND, raced, (), seed=0) == (FASTEST, NEAR)


def test_all_kinds_of_rounds_count_but_not_those_in_which_the_gpu_was_held_up() -> None:
    # On three of eight inputs the second one takes 4 % longer, on the others 1 % less.
    rows = [(10.0, 5.0, 5.2 if row % 8 < 3 else 4.95) for row in range(48)]
    rows[0], rows[1] = (10.0, 50.0, 5.2), (10.0, 60.0, 5.2)
    found = replace(FOUND, finalists=(FASTEST, NEAR), rounds=tuple(rows))
    assert alike(found, FASTEST, (), seed=0) == (FASTEST,), "by the median it would be the other"


@pytest.mark.parametrize(("share", "found"), [(0.0009, (FASTEST, NEAR)), (0.0011, (FASTEST,))])
def test_alike_is_who_is_as_near_as_a_kernel_to_itself(
    share: float, found: tuple[Variant, ...]
) -> None:
    apart = replace(FOUND, finalists=(FASTEST, NEAR), rounds=((10.0, 5.0, 5.0 + 5.0 * share),) * 40)
    assert alike(apart, FASTEST, (), seed=0) == found


def test_what_is_not_proved_faster_than_the_baseline_is_not_like_what_is() -> None:
    # In as many rounds faster than the baseline as slower, and so than the fastest.
    ahead = [(10.0, 9.95, 9.9 if row % 2 else 10.1) for row in range(40)]
    found = replace(FOUND, finalists=(FASTEST, NEAR), rounds=tuple(ahead))
    assert alike(found, FASTEST, (), seed=0) == (FASTEST,)
    level = tuple((10.0, 10.0, other) for _, _, other in ahead)
    assert {*alike(replace(found, rounds=level), FASTEST, (), seed=0)} == {FASTEST, NEAR}


def test_what_is_proved_slower_than_the_baseline_is_not_like_what_may_be_as_fast() -> None:
    # The fastest is as fast as the baseline within its noise, and the other in its noise as fast.
    rows = [(10.0, 9.96 + 0.4 * (-1) ** row, 10.1 + 0.001 * (-1) ** row) for row in range(40)]
    found = replace(FOUND, finalists=(FASTEST, NEAR), rounds=tuple(rows))
    assert alike(found, FASTEST, (), seed=0) == (FASTEST,)


def test_what_failed_a_check_is_left_out() -> None:
    assert alike(FOUND, FASTEST, {NEAR}, seed=0) == (FASTEST,)


def test_columns_that_were_not_paired_are_compared_so() -> None:
    assert SLOWER not in alike(replace(FOUND, paired=False), FASTEST, (), seed=0)


@pytest.mark.parametrize("fastest", [FASTEST, NEAR])
def test_the_choice_is_the_same_whoever_was_a_hair_ahead(tmp_path: Path, fastest: Variant) -> None:
    space = read_project(callable_project(tmp_path)).space
    assert canonical(alike(FOUND, fastest, (), seed=0), space) == NEAR
