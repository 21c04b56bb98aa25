"""Among configs that are as fast as each other every tuning makes the same choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from callable_project import callable_project, read_project
from dispatch_sample import ONE, comparison

from tuner.extensions.engines.configs.alike import Fastest, canonical, fastest_of, sure_of
from tuner.model.config import Config
from tuner.model.statistics import SURE
from tuner.model.trial import INITIAL, Comparison, Variant


def variant(pieces: int, *, shift: bool = True) -> Variant:
    return Variant(INITIAL, Config.of({"pieces": pieces, "shift": shift, "method": "exp"}))


NEAR, FASTEST, SLOWER = variant(1), variant(2), variant(4)
FOUND = comparison(ONE, {FASTEST: 5.0, NEAR: 5.001, SLOWER: 5.2})


def of_rows(*rows: tuple[float, float, float]) -> Comparison:
    """Compare the baseline, the fastest and the one near it."""
    return replace(FOUND, finalists=(FASTEST, NEAR), rounds=rows)


def chosen(found: Comparison) -> Fastest:
    fastest = fastest_of(found, ())
    assert fastest is not None
    return fastest


def test_the_fastest_is_so_by_the_final_rounds_whoever_won_the_race() -> None:
    raced = replace(FOUND, raced_us=(5.2, 5.1, 5.0))
    assert chosen(raced).variants == (FASTEST, NEAR)


def test_all_kinds_of_rounds_count_but_not_those_in_which_the_gpu_was_held_up() -> None:
    # On three of eight inputs the second one takes 4 % longer, on the others 1 % less.
    rows = [(10.0, 5.0, 5.2 if row % 8 < 3 else 4.95) for row in range(48)]
    rows[0], rows[1] = (10.0, 50.0, 5.2), (10.0, 60.0, 5.2)
    assert chosen(of_rows(*rows)).variants == (FASTEST,), "by the median it would be the other"


@pytest.mark.parametrize(("share", "found"), [(0.0009, (FASTEST, NEAR)), (0.0011, (FASTEST,))])
def test_alike_is_who_is_as_near_as_a_kernel_to_itself(
    share: float, found: tuple[Variant, ...]
) -> None:
    rows = [(10.0, 5.0, 5.0 + 5.0 * share)] * 40
    assert chosen(of_rows(*rows)).variants == found


def test_what_is_proved_faster_is_so_by_more_than_a_kernel_than_itself() -> None:
    noise = [0.002 * (-1) ** row for row in range(40)]
    for share, proved in ((0.003, True), (0.001, False)):
        gain = chosen(of_rows(*((10.0, 10.0 * (1.0 - share + n), 11.0) for n in noise))).gain
        assert gain.gain == pytest.approx(share, abs=1e-4)
        assert gain.speedup == pytest.approx(1.0 + share, abs=1e-4)
        assert (gain.proved, gain.slower) == (proved, False)
    assert chosen(of_rows(*[(10.0, 10.1, 11.0)] * 40)).gain.slower
    assert not chosen(of_rows((10.0, 9.0, 11.0))).gain.proved, "a single round proves nothing"


def test_the_best_of_many_that_gain_nothing_is_seldom_proved() -> None:
    # As an MoE layer of 2,048 tokens scatters.
    drawn = np.random.default_rng(0).lognormal(sigma=0.045, size=(400, 48, 7))
    six = tuple(variant(pieces, shift=shift) for pieces in (1, 2, 4) for shift in (True, False))
    proved = sum(
        chosen(replace(FOUND, finalists=six, rounds=tuple(map(tuple, rounds)))).gain.proved
        for rounds in drawn.tolist()
    )
    assert proved / len(drawn) < 0.03
    assert sure_of(1) == pytest.approx(SURE)
    assert sure_of(6) == pytest.approx(2.67, abs=0.01)


def test_what_is_not_proved_faster_than_the_baseline_is_not_like_what_is() -> None:
    # By a hair slower than the fastest, and in as many rounds faster than the baseline as slower.
    ahead = [(10.0, 9.95, 9.755 if row % 2 else 10.155) for row in range(40)]
    assert chosen(of_rows(*ahead)).variants == (FASTEST,)
    level = [(10.0, 10.0, 9.904 if row % 2 else 10.1) for row in range(40)]
    assert chosen(of_rows(*level)).variants == (FASTEST, NEAR)


def test_what_failed_a_check_is_left_out() -> None:
    fastest = fastest_of(FOUND, {FASTEST})
    assert fastest is not None
    assert fastest.variants == (NEAR,)
    assert fastest_of(FOUND, {FASTEST, NEAR, SLOWER}) is None


def test_columns_that_were_not_paired_are_compared_so() -> None:
    # What both share does not cancel.
    rows = [(10.0 + row % 5, 9.9 + row % 5, 20.0) for row in range(40)]
    assert chosen(of_rows(*rows)).gain.proved
    assert not chosen(replace(of_rows(*rows), paired=False)).gain.proved


@pytest.mark.parametrize("times_us", [(5.0, 5.001), (5.001, 5.0)])
def test_the_choice_is_the_same_whoever_was_a_hair_ahead(
    tmp_path: Path, times_us: tuple[float, float]
) -> None:
    space = read_project(callable_project(tmp_path)).space
    found = chosen(of_rows(*[(10.0, *times_us)] * 40))
    assert canonical(found.variants, space) == NEAR
