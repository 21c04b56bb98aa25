"""How long to measure: pure arithmetic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.device.timing import (
    FASTEST_BYTES_US,
    FASTEST_US,
    FINALS,
    LONG_CALL_US,
    MAX_CALLS,
    SEARCH,
    WALL_ALLOWANCE_S,
    Rotation,
    TimingPolicy,
    between_neighbours,
    calls_per_replay,
    chain_rotation,
    clocks_fell,
    hopeless,
    rotation,
    should_stop,
    steady,
    suspicious,
    take_samples,
    wall_ratio,
)

MIB = 1 << 20
L2 = 60 * MIB
FREE = 100 << 30
CHAIN = between_neighbours(SEARCH)


@pytest.mark.parametrize(
    ("policy", "footprint", "free", "chosen"),
    [
        pytest.param(SEARCH, 10 * MIB, FREE, Rotation(229, 24), id="a set for each call"),
        pytest.param(FINALS, 10 * MIB, FREE, Rotation(229, 24), id="which searches share"),
        pytest.param(SEARCH, 7 * MIB, FREE, Rotation(300, 35), id="none ends sooner than in 1 us"),
        pytest.param(SEARCH, 90 * MIB, FREE, Rotation(26, 3), id="more than 20"),
        pytest.param(SEARCH, 1000 * MIB, FREE, Rotation(3, 2), id="long in a few calls"),
        pytest.param(FINALS, 256, FREE, Rotation(MAX_CALLS, MAX_CALLS), id="too small"),
        pytest.param(SEARCH, MIB // 4, FREE, Rotation(384, 384), id="a search captures few"),
        pytest.param(FINALS, MIB // 4, FREE, Rotation(960, 960), id="finals capture more"),
        pytest.param(SEARCH, 10 * MIB, 100 * MIB, Rotation(5, 5), id="scarce memory"),
        pytest.param(SEARCH, 10 * MIB, 5 * MIB, Rotation(1, 1), id="no memory"),
    ],
)
def test_there_is_a_set_for_each_call_of_a_replay_and_a_replay_covers_the_l2(
    policy: TimingPolicy, footprint: int, free: int, chosen: Rotation
) -> None:
    assert rotation(policy, footprint, footprint, L2, free) == chosen


@pytest.mark.parametrize(
    ("batches", "seconds", "done"),
    [
        ([], 0.0, False),
        ([10.0, 10.0], 0.5e-3, False),  # too early
        ([10.0], 2e-3, False),
        ([10.0, 9.0], 2e-3, False),
        ([10.0, 9.0, 9.02], 2e-3, True),
        ([10.0, 9.0], 20e-3, True),  # out of time
    ],
)
def test_the_warm_up_ends_when_the_clocks_are_steady(
    batches: list[float], seconds: float, done: bool
) -> None:
    assert steady(SEARCH, batches, seconds) is done


@given(
    policy=st.sampled_from([SEARCH, FINALS]),
    footprint=st.integers(1, 1 << 36),
    l2=st.integers(1, 1 << 28),
    free=st.integers(0, 1 << 38),
    expected_us=st.floats(1e-3, 1e7),
)
def test_a_replay_uses_each_set_once_and_is_cold_and_long_where_memory_allows(
    policy: TimingPolicy, footprint: int, l2: int, free: int, expected_us: float
) -> None:
    chosen = rotation(policy, footprint, footprint, l2, free)
    assert chosen.sets == 1 or chosen.sets * footprint <= free // 2
    calls = calls_per_replay(policy, chosen, expected_us)
    if expected_us >= LONG_CALL_US:
        assert calls == 1
        return
    assert 1 <= chosen.fewest <= calls <= chosen.sets <= policy.max_sets
    scarce = (chosen.sets + 1) * footprint > free // 2 or chosen.sets == policy.max_sets
    assert scarce or calls * footprint >= policy.l2_multiple * l2
    possible = expected_us >= max(FASTEST_US, footprint / FASTEST_BYTES_US)
    assert scarce or not possible or calls * expected_us >= policy.min_replay_us * (1 - 1e-9)
    few = calls == chosen.fewest or calls < policy.min_calls
    longest_us = max(policy.long_replay_us, policy.min_replay_us + expected_us)
    assert few or calls * expected_us <= longest_us * (1 + 1e-9)


@pytest.mark.parametrize(
    ("fewest", "expected_us", "calls"),
    [
        *((4, 400.0, 20), (4, 1.0, 150), (1, 0.01, 300), (2, 1000.0, 8), (2, 1300.0, 6)),
        *((1, 9000.0, 1), (24, 1000.0, 24), (24, 9999.0, 24)),
    ],
)
def test_calls_per_replay(fewest: int, expected_us: float, calls: int) -> None:
    assert calls_per_replay(SEARCH, Rotation(300, fewest), expected_us) == calls
    assert calls_per_replay(SEARCH, Rotation(fewest, fewest), expected_us) == fewest


@pytest.mark.parametrize("policy", [SEARCH, FINALS])
def test_a_call_that_takes_long_is_timed_alone(policy: TimingPolicy) -> None:
    assert calls_per_replay(policy, Rotation(29, 29), 450e3) == 1
    assert calls_per_replay(policy, Rotation(8, 8, chain=True), 450e3) == 8


POLICY = TimingPolicy(min_samples=5, max_samples=20, target_error=0.01)


@pytest.mark.parametrize(
    ("footprint", "free", "sets"),
    [(MIB, FREE, 32), (1 << 30, 10 << 30, 5), (1 << 30, 1 << 30, 1)],
    ids=["as many as asked", "half of the memory", "one at least"],
)
def test_every_call_of_a_chain_has_a_place_of_its_own(footprint: int, free: int, sets: int) -> None:
    chosen = chain_rotation(FINALS, footprint, footprint, free)
    assert chosen == Rotation(sets, sets, chain=True)
    assert calls_per_replay(FINALS, chosen, expected_us=1.0) == sets


def test_between_neighbours_few_samples_are_asked_for() -> None:
    search = between_neighbours(SEARCH)
    assert (search.min_samples, search.max_samples, search.target_error) == (4, 16, 0.01)
    assert search.slower_margin < SEARCH.slower_margin


STEADY = [10.0] * 5
UNSTEADY = [10.0, 14.0, 8.0, 12.0, 9.0]


@pytest.mark.parametrize(
    ("times", "seconds", "incumbent", "done"),
    [
        ([], 0.0, None, False),
        (STEADY[:4], 0.0, None, False),
        (STEADY, 0.0, None, True),
        (UNSTEADY, 0.0, None, False),
        (UNSTEADY * 3, 0.0, None, False),
        (UNSTEADY * 4, 0.0, None, True),  # as many samples as there may be
        (UNSTEADY, 0.2, None, True),  # out of time
        ([], 0.2, None, True),
        (UNSTEADY[:3], 0.0, 6.0, True),  # hopeless
        (UNSTEADY[:3], 0.0, 6.2, False),
        (UNSTEADY[:2], 0.0, 1.0, False),
    ],
)
def test_sampling_ends(
    times: list[float], seconds: float, incumbent: float | None, done: bool
) -> None:
    assert should_stop(POLICY, times, seconds, incumbent) is done


@pytest.mark.parametrize(
    ("times", "incumbent", "slow"),
    [
        ([11.1, 14.0, 15.0], 10.0, True),
        ([10.9, 14.0, 15.0], 10.0, False),  # its fastest sample is close
        ([20.0, 20.0], 10.0, False),
        ([20.0, 20.0, 20.0], None, False),
    ],
)
def test_a_config_is_hopeless_when_even_its_fastest_sample_is_slow(
    times: list[float], incumbent: float | None, slow: bool
) -> None:
    assert hopeless(SEARCH, times, incumbent) is slow


@pytest.mark.parametrize(
    ("ratios", "suspected"),
    [([], False), ([1.0], False), ([1.6], True), ([1.6, 9.0], True), ([9.0, 1.2, 9.0], False)],
)
def test_work_elsewhere_shows_in_every_batch(ratios: list[float], suspected: bool) -> None:
    assert suspicious(ratios) is suspected


def test_the_wall_ratio_leaves_out_what_events_leave_out() -> None:
    assert wall_ratio(1e-3, 1e-3 + WALL_ALLOWANCE_S) == pytest.approx(1.0)
    assert wall_ratio(1e-3, 2e-3 + WALL_ALLOWANCE_S) == pytest.approx(2.0)
    assert wall_ratio(1e-3, WALL_ALLOWANCE_S / 2) == 0.0


class Load:
    """A GPU whose calls take longer and longer for its first milliseconds, and then the same."""

    def __init__(self, replay_s: float, slower_from_s: float, *us: float) -> None:
        self.replay_s, self.slower_from_s, self.us = replay_s, slower_from_s, us
        self.now_s, self.taken = 0.0, 0

    def clock(self) -> float:
        return self.now_s

    def take(self, count: int) -> tuple[list[float], float]:
        sample = []
        for _ in range(count):
            late = self.now_s >= self.slower_from_s - 1e-9
            sample.append(self.us[late])
            self.now_s += self.replay_s
        self.taken += count
        return sample, count * self.replay_s


@pytest.mark.parametrize(
    ("load", "policy", "incumbent", "expected"),
    [
        pytest.param(Load(6e-3, 24e-3, 711.0, 788.0), SEARCH, None, [788.0] * 5, id="slower"),
        pytest.param(Load(6e-3, 1.0, 711.0, 788.0), SEARCH, None, [711.0] * 5, id="steady"),
        pytest.param(Load(6e-3, 24e-3, 711.0, 717.0), SEARCH, None, [711.0] * 4, id="by little"),
        pytest.param(Load(6e-3, 0.0, 711.0, 700.0), SEARCH, None, [700.0] * 5, id="from the start"),
        # As slow as that at clocks that it does not keep: there is no need to know better.
        pytest.param(Load(6e-3, 12e-3, 711.0, 788.0), SEARCH, 600.0, [711.0] * 2, id="hopeless"),
        pytest.param(Load(6e-3, 18e-3, 711.0, 788.0), CHAIN, None, [711.0] * 3, id="chain"),
        pytest.param(Load(60e-3, 120e-3, 7e3, 8e3), SEARCH, None, [7e3, 7e3, 8e3], id="too late"),
    ],
)
def test_what_is_timed_before_the_clocks_have_gone_down_does_not_count(
    load: Load, policy: TimingPolicy, incumbent: float | None, expected: list[float]
) -> None:
    times_us, ratio = take_samples(policy, load.take, incumbent, load.clock)
    assert times_us[: len(expected)] == expected
    assert len(times_us) <= load.taken
    assert ratio <= 1.0


def test_a_process_that_is_held_up_after_what_does_not_count_has_samples_all_the_same() -> None:
    load, looked = Load(6e-3, 12e-3, 711.0, 788.0), 0

    def clock() -> float:
        nonlocal looked
        looked += load.taken == 3
        if looked == 3:  # the first samples, which end slower, have just been left out
            looked += 1
            load.now_s += SEARCH.budget_s
        return load.clock()

    times_us, _ = take_samples(SEARCH, load.take, None, clock)
    assert times_us == [788.0] * 3


def test_samples_are_taken_again_while_work_seems_to_run_elsewhere() -> None:
    load = Load(6e-3, 1.0, 711.0, 788.0)

    def take(count: int) -> tuple[list[float], float]:
        sample, event_s = load.take(count)
        return sample, event_s / 3.0

    times_us, ratio = take_samples(SEARCH, take, None, load.clock)
    assert ratio > 1.5
    assert len(times_us) > SEARCH.max_samples


@pytest.mark.parametrize(
    ("replay_us", "falls_after_us", "fell"),
    [
        (16e3, 50e3, True),  # some of the first pass
        (500.0, 50e3, True),
        (60e3, 50e3, True),  # the first replay alone
        (16e3, math.inf, False),
        (500.0, math.inf, False),
        (16e3, 0.0, False),  # they were down before
    ],
)
def test_clocks_that_a_gpu_does_not_keep_are_seen_in_what_ran_first(
    replay_us: float, falls_after_us: float, fell: bool
) -> None:
    began_us, times_us = 0.0, list[float]()
    while len(times_us) < 14 or began_us < FINALS.settle_s * 1e6:
        slower = 1.04 if began_us >= falls_after_us else 1.0
        times_us.append(replay_us * (1.0 + 0.1 * (len(times_us) % 7)) * slower)
        began_us += times_us[-1]
    assert clocks_fell(FINALS, times_us, 7) is fell
    rising = [3.0 * us for us in times_us[:7]]
    assert not clocks_fell(FINALS, [*rising, *times_us[7:14]], 7)
