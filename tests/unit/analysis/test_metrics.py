"""The metrics of a profile: from the code alone, and from counters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profiles import code, launch, profile, waits

from tuner.analysis.base import METRICS
from tuner.analysis.metrics import (
    CONFLICTS,
    DRAM_BYTES,
    EXECUTED,
    GH100_ONLY,
    ISSUED,
    L2_HIT_RATE,
    SECTORS_PER_LOAD,
    counters_for,
    metrics_of,
)
from tuner.model.trial import Occupancy, Resources

COUNTERS = {
    DRAM_BYTES: 1e6,
    EXECUTED: 500.0,
    **dict.fromkeys(CONFLICTS, 20.0),
    L2_HIT_RATE: 25.0,
    SECTORS_PER_LOAD: 4.0,
    ISSUED: 40.0,
    **waits(long_scoreboard=5.0, lg_throttle=1.0, barrier=2.0, wait=2.0, not_selected=90.0),
}


def test_code_and_the_compilers_report_are_enough_for_some() -> None:
    resources = Resources(40, spill_store_bytes=8, spill_load_bytes=12, static_shared_bytes=1024)
    known = profile(
        resources=resources,
        occupancy=Occupancy(0.5, 4, "registers"),
        launches=[launch(shared_bytes=2048), launch(shared_bytes=1 << 20)],
        codes=[code({"fp32": 5}), code({"fp32": 2})],
    )
    assert metrics_of(known) == {
        "registers": 40,
        "spill_bytes": 20,
        "occupancy": 0.5,
        "shared_bytes": 3072,
        "instructions": 7,
    }


def test_what_is_not_known_is_left_out() -> None:
    subject = replace(profile().subject, resources=Resources(None), occupancy=None)
    found = metrics_of(replace(profile(), subject=subject))
    assert found == {"shared_bytes": 0}


def test_counters_give_all_the_others() -> None:
    found = metrics_of(profile(counters=COUNTERS, codes=[code({"fp32": 1})]))
    assert found.keys() == METRICS.keys()
    assert found["dram_bytes"] == 1e6
    assert found["l2_hit_share"] == 0.25
    assert found["sectors_per_request"] == 4.0
    assert found["executed_instructions"] == 500
    assert found["bank_conflicts"] == 40
    assert found["issue_share"] == 0.4


def test_stall_shares_are_of_the_cycles_in_which_a_warp_had_to_wait() -> None:
    found = metrics_of(profile(counters=COUNTERS))
    assert found["barrier_stall_share"] == pytest.approx(0.2)
    assert found["memory_stall_share"] == pytest.approx(0.6)
    unstalled = metrics_of(profile(counters=waits(long_scoreboard=0.0, not_selected=3.0)))
    assert not {"barrier_stall_share", "memory_stall_share"} & unstalled.keys()


def test_what_a_call_needs_is_summed_over_its_launches_and_rates_are_the_longests() -> None:
    other = {**COUNTERS, DRAM_BYTES: 3e6, L2_HIT_RATE: 99.0}
    found = metrics_of(profile(counters=COUNTERS, launch_counters=[other, COUNTERS]))
    assert found["dram_bytes"] == 4e6
    assert found["bank_conflicts"] == 80
    assert found["l2_hit_share"] == 0.25


def test_a_sum_that_lacks_a_launch_is_left_out() -> None:
    incomplete = {name: value for name, value in COUNTERS.items() if name != DRAM_BYTES}
    found = metrics_of(profile(counters=COUNTERS, launch_counters=[COUNTERS, incomplete]))
    assert "dram_bytes" not in found
    assert found["executed_instructions"] == 1000


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (10, 0), (12, 0)])
def test_what_one_chip_has_is_asked_of_that_chip_alone(capability: tuple[int, int]) -> None:
    assert not set(GH100_ONLY) & set(counters_for(capability))
    assert set(counters_for((9, 0))) == {*counters_for(capability), *GH100_ONLY}


def test_no_counter_is_asked_for_twice() -> None:
    assert len(set(counters_for((9, 0)))) == len(counters_for((9, 0)))
