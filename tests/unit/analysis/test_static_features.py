"""Numbers of a compiled config: right for one launch, several, and where little is known."""

from __future__ import annotations

import math

import pytest

from tuner.analysis.static_features import CLASSES, features
from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.pool import NvrtcPool
from tuner.model.hardware import limits_for
from tuner.model.kernel import Launch
from tuner.model.trial import Resources

HOPPER = limits_for((9, 0))
MULTIPROCESSORS = 132
SOURCE = """
extern "C" __global__ void copy(float4* __restrict__ out, const float4* __restrict__ in) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i];
}
extern "C" __global__ void add(float* __restrict__ out, const float* __restrict__ in) {
  out[threadIdx.x] = in[threadIdx.x] + in[threadIdx.x + 1024] * in[threadIdx.x + 4096];
}
"""


@pytest.fixture(scope="module")
def compiled(compiler: NvrtcPool) -> CompileResult:
    result = compiler.submit(CompileRequest(SOURCE, ("copy", "add"), "sm_90a")).result(120)
    assert result.ok, result.error
    return result


def launch(kernel: str = "copy", blocks: int = 1000, threads: int = 256, **more) -> Launch:
    return Launch(kernel, (blocks, 1, 1), (threads, 1, 1), **more)


def known(resources: Resources, *launches: Launch):
    """What is known where the code can't be read."""
    result = CompileResult(resources=dict.fromkeys(("copy", "add"), resources))
    return features(result, launches or (launch(),), HOPPER, MULTIPROCESSORS)


def test_a_kernel_that_copies(compiled: CompileResult) -> None:
    found = features(compiled, [launch(blocks=1056)], HOPPER, MULTIPROCESSORS)
    assert found["registers"] == compiled.resources["copy"].registers
    assert found["global_load"] == found["global_store"] == 1
    assert found["load_bits_max"] == found["load_bits_mean"] == 128
    assert found["loaded_bytes"] == found["stored_bytes"] == 16
    assert found["instructions"] == sum(found[name] for name in CLASSES)
    assert found["traffic_bytes"] == 1056 * 256 * 32
    assert found["warps"] == 1056 * 8
    assert found["warp_instructions"] == found["warps"] * found["instructions"]
    assert (found["occupancy"], found["resident_blocks"], found["waves"]) == (1, 8, 1)


def test_waves_and_how_full_the_last_is() -> None:
    resources = Resources(32)  # 8 blocks of 256 threads on each multiprocessor
    room = 8 * MULTIPROCESSORS
    for blocks, waves, last, evenness in [
        (room, 1, 1, 1),
        (room // 2, 0.5, 0.5, 0.5),
        (room * 5 // 2, 2.5, 0.5, 2.5 / 3),
    ]:
        found = known(resources, launch(blocks=blocks))
        assert (found["waves"], found["last_wave"]) == (waves, last)
        assert found["evenness"] == pytest.approx(evenness)


@pytest.mark.parametrize(("blocks", "warps"), [(1, 8), (132, 8), (133, 16), (100_000, 64)])
def test_active_warps_are_those_of_the_fullest_multiprocessor(blocks: int, warps: int) -> None:
    assert known(Resources(32), launch(blocks=blocks))["active_warps"] == warps


def test_what_the_compiler_and_the_launch_say() -> None:
    resources = Resources(64, 8, 12, 1024, 16, 1, "insufficient register resources")
    found = known(resources, launch(threads=100, shared_bytes=2048, cluster=(2, 1, 1), pdl=True))
    expected = {
        "spill_bytes": 20,
        "stack_bytes": 16,
        "serialized_wgmma": 1,
        "static_shared_bytes": 1024,
        "dynamic_shared_bytes": 2048,
        "barriers": 1,
        "threads": 100,
        "warps": 4000,
        "cluster_blocks": 2,
        "programmatic": 1,
        "launches": 1,
    }
    assert {name: found[name] for name in expected} == expected


def test_launches_add_up_and_what_is_per_thread_is_their_mean(compiled: CompileResult) -> None:
    both = [launch("copy", blocks=300), launch("add", blocks=100)]
    one, other = (features(compiled, [each], HOPPER, MULTIPROCESSORS) for each in both)
    found = features(compiled, both, HOPPER, MULTIPROCESSORS)
    assert found["launches"] == 2
    for name in ("blocks", "waves", "traffic_bytes", "instructions", "fp32", "global_load"):
        assert found[name] == pytest.approx(one[name] + other[name]), name
    for name in ("registers", "threads", "load_bits_mean", "loaded_bytes", "active_warps"):
        assert found[name] == pytest.approx(0.75 * one[name] + 0.25 * other[name]), name


def test_a_processor_has_no_registers_and_no_known_code(compiled: CompileResult) -> None:
    host = CompileResult(cubin=b"\x7fELF\x02\x01 a library", resources={"copy": Resources(None)})
    found = features(host, [launch()], HOPPER, MULTIPROCESSORS)
    assert found["registers"] == found["occupancy"] == found["waves"] == found["instructions"] == 0
    assert found["threads"] == 256


@pytest.mark.parametrize(
    "odd",
    [
        [],
        [launch(threads=2048)],
        [launch(blocks=0)],
        [launch(shared_bytes=1 << 20)],
        [launch(), launch(blocks=0), launch(threads=1)],
    ],
)
def test_every_config_has_the_same_names_and_finite_numbers(
    compiled: CompileResult, odd: list[Launch]
) -> None:
    usual = features(compiled, [launch()], HOPPER, MULTIPROCESSORS)
    found = features(compiled, odd, HOPPER, MULTIPROCESSORS)
    assert tuple(found) == tuple(usual)
    assert all(isinstance(value, float) and math.isfinite(value) for value in found.values())
