"""What bounds a kernel, by time, counters, and what its launch alone shows."""

from __future__ import annotations

import pytest
from profiles import MB, code, launch, profile

from tuner.analysis.base import Bottleneck, Profile
from tuner.analysis.metrics import MEMORY_THROUGHPUT, SM_THROUGHPUT
from tuner.analysis.roofline import roofline, room

# At 2 x 128 x 132 operations a clock and 1.7 GHz: 100 us.
OPERATIONS_100_US = round(57.4464e6 * 100)
TENSOR_CODE = (code({"tensor": 64}),)


def busy(memory: float, arithmetic: float) -> dict[str, float]:
    return {MEMORY_THROUGHPUT: memory, SM_THROUGHPUT: arithmetic}


@pytest.mark.parametrize(
    ("given", "kind", "reason"),
    [
        (
            profile(time_us=125),
            Bottleneck.MEMORY,
            "the bytes it must move take 100.00 us at 4200 GB/s: 80% of its 125.00 us",
        ),
        (
            profile(time_us=125, traffic_bytes=MB, operations=OPERATIONS_100_US),
            Bottleneck.COMPUTE,
            "its operations take about 100 us at the hardware's peak: 80% of its 125.00 us",
        ),
        (
            profile(time_us=2.5, traffic_bytes=MB),
            Bottleneck.LAUNCH,
            "a call takes 2.50 us, and an empty launch about 1.1 us",
        ),
        (
            profile(time_us=4.8, traffic_bytes=MB, launches=(launch(), launch())),
            Bottleneck.LAUNCH,
            "a call takes 4.80 us in 2 launches, and an empty launch about 1.1 us",
        ),
        (
            profile(time_us=1000, counters=busy(72, 40)),
            Bottleneck.MEMORY,
            "memory is 72% busy and the multiprocessors 40% (counters)",
        ),
        (
            profile(time_us=1000, counters=busy(40, 72)),
            Bottleneck.COMPUTE,
            "memory is 40% busy and the multiprocessors 72% (counters)",
        ),
        (
            profile(time_us=1000, launches=(launch(16),)),
            Bottleneck.LATENCY,
            "16 blocks for 132 multiprocessors",
        ),
        (
            profile(time_us=1000, launches=(launch(1100),)),
            Bottleneck.TAIL,
            "its 1100 blocks are 1.04 waves: 48% of the time is lost in the last if all take "
            "equally long",
        ),
        (
            profile(time_us=1000),
            Bottleneck.LATENCY,
            "it reaches 10% of its roofline and no bound that is known without counters",
        ),
        (
            profile(time_us=1000, counters=busy(30, 40)),
            Bottleneck.LATENCY,
            "it reaches 10% of its roofline and no bound",
        ),
    ],
)
def test_a_timed_kernel_has_the_class_of_the_bound_that_it_reaches(
    given: Profile, kind: Bottleneck, reason: str
) -> None:
    found = roofline(given)
    assert (found.bound, found.reason) == (kind, reason)


@pytest.mark.parametrize(
    ("given", "kind", "reason"),
    [
        (
            profile(launches=(launch(16),)),
            Bottleneck.LATENCY,
            "16 blocks for 132 multiprocessors",
        ),
        (
            profile(launches=(launch(16),), traffic_bytes=420_000),
            Bottleneck.LAUNCH,
            "16 blocks for 132 multiprocessors, and its bytes take 0.10 us, less than an empty "
            "launch; not timed",
        ),
        (
            profile(operations=1000),
            Bottleneck.MEMORY,
            "by its bytes and operations alone; nothing was timed",
        ),
        (
            profile(traffic_bytes=MB, operations=OPERATIONS_100_US),
            Bottleneck.COMPUTE,
            "by its bytes and operations alone; nothing was timed",
        ),
        (
            profile(),
            Bottleneck.LATENCY,
            "not known: nothing was timed, and bytes and operations do not decide",
        ),
        (
            profile(streaming_gbps=0.0, operations=OPERATIONS_100_US),
            Bottleneck.LATENCY,
            "not known: nothing was timed, and bytes and operations do not decide",
        ),
    ],
)
def test_without_a_time_no_more_is_claimed_than_launch_and_theory_show(
    given: Profile, kind: Bottleneck, reason: str
) -> None:
    found = roofline(given)
    assert (found.bound, found.reason, found.share) == (kind, reason, None)


def test_where_theory_and_counters_differ_theory_decides_and_both_are_told() -> None:
    found = roofline(profile(time_us=1000, operations=1000, counters=busy(20, 85)))
    assert found.bound is Bottleneck.MEMORY
    assert found.reason == (
        "by its bytes and operations it is bound by memory; memory is 20% busy and the "
        "multiprocessors 85% (counters), so the code does more than the operator needs"
    )


def test_a_theory_within_its_own_uncertainty_leaves_it_to_the_counters() -> None:
    near = profile(time_us=1000, operations=OPERATIONS_100_US, counters=busy(20, 85))
    assert roofline(near).bound is Bottleneck.COMPUTE


def test_tensor_instructions_raise_the_peak() -> None:
    operations = 4 * OPERATIONS_100_US
    assert roofline(profile(operations=operations)).bound is Bottleneck.COMPUTE
    assert roofline(profile(operations=operations, codes=TENSOR_CODE)).bound is Bottleneck.MEMORY


def test_the_share_is_that_of_the_bytes_or_operations_whichever_take_longer() -> None:
    assert roofline(profile(time_us=1000)).share == pytest.approx(0.1)
    both = profile(time_us=1000, operations=2 * OPERATIONS_100_US)
    assert roofline(both).share == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("blocks", [2000, 128], ids=["a last wave nearly full", "nearly all used"])
def test_a_grid_that_wastes_little_is_not_the_reason(blocks: int) -> None:
    found = roofline(profile(time_us=1000, launches=(launch(blocks),)))
    assert found.bound is Bottleneck.LATENCY
    assert "no bound" in found.reason


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (profile(), 1.0),
        (profile(time_us=400), 0.75),
        (profile(time_us=1.6, traffic_bytes=1000), 0.5),
        (profile(time_us=100), 0.05),
    ],
)
def test_the_room_is_what_neither_the_roofline_nor_an_empty_launch_takes(
    given: Profile, left: float
) -> None:
    assert room(given) == pytest.approx(left)
