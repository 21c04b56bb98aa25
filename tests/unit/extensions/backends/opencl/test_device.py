"""The `opencl` device: the contract of every device, and kernels that cheat or break."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from opencl_programs import SCALED, Build, needs_opencl, opened
from operators import STAGED_ENERGY, launch

from tuner.device.base import Device, Program
from tuner.extensions.backends.opencl.device import OpenclDevice
from tuner.model.trial import Status
from tuner.testing.devices import DeviceContract

pytestmark = needs_opencl

DATA = Path(__file__).parent / "data"

Pair = tuple[OpenclDevice, Build]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with opened() as both:
        yield both


class TestContract(DeviceContract):
    @pytest.fixture
    def device(self, pair: Pair) -> Device:
        return pair[0]

    @pytest.fixture
    def working(self, pair: Pair) -> list[Program]:
        return [pair[1](SCALED), pair[1](SCALED.replace("2.0f * x[i]", "x[i] + x[i]"))]

    @pytest.fixture
    def failing(self, pair: Pair) -> Program:
        return pair[1](ADVERSARIES["uses an illegal address"][0])


def kernel(body: str) -> str:
    """Write a kernel whose `body` stands in its loop, with `y[i]` and `x[i]`."""
    return (
        "__kernel void run(__global float* y, __global const float* x, int T) {\n"
        f"  for (int i = get_global_id(0); i < T; i += get_global_size(0)) {{ {body} }}\n}}\n"
    )


# Local memory keeps what a work-group before it has left there; one group sees its own.
REMEMBERING = (DATA / "remembering.cl").read_text(encoding="utf-8")
CACHING = (DATA / "caching.cl").read_text(encoding="utf-8")
ADVERSARIES = {
    "skips work": (kernel("if (i % 8) y[i] = 2.0f * x[i];"), Status.INCORRECT, "expected"),
    "writes nothing": (kernel(""), Status.INCORRECT, "expected"),
    "writes NaN": (kernel("y[i] = NAN;"), Status.INCORRECT, "nan, expected"),
    "writes past the end": (kernel("y[i] = 2.0f * x[i]; y[i + 1] = 2.0f * x[min(i + 1, T - 1)];"),
        Status.INCORRECT, "expected|wrote outside its buffers"),
    "writes past the end only": (kernel("y[i] = 2.0f * x[i]; if (i == 7) y[T] = 1.0f;"),
        Status.INCORRECT, r"wrote outside its buffers \(before x\)"),
    "writes before the start": (kernel("y[i] = 2.0f * x[i]; if (i == 7) y[-1] = 1.0f;"),
        Status.INCORRECT, r"wrote outside its buffers \(before y\)"),
    "changes its input": (kernel("y[i] = 2.0f * x[i]; if (i == 9) ((__global float*)x)[i] = 1.0f;"),
        Status.INCORRECT, "changed its input 'x'"),
    "takes poison for a result": (
        kernel("if (y[i] != 2.0f * x[i]) y[i] = i == 99 ? y[i] : 2.0f * x[i];"),
        Status.INCORRECT,
        "expected",
    ),
    "uses an illegal address": (
        kernel("y[i] = 2.0f * x[i]; if (i == 3) *(__global float*)(size_t)8 = 1.0f;"),
        Status.LAUNCH,
        "the process that runs kernels died",
    ),
    "never ends": (kernel("volatile int go = 1; while (go) y[i] = 2.0f * x[i];"), Status.TIMEOUT,
        "no answer within 5 s"),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVERSARIES)
def test_a_kernel_that_cheats_or_breaks_costs_its_own_trial_only(pair: Pair, name: str) -> None:
    device, build = pair
    source, status, reason = ADVERSARIES[name]
    outcome = device.verify(build(source))
    assert outcome.status is status, outcome.reason
    assert re.search(reason, outcome.reason)
    assert device.verify(build(SCALED)).status is Status.CORRECT


@pytest.mark.parametrize("source", [REMEMBERING, CACHING], ids=["remembers", "caches"])
def test_a_kernel_that_keeps_results_is_caught(pair: Pair, source: str) -> None:
    device, build = pair
    program = build(source, launch(1, 128))
    outcome = device.run(program, full_verification=True)
    assert outcome.status is Status.INCORRECT
    assert re.search("expected|differs", outcome.reason)


def test_a_race_between_work_items_is_caught(pair: Pair) -> None:
    device, build = pair
    source = (DATA / "race.cl").read_text(encoding="utf-8")
    outcome = device.verify(build(source, launch(1, 128)))
    assert outcome.status is Status.INCORRECT


def test_what_a_launch_cannot_have_is_a_launch_failure(pair: Pair) -> None:
    device, build = pair
    wide = device.verify(build(SCALED, launch(1, 1 << 20)))
    assert wide.status is Status.LAUNCH
    assert "INVALID_WORK" in wide.reason
    few = device.verify(build("__kernel void run(__global float* y) { y[0] = 1.0f; }"))
    assert few.status is Status.LAUNCH
    assert few.reason == "the kernel `run` has 1 parameters, and the launch gives it 3"


def test_local_memory_that_a_launch_gives_is_the_last_argument(pair: Pair) -> None:
    device, build = pair
    source = """
__kernel void run(__global float* y, __global const float* x, int T, __local float* staged) {
  for (int i = get_global_id(0); i < T; i += get_global_size(0)) {
    staged[get_local_id(0)] = x[i];
    y[i] = 2.0f * staged[get_local_id(0)];
  }
}
"""
    outcome = device.verify(build(source, launch(4, 128, shared_bytes=512)))
    assert outcome.status is Status.CORRECT, outcome.reason


def test_several_launches_make_one_operator_with_scratch_between_them() -> None:
    source = (DATA / "staged.cl").read_text(encoding="utf-8")
    with opened(STAGED_ENERGY) as (device, build):
        outcome = device.run(build(source), full_verification=True)
        assert outcome.status is Status.CORRECT, outcome.reason


def test_the_limits_are_the_devices_own(pair: Pair) -> None:
    limits = pair[0].info.limits
    assert limits.threads_per_block >= 1
    assert limits.shared_bytes_per_block >= 1024
    assert pair[0].info.streaming_gbps > 0
    assert not pair[0].info.on_cpu
