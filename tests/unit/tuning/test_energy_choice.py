"""Which configs are measured: the fastest, then others unlike them, none that cannot win."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.config import Config
from tuner.model.energy import Account, Consumption
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, EnergyWindow, Measurement, Status, Trial, Variant
from tuner.tuning.energy import MOST_CONFIGS, POWER_MARGIN, can_win, next_config, unlike

WORKLOAD = Workload.of({"N": 1000})
IDLE_W = 100.0


def trial(time_us: float, **config) -> Trial:
    measurement = Measurement((time_us,) * 3, 20, 4)
    return Trial(INITIAL, WORKLOAD, Config.of(config), Status.CORRECT, measurement=measurement)


def measured(one: Trial, power_w: float = 500.0) -> Consumption:
    window = EnergyWindow(power_w * 5.0, 5.0, one.time_us)
    return Consumption(one.variant, (window,), (IDLE_W,))


def account(*programs: Consumption) -> Account:
    return Account(WORKLOAD, (IDLE_W,), None, programs)


def choose(timed, known=(), objective="energy"):
    return next_config(timed, account(*map(measured, known)), objective)


def test_the_fastest_is_measured_first_whatever_it_takes():
    timed = [trial(10.0, block=32), trial(11.0, block=64)]
    assert choose(timed) is timed[0]
    assert choose([]) is None


def test_the_first_half_are_the_fastest_then_come_those_unlike_them():
    alike = [trial(10.0 + i / 100, block=32, items=1, unroll=i) for i in range(6)]
    other = trial(10.5, block=256, items=8, unroll=0)
    timed = [*alike, other]
    half = MOST_CONFIGS // 2
    for count in range(half):
        assert choose(timed, alike[:count]) is alike[count]
    assert choose(timed, alike[:half]) is other


def test_no_more_than_the_cap_are_measured():
    timed = [trial(10.0, block=block) for block in range(MOST_CONFIGS + 3)]
    assert choose(timed, timed[: MOST_CONFIGS - 1]) is not None
    assert choose(timed, timed[:MOST_CONFIGS]) is None


@pytest.mark.parametrize(
    ("objective", "slower"),
    [("energy", 1 / (1 - POWER_MARGIN)), ("edp", (1 / (1 - POWER_MARGIN)) ** 0.5)],
)
def test_a_config_too_slow_to_win_at_the_least_power_is_left_out(objective, slower):
    fastest = trial(10.0, block=32)
    known = account(measured(fastest))
    assert can_win(trial(10.0 * slower * 0.99, block=64), known, objective)
    assert not can_win(trial(10.0 * slower * 1.01, block=64), known, objective)


@given(
    st.lists(st.tuples(st.floats(5.0, 50.0), st.floats(200.0, 700.0)), min_size=1, max_size=20),
    st.sampled_from(["energy", "edp"]),
)
def test_nothing_that_is_left_out_would_have_won_within_the_margin(points, objective):
    first, *rest = (
        measured(trial(time_us, block=block), power_w)
        for block, (time_us, power_w) in enumerate(points)
    )
    known = account(first)
    least_w = first.net_w * (1.0 - POWER_MARGIN)
    for one in rest:
        left_out = not can_win(trial(one.time_us, block=0), known, objective)
        if left_out and one.net_w >= least_w:
            assert one.cost(objective) >= first.cost(objective) * (1 - 1e-9)


def test_configs_of_two_candidates_differ_in_everything():
    one = Variant(INITIAL, Config.of({"block": 32, "items": 1}))
    assert unlike(one, Variant(INITIAL, Config.of({"block": 32, "items": 2}))) == 1
    assert unlike(one, Variant("r1", Config.of({"block": 32, "items": 1}))) == 3
