"""Faults on a GPU: each is one trial or one clear error, and the device goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from faults import descendants
from silu_kernels import LAUNCH, WORKLOAD, silu

from tuner.compiler.base import CompileRequest
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Program
from tuner.device.cuda.device import CudaDevice
from tuner.model.errors import DeviceError
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.space.load import Definition

Build = Callable[..., Program]

ANOTHER_ARCHITECTURE = {True: "sm_75", False: "sm_120"}
KILLS = 10


@pytest.fixture(scope="module")
def device(definition: Definition) -> Iterator[CudaDevice]:
    device = CudaDevice(0, definition.spec, {"ACTIVATION": "silu"})
    yield device
    device.close()
    assert not workers()


@pytest.fixture(autouse=True)
def works_afterwards(device: CudaDevice, honest: Program) -> Iterator[None]:
    yield
    outcome = device.run(honest)
    assert outcome.status is Status.CORRECT, outcome.reason


def workers() -> list[int]:
    return [one.pid for one in descendants(os.getpid()) if "tune-worker" in one.command]


def test_a_cubin_for_another_architecture_costs_one_trial(
    device: CudaDevice, honest: Program, compiler: NvrtcPool, capability: tuple[int, int]
) -> None:
    other = ANOTHER_ARCHITECTURE[capability >= (8, 0)]
    result = compiler.submit(CompileRequest(silu(), ("silu_and_mul",), other)).result(60)
    assert result.ok, result.error
    outcome = device.run(replace(honest, cubin=result.cubin, lowered=result.lowered))
    assert outcome.status is Status.LAUNCH
    assert outcome.reason


def test_bytes_that_are_no_cubin_cost_one_trial(device: CudaDevice, honest: Program) -> None:
    cubin = b"not a cubin".ljust(4096)
    outcome = device.run(replace(honest, source_key="no cubin", cubin=cubin))
    assert outcome.status is Status.LAUNCH
    assert outcome.reason


@pytest.mark.parametrize(
    ("before", "status"),
    [
        ("out[1LL << 40] = __float2bfloat16(1.0f);", Status.LAUNCH),
        ("__trap();", Status.LAUNCH),
        ("while (*(volatile int*)&launches_so_far >= 0) {}", Status.TIMEOUT),
    ],
    ids=["an illegal address", "a trap", "a hang"],
)
def test_what_breaks_the_worker_costs_one_trial(
    device: CudaDevice, build: Build, before: str, status: Status
) -> None:
    outcome = device.run(build(silu(before=before), WORKLOAD, LAUNCH))
    assert outcome.status is status, outcome.reason
    assert outcome.measurement is None


def test_a_workload_beyond_the_memory_is_one_clear_error(device: CudaDevice, build: Build) -> None:
    large = build(silu(), Workload.of({"T": 1 << 24, "D": 1 << 16}), LAUNCH)
    with pytest.raises(DeviceError, match="not enough memory for T=16777216 D=65536"):
        device.run(large)


def test_a_worker_that_is_killed_at_any_moment_costs_at_most_its_trial(
    device: CudaDevice, honest: Program
) -> None:
    ended = threading.Event()
    kills: list[int] = []

    def kill() -> None:
        while len(kills) < KILLS and not ended.wait(1.5):
            for pid in workers():
                os.kill(pid, signal.SIGKILL)
                kills.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    outcomes = []
    deadline = time.monotonic() + 120
    while killer.is_alive() and time.monotonic() < deadline:
        outcomes.append(device.run(honest))
    ended.set()
    killer.join()
    assert len(kills) >= KILLS
    assert {outcome.status for outcome in outcomes} <= {Status.CORRECT, Status.LAUNCH}
    assert sum(outcome.status is Status.CORRECT for outcome in outcomes) > len(outcomes) / 2
