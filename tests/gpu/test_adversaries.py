"""Kernels that cheat, crash or hang: each is caught, and the device works afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from silu_kernels import LAUNCH, WORKLOAD, silu

from tuner.device.base import Outcome, Program
from tuner.device.cuda import CudaDevice
from tuner.kernel import Launch
from tuner.space_file import Definition
from tuner.trial import Status

Build = Callable[..., Program]

ONE_BLOCK = replace(LAUNCH, grid=(1, 1, 1))
# Counts its launches; with one block, so that all threads of a launch see the same number.
COUNTED = """
  __shared__ int seen;
  if (threadIdx.x == 0) seen = launches_so_far++;
  __syncthreads();
"""
FLIP_INPUT = """
  if (thread == 0) *reinterpret_cast<unsigned short*>(const_cast<__nv_bfloat16*>(input)) ^= 1;
"""
WOBBLE = """
    const unsigned hash = static_cast<unsigned>(clock64()) * 2654435761u;
    if (hash >> 31) result *= 1.0f + 1.0f / 65536;
"""
FEWER_BITS = """
    result = __uint_as_float(__float_as_uint(result) & 0xFFF80000u);
"""
SPIN = "for (;;) __nanosleep(1000);"


@pytest.fixture(scope="module")
def device(definition: Definition) -> Iterator[CudaDevice]:
    device = CudaDevice(0, definition.spec, {"ACTIVATION": "silu"})
    yield device
    device.close()


@pytest.fixture
def run(device: CudaDevice, build: Build) -> Iterator[Callable[..., Outcome]]:
    """Run a kernel; after the test an honest one must pass on the same device."""

    def run(source: str, launch: Launch = LAUNCH, *, thorough: bool = False) -> Outcome:
        return device.run(build(source, WORKLOAD, launch), thorough=thorough)

    yield run
    outcome = run(silu())
    assert outcome.status is Status.CORRECT, outcome.reason


@pytest.mark.parametrize("launch", [LAUNCH, ONE_BLOCK], ids=["many blocks", "one block"])
def test_an_honest_kernel_passes(run: Callable[..., Outcome], launch: Launch) -> None:
    outcome = run(silu(), launch, thorough=True)
    assert outcome.status is Status.CORRECT, outcome.reason


WRONG = {
    "skips the work": (silu(before="return;"), "expected"),
    "returns its input": (silu(each="result = gate;"), "expected"),
    "leaves the last element unwritten": (
        silu(each="if (i == count - 1) continue;"),
        "out[15, 1023]",
    ),
    "is wrong for negative inputs": (silu(each="if (gate < 0) result = 0;"), "expected"),
    "keeps fewer bits": (silu(each=FEWER_BITS), "times the tolerance"),
    "writes just after its buffer": (
        silu(after="if (thread == 0) out[count] = __float2bfloat16(1.0f);"),
        "wrote outside its buffers (before input)",
    ),
    "writes just before its buffer": (
        silu(after="if (thread == 0) out[-1] = __float2bfloat16(1.0f);"),
        "wrote outside its buffers (before out)",
    ),
    "modifies its input": (silu(after=FLIP_INPUT), "changed its input 'input'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_caught(run: Callable[..., Outcome], name: str) -> None:
    source, reason = WRONG[name]
    outcome = run(source)
    assert outcome.status is Status.WRONG
    assert reason in outcome.reason
    assert outcome.measurement is None


def test_a_kernel_that_is_wrong_for_huge_inputs_is_caught_by_a_thorough_check(
    run: Callable[..., Outcome],
) -> None:
    outcome = run(silu(each="if (gate > 1e4f) result = 0;"), thorough=True)
    assert outcome.status is Status.WRONG
    assert "inputs 'extreme'" in outcome.reason


def test_a_kernel_that_is_not_deterministic_is_caught_by_a_thorough_check(
    run: Callable[..., Outcome],
) -> None:
    outcome = run(silu(each=WOBBLE), thorough=True)
    assert outcome.status is Status.WRONG
    assert "other bits of 'out'" in outcome.reason


def test_a_kernel_that_works_only_while_it_is_checked_is_caught(
    run: Callable[..., Outcome],
) -> None:
    outcome = run(silu(before=COUNTED + "if (seen >= 2) return;"), ONE_BLOCK)
    assert outcome.status is Status.WRONG
    assert outcome.reason.startswith("after timing")


def test_a_kernel_that_keeps_what_an_earlier_call_wrote_is_caught(
    run: Callable[..., Outcome],
) -> None:
    written = "__bfloat16_as_ushort(out[i])"
    outcome = run(silu(each=f"if ({written} != 0xFFFF && {written} != 0x7B7B) continue;"))
    assert outcome.status is Status.WRONG
    assert outcome.reason.startswith("after timing")


def test_a_kernel_that_writes_outside_only_while_it_is_timed_is_caught(
    run: Callable[..., Outcome],
) -> None:
    stray = "if (seen >= 2 && thread == 0) out[count] = __float2bfloat16(1.0f);"
    outcome = run(silu(before=COUNTED, after=stray), ONE_BLOCK)
    assert outcome.status is Status.WRONG
    assert outcome.reason.startswith("after timing")
    assert "wrote outside its buffers" in outcome.reason


def test_an_illegal_address_costs_one_trial(run: Callable[..., Outcome]) -> None:
    outcome = run(silu(after="if (thread == 0) out[1ll << 42] = __float2bfloat16(1.0f);"))
    assert outcome.status is Status.LAUNCH
    assert "ILLEGAL_ADDRESS" in outcome.reason


def test_a_trap_costs_one_trial(run: Callable[..., Outcome]) -> None:
    outcome = run(silu(before="__trap();"))
    assert outcome.status is Status.LAUNCH
    assert "CUDA_ERROR" in outcome.reason


def test_an_illegal_address_while_timing_costs_one_trial(run: Callable[..., Outcome]) -> None:
    stray = "if (seen >= 2) out[1ll << 42] = __float2bfloat16(1.0f);"
    outcome = run(silu(before=COUNTED + stray), ONE_BLOCK)
    assert outcome.status is Status.LAUNCH


def test_a_kernel_that_spins_for_ever_is_killed(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tuner.device.cuda.RUN_TIMEOUT_S", 2.0)
        outcome = run(silu(before=SPIN))
    assert outcome.status is Status.TIMEOUT
    assert "2 s" in outcome.reason


def test_a_kernel_that_spins_only_while_it_is_timed_is_killed(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tuner.device.cuda.TIMING_TIMEOUT_S", 3.0)
        outcome = run(silu(before=COUNTED + "if (seen >= 2) " + SPIN), ONE_BLOCK)
    assert outcome.status is Status.TIMEOUT


@pytest.mark.parametrize(
    "launch",
    [
        replace(LAUNCH, shared_bytes=1 << 20),
        replace(LAUNCH, block=(2048, 1, 1)),
        replace(LAUNCH, grid=(0, 1, 1)),
        replace(LAUNCH, cluster=(3, 1, 1)),  # does not divide the grid
        replace(LAUNCH, grid=(1024, 1, 1), cluster=(64, 1, 1)),
    ],
    ids=["1 MiB shared", "block", "empty grid", "odd cluster", "huge cluster"],
)
def test_a_launch_that_the_driver_refuses_costs_one_trial(
    run: Callable[..., Outcome], launch: Launch
) -> None:
    outcome = run(silu(), launch)
    assert outcome.status is Status.LAUNCH
    assert "CUDA_ERROR" in outcome.reason


@pytest.mark.usefixtures("run")
def test_a_cubin_that_is_none_costs_one_trial(device: CudaDevice) -> None:
    program = Program("damaged", WORKLOAD, (LAUNCH,), b"\0" * 4096, {"silu_and_mul": "silu"})
    assert device.run(program).status is Status.LAUNCH
