"""The `cuda` device: its contract, its launches, its comparisons, its processes."""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from faults import descendants
from silu_kernels import EVEN_AND_ODD, LAUNCH, WORKLOAD, silu

from tuner.device.base import Program
from tuner.device.cuda.device import CudaDevice
from tuner.device.cuda.worker import LOADED_PROGRAMS
from tuner.model.errors import DeviceError
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.space.load import Definition
from tuner.testing.devices import DeviceContract

Build = Callable[..., Program]

OPERATORS = {"ACTIVATION": "silu"}
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
TRIGGER = 'asm volatile("griddepcontrol.launch_dependents;" ::: "memory");'
# Right only where the hardware says that the block is one of a cluster of SIZE.
IN_CLUSTER = """
  unsigned blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  if (blocks != SIZE) return;
"""


@pytest.fixture(scope="module")
def device(definition: Definition) -> Iterator[CudaDevice]:
    device = CudaDevice(0, definition.spec, OPERATORS)
    yield device
    device.close()
    device.close()
    assert not processes("tune-worker")
    assert not processes("tune-verifier")


@pytest.fixture
def newer_than_8(capability: tuple[int, int]) -> None:
    if capability < (9, 0):
        pytest.skip("clusters and programmatic dependent launch need compute capability 9.0")


def processes(name: str) -> list[int]:
    return [one.pid for one in descendants(os.getpid()) if name in one.command]


class TestContract(DeviceContract):
    @pytest.fixture
    def working(self, honest: Program, build: Build) -> list[Program]:
        few_blocks = build(silu(), WORKLOAD, replace(LAUNCH, grid=(2, 1, 1)))
        return [honest, few_blocks]

    @pytest.fixture
    def failing(self, build: Build) -> Program:
        return build(silu(before="__trap();"), WORKLOAD, LAUNCH)


def test_it_tells_what_it_measures_on(device: CudaDevice) -> None:
    assert not device.info.recorded
    assert device.info.environment["cuda_driver_api"].isdecimal()
    assert 100 < device.info.streaming_gbps < 20_000


def test_a_second_device_on_the_same_gpu_is_refused(
    device: CudaDevice, definition: Definition
) -> None:
    with pytest.raises(DeviceError, match="GPU 0 is in use by another `tune`"):
        CudaDevice(0, definition.spec, OPERATORS)


def test_a_worker_that_is_killed_while_idle_costs_no_trial(
    device: CudaDevice, honest: Program
) -> None:
    assert device.run(honest).status is Status.CORRECT
    (pid,) = processes("tune-worker")
    os.kill(pid, signal.SIGKILL)
    assert device.run(honest).status is Status.CORRECT
    (new_pid,) = processes("tune-worker")
    assert new_pid != pid


def test_a_refused_launch_keeps_the_worker(device: CudaDevice, honest: Program) -> None:
    assert device.run(honest).status is Status.CORRECT
    before = processes("tune-worker")
    refused = replace(honest, launches=(replace(LAUNCH, shared_bytes=1 << 20),))
    assert device.run(refused).status is Status.LAUNCH
    assert processes("tune-worker") == before


def test_workloads_may_alternate(device: CudaDevice, build: Build) -> None:
    for axes in ({"T": 1, "D": 8}, {"T": 300, "D": 4096}, {"T": 1, "D": 8}, {"T": 3, "D": 777}):
        program = build(silu(), Workload.of(axes), LAUNCH)
        outcome = device.run(program)
        assert outcome.status is Status.CORRECT, (axes, outcome.reason)


def test_a_clearly_slower_program_is_stopped_early(device: CudaDevice, honest: Program) -> None:
    slow = device.run(honest, incumbent_us=1e-3)
    assert slow.measurement is not None
    assert slow.measurement.stopped_early
    full = device.run(honest)
    assert full.measurement is not None
    assert not full.measurement.stopped_early
    assert len(full.measurement.times_us) >= len(slow.measurement.times_us)


def test_the_buffers_cover_the_l2(device: CudaDevice, build: Build) -> None:
    workload = Workload.of({"T": 1024, "D": 4096})
    outcome = device.run(build(silu(), workload, replace(LAUNCH, grid=(1024, 1, 1))))
    assert outcome.measurement is not None
    footprint = 1024 * 4096 * 6
    assert outcome.measurement.buffer_sets * footprint >= 4 * device.info.l2_bytes


@pytest.mark.usefixtures("newer_than_8")
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_clusters_are_launched_as_such(device: CudaDevice, build: Build, size: int) -> None:
    source = silu(before=IN_CLUSTER.replace("SIZE", str(size)))
    cluster = build(source, WORKLOAD, replace(LAUNCH, cluster=(size, 1, 1)))
    outcome = device.run(cluster)
    assert outcome.status is Status.CORRECT, outcome.reason
    assert device.run(build(source, WORKLOAD, LAUNCH)).status is Status.INCORRECT


def test_more_shared_memory_than_the_default_can_be_had(device: CudaDevice, build: Build) -> None:
    source = silu(
        before="extern __shared__ float room[]; room[20000] = 1.0f; __syncthreads();",
        each="result *= room[20000];",
    )
    outcome = device.run(build(source, WORKLOAD, replace(LAUNCH, shared_bytes=90_000)))
    assert outcome.status is Status.CORRECT, outcome.reason


def test_an_operator_may_need_several_launches(device: CudaDevice, build: Build) -> None:
    odd = replace(LAUNCH, kernel="odd")
    both = build(EVEN_AND_ODD, WORKLOAD, LAUNCH, odd)
    outcome = device.run(both, full_verification=True)
    assert outcome.status is Status.CORRECT, outcome.reason
    assert device.run(replace(both, launches=(LAUNCH,))).status is Status.INCORRECT


def test_a_comparison_is_paired_round_by_round(
    device: CudaDevice, honest: Program, build: Build
) -> None:
    slow = build(silu(before="__nanosleep(20000);"), WORKLOAD, LAUNCH)
    assert device.run(slow).status is Status.CORRECT
    rounds = device.compare([honest, slow, honest], rounds=9)
    assert rounds.paired
    assert len(rounds.times_us) == 9
    first, second, third = (
        statistics.median(column) for column in zip(*rounds.times_us, strict=True)
    )
    assert second > 2 * first
    assert third == pytest.approx(first, rel=0.1)
    assert rounds.isolated_us == (None, None, None)


@pytest.mark.usefixtures("newer_than_8")
def test_programmatic_launches_overlap_and_have_an_isolated_time(
    device: CudaDevice, honest: Program, build: Build
) -> None:
    launch = replace(LAUNCH, pdl=True)
    dependent = build(silu(before=WAIT), WORKLOAD, launch)
    assert device.run(dependent, full_verification=True).status is Status.CORRECT
    rounds = device.compare([honest, dependent], rounds=15)
    overlapped = statistics.median(row[1] for row in rounds.times_us)
    assert rounds.isolated_us[0] is None
    isolated = rounds.isolated_us[1]
    assert isolated is not None
    assert isolated > overlapped


@pytest.mark.usefixtures("newer_than_8")
@pytest.mark.parametrize("full_verification", [False, True])
def test_a_programmatic_launch_that_reads_before_its_wait_is_wrong(
    device: CudaDevice, build: Build, full_verification: bool
) -> None:
    launch = replace(LAUNCH, pdl=True)
    hasty = build(
        silu(before=TRIGGER),
        WORKLOAD,
        launch,
    )
    outcome = device.run(hasty, full_verification=full_verification)
    assert outcome.status is Status.INCORRECT
    assert "griddepcontrol.wait" in outcome.reason


@pytest.mark.usefixtures("newer_than_8")
def test_a_programmatic_launch_whose_successor_may_begin_before_it_has_read_is_wrong(
    device: CudaDevice, build: Build
) -> None:
    early = build(silu(before=TRIGGER + WAIT), WORKLOAD, replace(LAUNCH, pdl=True))
    outcome = device.run(early, full_verification=True)
    assert outcome.status is Status.INCORRECT
    assert "griddepcontrol.launch_dependents" in outcome.reason


def test_more_programs_are_compared_than_stay_loaded(device: CudaDevice, honest: Program) -> None:
    count = LOADED_PROGRAMS + 3
    launches: list[Launch] = [replace(LAUNCH, block=(32 * k, 1, 1)) for k in range(1, count + 1)]
    programs = [replace(honest, launches=(launch,)) for launch in launches]
    rounds = device.compare(programs, rounds=5)
    assert {len(row) for row in rounds.times_us} == {count}
    assert all(time > 0 for row in rounds.times_us for time in row)
    assert device.run(honest).status is Status.CORRECT
