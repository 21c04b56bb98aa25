"""A race among configs: who drops out, when it ends, and that it finds the best of them."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from tuner.tuning.finalists import APART, FIRST_ROUNDS, Raced, race, standing


class Track:
    """Runners that take `costs_us` and scatter by `noise_us`; a replay takes `replay_s`."""

    def __init__(self, *costs_us: float, noise_us: float = 0.0, replay_s: float = 0.0) -> None:
        self.costs_us, self.noise_us, self.replay_s = np.array(costs_us), noise_us, replay_s
        self.rng, self.now_s = np.random.default_rng(0), 0.0
        self.heats: list[tuple[list[int], int]] = []

    def measure(self, running, rounds):
        self.heats.append((list(running), rounds))
        self.now_s += self.replay_s * rounds * len(running)
        scatter = self.rng.standard_normal((rounds, len(running))) * self.noise_us
        return (self.costs_us[list(running)] + scatter).tolist()

    def race(self, **settings):
        return race(self.measure, len(self.costs_us), clock=lambda: self.now_s, **settings)

    def run(self, **settings):
        """Say what each of them takes."""
        return tuple(one.us for one in self.race(**settings))

    @property
    def rounds(self) -> int:
        return sum(rounds for _, rounds in self.heats)


def test_what_is_plain_at_once_takes_no_further_rounds():
    track = Track(3.0, 2.0, 5.0)
    assert track.run() == (3.0, 2.0, 5.0)
    assert track.heats == [([0, 1, 2], FIRST_ROUNDS)]


def test_who_is_proved_slower_drops_out_and_the_others_run_on():
    track = Track(2.0, 1.0, 1.02, noise_us=0.05)
    costs_us = track.run()
    assert min(costs_us) == costs_us[1]
    assert track.heats[0][0] == [0, 1, 2]
    assert [running for running, _ in track.heats[1:]] == [[1, 2]] * (len(track.heats) - 1)
    assert len(track.heats) > 1


def test_configs_of_the_same_cost_run_until_their_difference_is_known():
    track = Track(1.0, 1.0, noise_us=0.02)
    first, second = track.run()
    assert abs(first - second) < 2 * APART
    settled = track.rounds
    longer = Track(1.0, 1.0, noise_us=0.02)
    longer.run(seconds=1e9)
    assert longer.rounds == settled, "no more than that takes"


def test_time_ends_it():
    track = Track(1.0, 1.0, noise_us=0.5, replay_s=1e-3)
    track.run(seconds=0.3)
    first_s = 2e-3 * FIRST_ROUNDS
    assert first_s < track.now_s <= first_s + 0.45
    short = Track(1.0, 1.0, noise_us=0.5, replay_s=1.0)
    short.run(seconds=2.0)
    assert short.rounds == FIRST_ROUNDS


def test_one_that_went_wrong_has_no_time_and_stops_nobody():
    def measure(running, rounds):
        return [[None if one == 0 else 1.0 + one for one in running]] * rounds

    assert race(measure, 3) == (None, Raced(2.0, slower=False), Raced(3.0, slower=True))
    assert race(lambda running, rounds: [[None] * len(running)] * rounds, 2) == (None, None)


def test_it_says_who_was_proved_slower():
    track = Track(2.0, 1.0, 1.0, noise_us=0.02)
    assert [one.slower for one in track.race()] == [True, False, False]


def test_one_that_went_wrong_proves_nobody_slower():
    costs_us, rng = np.array([1.0, 1.01, 1.5]), np.random.default_rng(2)
    heats = []

    def measure(running, rounds):
        """The first one leads while the last one drops out, and goes wrong after that."""
        heats.append(running)
        rows = costs_us[running] + 0.02 * rng.standard_normal((rounds, len(running)))
        if len(heats) == 2:
            rows[:, running.index(0)] = np.nan
        return rows.tolist()

    first, *left = race(measure, 3)
    assert heats[:2] == [[0, 1, 2], [0, 1]]
    assert first is None
    assert [one.us for one in left] == pytest.approx([1.01, 1.5], rel=0.05)
    assert not any(one.slower for one in left)


def test_whoever_dropped_out_stays_behind_those_who_ran_on():
    for seed in range(20):
        track = Track(*np.linspace(1.0, 1.4, 12), noise_us=0.1, replay_s=1e-3)
        track.rng = np.random.default_rng(seed)
        costs_us, (last, _) = track.run(), track.heats[-1]
        out = [us for one, us in enumerate(costs_us) if one not in last]
        assert min(out, default=inf) >= min(costs_us[one] for one in last)


def test_it_chooses_better_than_the_same_rounds_for_all():
    raced, fixed = [], []
    for seed in range(40):
        track = Track(*(1.0 + 0.02 * k for k in range(10)), noise_us=0.1, replay_s=1e-3)
        track.rng = np.random.default_rng(seed)
        raced.append(int(np.argmin(track.run())))
        replays = sum(rounds * len(running) for running, rounds in track.heats)
        rows = np.array(track.measure(range(10), replays // 10))
        fixed.append(int(np.argmin(np.median(rows, axis=0))))
    assert np.mean(raced) < 0.7 * np.mean(fixed)


def test_the_error_is_that_of_the_difference():
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((4000, 1))
    rounds = 10.0 + shared + 0.1 * rng.standard_normal((4000, 2)) + [0.0, 0.05]
    found = standing(rounds)
    assert found.leader == 0
    assert found.behind_us == pytest.approx([0.0, 0.05], abs=0.01)
    # The sum of two of 0.1 over the root of the rounds; a trimmed mean has a little more.
    assert found.errors_us[1] == pytest.approx(0.1 * 2**0.5 / 4000**0.5, rel=0.15)


def test_a_slow_round_in_ten_moves_nothing():
    rounds = np.full((40, 2), [1.0, 1.01])
    rounds[::10, 0] = 50.0
    assert standing(rounds).behind_us == pytest.approx([0.0, 0.01])
