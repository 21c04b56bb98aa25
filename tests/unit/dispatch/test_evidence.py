"""What a comparison proves, by which of its rounds, and who is not to be trusted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dispatch_sample import ONE, A, B, comparison, trial

from tuner.dispatch.evidence import (
    compare_with_baseline,
    evidence,
    find_wrong_variants,
    over_winner,
    split,
    winner_of,
)
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.statistics import paired_interval
from tuner.model.trial import Comparison, Status, Variant


def test_a_later_comparison_counts():
    found = evidence((comparison(ONE, {A: 5.0}), comparison(ONE, {A: 8.0})), frozenset(), 0)
    assert found[ONE][0].time_us == pytest.approx(8.0, rel=0.02)


def test_other_bits_in_the_finals_serve_nowhere_where_bits_are_kept():
    searched, decided = (
        replace(trial(ONE, one, None), status=Status.OTHER_BITS, stage=stage)
        for one, stage in ((A, "search"), (B, "finals"))
    )
    assert find_wrong_variants((searched, decided), ()) == {B}


@pytest.mark.parametrize("status", [Status.LAUNCH, Status.TIMEOUT])
def test_what_ends_in_an_error_on_a_shape_that_it_would_serve_is_distrusted(status):
    """A search may try what fails on another shape: of that its constraints speak."""
    searched, decided = (
        replace(trial(ONE, one, None), status=status, stage=stage)
        for one, stage in ((A, "search"), (B, "finals"))
    )
    assert find_wrong_variants((searched, decided), ()) == {B}


def test_the_interval_is_that_of_the_sessions_result():
    compared = comparison(ONE, {A: 5.0, B: 5.1})
    (one, _) = evidence((compared,), find_wrong_variants((), ()), 7)[ONE]
    rounds = compared.rounds[10:]
    speedup, bounds = paired_interval([r[0] for r in rounds], [r[1] for r in rounds], 7)
    assert (one.speedup, one.interval) == (speedup, bounds)


def test_a_difference_below_the_clocks_noise_is_none() -> None:
    rounds = tuple((8.0 + step % 3 / 10, 5.0) for step in range(40))
    said = Comparison(Workload.of({"T": 1}), (Variant("initial", Config({})),), rounds)
    assert compare_with_baseline(said, 1, 0).interval[0] > 1.5
    low, high = compare_with_baseline(replace(said, noise_us=4.0), 1, 0).interval
    assert low == 1.0 < high


def test_the_first_rounds_choose_and_the_others_report() -> None:
    said = comparison(ONE, {A: 5.0, B: 4.0})
    choosing, reporting = split(said)
    assert (len(choosing), len(reporting)) == (10, 30)
    assert winner_of(said) == B


def test_rounds_that_report_change_no_order_and_tell_who_is_ahead_in_them() -> None:
    said = comparison(ONE, {A: 5.0, B: 5.1})
    late = tuple((row[0], row[1], 0.9 * row[2]) for row in said.rounds[10:])
    said = replace(said, rounds=(*said.rounds[:10], *late))
    first, second = evidence((said,), frozenset(), 0)[ONE]
    assert (first.variant, second.variant) == (winner_of(said), B) == (A, B)
    assert second.time_us < first.time_us
    over = over_winner(said, B, 0)
    assert over.speedup == pytest.approx(first.time_us / second.time_us)
    assert over.different
    assert not over_winner(said, A, 0).different


def test_after_a_race_all_rounds_report_and_it_says_who_wins_and_by_how_much() -> None:
    said = replace(comparison(ONE, {A: 5.0, B: 4.99}), raced_us=(5.0, 5.5))
    assert split(said)[1] == said.rounds
    assert winner_of(said) == A
    won, second = (compare_with_baseline(said, column, 0) for column in (1, 2))
    assert second.ratio == pytest.approx(1.1 * won.ratio)
    assert second.time_us < won.time_us, "what the rounds report is told as it is"
