"""What bounds a kernel, by time, counters, and what its launch alone shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profiles import MB, code, launch, profile

from tests.support.simulated_device import H200_LIKE
from tuner.analysis.base import Bottleneck, Profile
from tuner.analysis.metrics import MEMORY_THROUGHPUT, SM_THROUGHPUT
from tuner.analysis.roofline import (
    CLOCK_GHZ,
    bound_of,
    compute_us,
    peak_gflops,
    room,
    theory,
)

# At 2 x 128 x 132 operations a clock and 1.7 GHz: 100 us.
OPERATIONS_100_US = round(57.4464e6 * 100)
TENSOR_CODE = (code({"tensor": 64}),)


def busy(memory: float, arithmetic: float) -> dict[str, float]:
    return {MEMORY_THROUGHPUT: memory, SM_THROUGHPUT: arithmetic}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (profile(time_us=125), Bottleneck.MEMORY),
        (
            profile(time_us=125, traffic_bytes=MB, operations=OPERATIONS_100_US),
            Bottleneck.COMPUTE,
        ),
        (profile(time_us=2.5, traffic_bytes=MB), Bottleneck.LAUNCH),
        (profile(time_us=4.8, traffic_bytes=MB, launches=(launch(), launch())), Bottleneck.LAUNCH),
        (profile(time_us=1000, counters=busy(72, 40)), Bottleneck.MEMORY),
        (profile(time_us=1000, counters=busy(40, 72)), Bottleneck.COMPUTE),
        (profile(time_us=1000, operations=1000, counters=busy(20, 85)), Bottleneck.MEMORY),
        (profile(time_us=1000, launches=(launch(16),)), Bottleneck.LATENCY),
        (profile(time_us=1000, launches=(launch(1100),)), Bottleneck.TAIL),
        (profile(time_us=1000, launches=(launch(2000),)), Bottleneck.LATENCY),
        (profile(time_us=1000), Bottleneck.LATENCY),
        (profile(time_us=1000, counters=busy(30, 40)), Bottleneck.LATENCY),
    ],
)
def test_a_timed_kernel_has_the_class_of_the_bound_that_it_reaches(
    given: Profile, kind: Bottleneck
) -> None:
    assert bound_of(given) is kind


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (profile(launches=(launch(16),)), Bottleneck.LATENCY),
        (profile(launches=(launch(16),), traffic_bytes=420_000), Bottleneck.LAUNCH),
        (profile(operations=1000), Bottleneck.MEMORY),
        (profile(traffic_bytes=MB, operations=OPERATIONS_100_US), Bottleneck.COMPUTE),
        (profile(), Bottleneck.LATENCY),
        (profile(streaming_gbps=0.0, operations=OPERATIONS_100_US), Bottleneck.LATENCY),
    ],
)
def test_without_a_time_no_more_is_claimed_than_launch_and_theory_show(
    given: Profile, kind: Bottleneck
) -> None:
    assert bound_of(given) is kind


def test_a_theory_within_its_own_uncertainty_leaves_it_to_the_counters() -> None:
    near = profile(time_us=1000, operations=OPERATIONS_100_US, counters=busy(20, 85))
    assert bound_of(near) is Bottleneck.COMPUTE


def test_tensor_instructions_raise_the_peak() -> None:
    operations = 4 * OPERATIONS_100_US
    assert bound_of(profile(operations=operations)) is Bottleneck.COMPUTE
    assert bound_of(profile(operations=operations, codes=TENSOR_CODE)) is Bottleneck.MEMORY


@pytest.mark.parametrize(
    ("peak", "kind"),
    [
        ("fp32", Bottleneck.COMPUTE),
        ("tf32", Bottleneck.COMPUTE),
        ("bf16", None),
        ("fp8", Bottleneck.MEMORY),
    ],
)
def test_a_declared_peak_stands_whatever_the_code_uses(peak: str, kind: Bottleneck | None) -> None:
    given = profile(operations=16 * OPERATIONS_100_US)
    for codes in ((), TENSOR_CODE):
        declared = replace(given, subject=replace(given.subject, peak=peak), codes=codes)
        assert theory(declared) is kind


def test_a_peak_that_the_device_lacks_is_left_out() -> None:
    assert peak_gflops((8, 0), 108, "fp8") is None
    ampere = replace(H200_LIKE, compute_capability=(8, 0))
    given = replace(profile(operations=OPERATIONS_100_US), device=ampere)
    declared = replace(given, subject=replace(given.subject, peak="fp8"))
    assert compute_us(declared) == compute_us(given)


# Dense rates of the data sheets in TFLOP/s, at the clocks that those hold for.
@pytest.mark.parametrize(
    ("capability", "multiprocessors", "ghz", "peak", "tflops"),
    [
        ((7, 5), 40, 1.59, "fp16", 65),
        ((8, 0), 108, 1.41, "bf16", 312),
        ((8, 0), 108, 1.41, "tf32", 156),
        ((8, 9), 142, 2.52, "fp8", 733),
        ((9, 0), 132, 1.83, "bf16", 989),
        ((9, 0), 132, 1.83, "fp8", 1979),
        ((10, 0), 148, 1.85, "bf16", 2250),
        ((12, 0), 188, 2.617, "fp16", 503.8),
    ],
)
def test_peaks_are_those_of_the_data_sheets(
    capability: tuple[int, int], multiprocessors: int, ghz: float, peak: str, tflops: float
) -> None:
    found = peak_gflops(capability, multiprocessors, peak)
    assert found is not None
    assert found / CLOCK_GHZ * ghz / 1e3 == pytest.approx(tflops, rel=0.02)


def test_the_memory_bounds_no_cost_between_neighbours() -> None:
    given = profile(time_us=90)
    assert bound_of(given) is Bottleneck.MEMORY
    between = replace(given, subject=replace(given.subject, surroundings="decode"))
    assert bound_of(between) is not Bottleneck.MEMORY
    assert room(between) > 0.9


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (profile(), 1.0),
        (profile(time_us=400), 0.75),
        (profile(time_us=400, operations=2 * OPERATIONS_100_US), 0.5),
        (profile(time_us=0.98, traffic_bytes=1000), 0.5),
        (profile(time_us=100), 0.05),
    ],
)
def test_the_room_is_what_neither_the_roofline_nor_an_empty_launch_takes(
    given: Profile, left: float
) -> None:
    assert room(given) == pytest.approx(left)
