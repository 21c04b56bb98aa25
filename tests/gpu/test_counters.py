"""Nsight Compute over programs: counts that follow from what the program does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from silu_kernels import LAUNCH, WORKLOAD, silu

from tuner.analysis.base import Degree, Profile, ProfileSubject
from tuner.analysis.metrics import (
    DRAM_BYTES,
    DURATION,
    EXECUTED,
    SECTORS_PER_LOAD,
    counters_for,
    metrics_of,
)
from tuner.device.base import DeviceInfo, Program
from tuner.device.cuda.counters import NsightCompute, find_ncu, raw_counters, source_counts
from tuner.device.cuda.device import CudaMemory
from tuner.device.cuda.ncu_report import ReportReader
from tuner.device.inputs import NORMAL
from tuner.device.layout import Arena, lay_out
from tuner.device.verify.verifier import Verifier
from tuner.extensions.agents.profiling import Profiler
from tuner.model.hardware import architecture_for
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Resources
from tuner.space.load import Definition

ROWS = Workload.of({"T": 4096, "D": 4096})
BYTES = 4096 * 4096 * 2
LINES = ("-lineinfo",)
SOURCE = silu(each="out[i] = __float2bfloat16(0.0f);  // twice").replace(
    'extern "C"', 'extern "C" __global__ void nothing() {}\nextern "C"', 1
)


@pytest.fixture(scope="module")
def counters(definition: Definition) -> Iterator[NsightCompute]:
    verifier = Verifier(CudaMemory(0), definition.spec, {"ACTIVATION": "silu"})

    def place(program: Program) -> Arena:
        layout = lay_out(definition.spec, program.workload.values)
        arena = verifier.open_arena(program.workload, layout)
        verifier.prepare(program.workload, NORMAL, 1)
        return arena

    counters = NsightCompute(0, place)
    try:
        if reason := counters.refusal():
            pytest.skip(reason)
        yield counters
    finally:
        counters.close()
        verifier.close_arena()


@pytest.fixture(scope="module")
def program(build: Callable[..., Program]) -> Program:
    return build(silu(), ROWS, replace(LAUNCH, grid=(2048, 1, 1)), options=LINES)


@pytest.fixture(scope="module")
def profile(counters: NsightCompute, program: Program, capability: tuple[int, int]) -> Profile:
    info = DeviceInfo("GPU", architecture_for(capability), capability, 1, 1, 1.0, recorded=False)
    profiler = Profiler(info, counters)
    assert profiler.degree is Degree.COUNTERS
    lines = tuple(range(1, len(silu().splitlines()) + 1))
    return profiler.profile(ProfileSubject(program, lines, Resources(32), None, 100.0, 3 * BYTES))


def test_every_counter_that_is_asked_for_has_a_value_or_none_to_have(
    profile: Profile, capability: tuple[int, int]
) -> None:
    assert profile.degree is Degree.COUNTERS, profile.reason
    missing = set(counters_for(capability)) - profile.counters.keys()
    assert not missing


def test_a_kernel_reads_and_writes_what_its_arrays_hold(profile: Profile) -> None:
    metrics = metrics_of(profile)
    # What is written may stay in the L2.
    assert 2 * BYTES * 0.95 < metrics["dram_bytes"] < 3 * BYTES * 1.1
    assert metrics["executed_instructions"] == profile.counters[EXECUTED]


def test_shares_are_shares(profile: Profile) -> None:
    metrics = metrics_of(profile)
    shares = {name: value for name, value in metrics.items() if name.endswith("_share")}
    assert len(shares) == 4
    assert all(0.0 <= value <= 1.0 for value in shares.values()), shares


def test_neighbours_that_read_neighbours_need_two_sectors_of_bfloat16(profile: Profile) -> None:
    assert profile.counters[SECTORS_PER_LOAD] == pytest.approx(2.0, rel=0.05)


def test_the_hottest_line_is_one_of_the_loop(profile: Profile) -> None:
    lines = silu().splitlines()
    loop = next(n for n, text in enumerate(lines, 1) if "for (long long i" in text)
    assert profile.hot_lines
    hottest, share = profile.hot_lines[0]
    assert loop <= hottest <= loop + 8, profile.hot_lines
    assert 0.0 < share <= 1.0


def test_each_launch_of_a_call_is_counted(
    counters: NsightCompute, build: Callable[..., Program]
) -> None:
    nothing = Launch("nothing", (1, 1, 1), (32, 1, 1))
    # What `nothing` is given it has no parameters for, which the driver allows.
    call = build(SOURCE, WORKLOAD, LAUNCH, nothing, LAUNCH, options=LINES)
    counted = counters.count(call, [DURATION, EXECUTED])
    kernels = [launch.kernel for launch in counted.launches]
    assert kernels == ["silu_and_mul", "nothing", "silu_and_mul"], counted.reason
    first, between, last = (launch.values for launch in counted.launches)
    assert first[EXECUTED] == last[EXECUTED] > between[EXECUTED]


def test_its_module_reads_what_its_pages_show(
    counters: NsightCompute, build: Callable[..., Program], capability: tuple[int, int]
) -> None:
    reports = ReportReader(find_ncu())
    if not reports.serves:
        pytest.skip("Nsight Compute's Python module is not there, or not for this Python")
    large, nothing = replace(LAUNCH, grid=(2048, 1, 1)), Launch("nothing", (1, 1, 1), (32, 1, 1))
    call = build(SOURCE, ROWS, large, nothing, large, options=LINES)
    names = counters_for(capability)
    counted = counters.count(call, names)
    read = reports.read(counters._file, names)
    assert read is not None
    assert tuple(read) == counted.launches
    raw = raw_counters(counters._page("raw"))
    source = source_counts(counters._page("source", "--print-source=sass"))
    for launch, (kernel, every), places in zip(read, raw, source, strict=True):
        assert launch.kernel == kernel == places.kernel
        shown = {name: every[name] for name in names if name in every}
        # Pages round.
        assert launch.values == pytest.approx(shown, rel=1e-5, abs=0.006)
        assert (launch.samples, launch.executed) == (places.samples, places.executed)
        assert launch.executed[0] > 0
    assert read[0].samples


def test_a_counter_that_no_chip_has_is_left_out(counters: NsightCompute, program: Program) -> None:
    counted = counters.count(program, ["sm__no_such_thing.sum", DRAM_BYTES])
    (launch,) = counted.launches
    assert launch.values.keys() == {DRAM_BYTES}


def test_a_program_that_cannot_be_launched_has_a_reason(
    counters: NsightCompute, program: Program
) -> None:
    refused = replace(program, launches=(replace(LAUNCH, grid=(0, 1, 1)),))
    counted = counters.count(refused, [DURATION])
    assert not counted.launches
    assert "CUDA_ERROR" in counted.reason
