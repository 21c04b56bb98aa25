"""What programs cost: idle subtracted, windows put together, a front that nothing beats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.config import Config
from tuner.model.energy import Account, Consumption, accounts
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Energy, EnergyWindow, Variant

WORKLOAD = Workload.of({"N": 1000})
SECONDS = 5.0


def variant(block: int) -> Variant:
    return Variant(INITIAL, Config.of({"block": block}))


def window(power_w: float, time_us: float | None = None) -> EnergyWindow:
    return EnergyWindow(power_w * SECONDS, SECONDS, time_us)


def consumption(
    power_w: float, time_us: float, block: int | None = 32, idle_w: float = 100.0
) -> Consumption:
    which = None if block is None else variant(block)
    return Consumption(which, (window(power_w, time_us),), (idle_w,))


def account(*programs: Consumption, baseline: Consumption | None = None) -> Account:
    return Account(WORKLOAD, (100.0,), baseline, programs)


def test_idle_is_subtracted_and_the_gross_value_kept():
    one = consumption(power_w=500.0, time_us=10.0)
    assert one.gross_mj == pytest.approx(5.0)
    assert one.net_mj == pytest.approx(4.0)
    assert one.edp == pytest.approx(40.0)
    assert one.windows[0].calls == pytest.approx(500_000)


def test_the_range_holds_every_window_with_every_idle_power():
    windows = (window(500.0, 10.0), window(520.0, 10.0))
    one = Consumption(variant(32), windows, (100.0, 120.0))
    assert one.net_range_mj == pytest.approx((3.8, 4.2))
    assert one.net_mj == pytest.approx(4.0)
    assert one.spread == pytest.approx(20 / 510)
    assert consumption(500.0, 10.0).spread is None


def test_windows_of_one_program_come_together_and_workloads_stay_apart():
    other = Workload.of({"N": 5})
    found = accounts(
        [
            Energy(WORKLOAD, "idle", window(90.0)),
            Energy(WORKLOAD, "baseline", window(400.0, 20.0)),
            Energy(WORKLOAD, "variant", window(500.0, 10.0), variant(32)),
            Energy(other, "baseline", window(300.0, 2.0)),
            Energy(WORKLOAD, "variant", window(510.0, 10.0), variant(32)),
            Energy(WORKLOAD, "idle", window(110.0)),
        ]
    )
    assert list(found) == [WORKLOAD, other]
    here = found[WORKLOAD]
    assert here.idle_w == (90.0, 110.0)
    assert here.baseline is not None
    assert here.baseline.net_mj == pytest.approx(6.0)
    assert [len(one.windows) for one in here.variants] == [2]
    assert found[other].idle_w == ()


def test_the_objectives_disagree_where_the_slower_saves_power():
    fast, frugal = consumption(600.0, 10.0, 32), consumption(480.0, 12.0, 64)
    found = account(fast, frugal)
    orders = {"energy": (64, 32), "edp": (32, 64), "time": (32, 64)}
    for objective, blocks in orders.items():
        assert [one.variant for one in found.ranked(objective)] == list(map(variant, blocks))


def test_of_costs_that_tie_the_faster_wins():
    slower, faster = consumption(500.0, 10.0, 32), consumption(505.5, 9.9, 64)
    assert faster.net_mj > slower.net_mj
    assert account(slower, faster).ranked("energy")[0].variant == variant(64)


def test_nothing_measured_ranks_nothing():
    assert account().ranked("energy") == ()
    assert account().front() == ()


def test_a_saving_is_claimed_only_where_no_pair_of_windows_disagrees():
    baseline = Consumption(None, (window(500.0, 10.0), window(540.0, 10.0)), (100.0,))
    clear, unsure = consumption(450.0, 10.0, 32), consumption(510.0, 10.0, 64)
    found = account(clear, unsure, baseline=baseline)
    saving = found.saving(variant(32))
    assert saving is not None
    assert saving.ratio == pytest.approx(420 / 350)
    assert saving.range == pytest.approx((400 / 350, 440 / 350))
    assert saving.different
    other = found.saving(variant(64))
    assert other is not None
    assert not other.different


def test_a_program_that_adds_nothing_measurable_has_no_saving():
    baseline = consumption(500.0, 10.0, None)
    found = account(consumption(100.0, 10.0, 32), baseline=baseline)
    assert found.saving(variant(32)) is None
    assert found.saving(variant(64)) is None


measured = st.lists(
    st.tuples(st.floats(1.0, 1e4), st.floats(150.0, 700.0)), min_size=1, max_size=12
)


@given(measured)
def test_nothing_beats_the_front_and_the_front_beats_all_else(points):
    found = account(*(consumption(power, us, block) for block, (us, power) in enumerate(points)))
    front = found.front()

    def beats(a: Consumption, b: Consumption) -> bool:
        no_worse = a.time_us <= b.time_us and a.net_mj <= b.net_mj
        return no_worse and (a.time_us, a.net_mj) != (b.time_us, b.net_mj)

    assert not [(a, b) for a in found.programs for b in front if beats(a, b)]
    for one in found.programs:
        equal = [(f.time_us, f.net_mj) == (one.time_us, one.net_mj) for f in front]
        assert any(equal) or any(beats(f, one) for f in front)
    assert list(front) == sorted(front, key=lambda one: one.time_us)
