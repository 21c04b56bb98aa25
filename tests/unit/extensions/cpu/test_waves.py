"""HIP on the CPU device: waves of 64 lanes, HIP's names, and what only a GPU can run."""

from __future__ import annotations

import shutil

import pytest
from host_launch import Launched, launch

from tuner.compiler.base import CompileRequest
from tuner.extensions.cpu.child import LaunchEnd
from tuner.extensions.cpu.compiler import HostCompiler

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
LANES = 64


def source_of(body: str) -> str:
    return (
        "#include <hip/hip_runtime.h>\n#include <hip/hip_fp16.h>\n#include <hip/hip_bf16.h>\n"
        f'extern "C" __global__ void run(double* y) {{ const int i = hipThreadIdx_x;\n{body}\n}}\n'
    )


def run(
    compiler: HostCompiler,
    body: str,
    threads: int = LANES,
    architecture: str = "gfx942",
    **more: int,
) -> Launched:
    request = CompileRequest(source_of(body), ("run",), architecture)
    result = compiler.submit(request).result()
    assert result.ok, result.error
    return launch(result.cubin, ("c_double", threads), block=(threads, 1, 1), **more)


def error(compiler: HostCompiler, body: str) -> str:
    request = CompileRequest(source_of(body), ("run",), "gfx942")
    return compiler.submit(request).result().error


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y[i] = __shfl_xor(i, 32);", [lane ^ 32 for lane in range(LANES)]),
        ("y[i] = __shfl(i, 3, 16);", [lane // 16 * 16 + 3 for lane in range(LANES)]),
        ("y[i] = __shfl_up(i, 40);", [*range(40), *range(24)]),
        ("y[i] = __shfl_down(i, 40);", [*range(40, 64), *range(24, 64)]),
        ("y[i] = __ballot(i == 40) == 1ull << 40;", [1] * LANES),
        ("y[i] = __popcll(__ballot(i >= 10));", [54] * LANES),
        ("y[i] = __any(i == 63) + 2 * __all(i < 64) + 4 * __all(i < 63);", [3] * LANES),
        ("y[i] = warpSize + __lane_id();", list(range(64, 128))),
        ("y[i] = __builtin_amdgcn_readfirstlane(i + 7);", [7] * LANES),
        ("y[i] = __builtin_amdgcn_rcpf(4.0f) + __half2float(__float2half(0.5f));", [0.75] * LANES),
        ("y[i] = __bfloat162float(__float2bfloat16(1.0f + i * 0));", [1] * LANES),
        ("HIP_DYNAMIC_SHARED(int, kept) kept[i] = i; __syncthreads(); y[i] = kept[63 - i];",
         list(range(63, -1, -1))),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [0, 1, 77])
def test_a_wave_has_64_lanes(
    compiler: HostCompiler, body: str, expected: list[float], order: int
) -> None:
    done = run(compiler, body, order=order, shared_bytes=256)
    assert done.code == LaunchEnd.DONE, done.message
    assert done.buffers == [expected]


def test_lanes_of_another_wave_take_no_part(compiler: HostCompiler) -> None:
    done = run(compiler, "y[i] = __popcll(__ballot(1)) + __shfl_xor(i, 64);", threads=96)
    assert done.buffers == [
        [64 + lane for lane in range(64)] + [32 + 64 + lane for lane in range(32)]
    ]


def test_rdna_has_waves_of_32(compiler: HostCompiler) -> None:
    done = run(compiler, "y[i] = __popcll(__ballot(1)) + warpSize;", architecture="gfx1100")
    assert done.buffers == [[64] * LANES]


@pytest.mark.parametrize("order", [0, 1, 5])
def test_lanes_of_one_branch_exchange_values_among_themselves(
    compiler: HostCompiler, order: int
) -> None:
    body = "if (i < 32) y[i] = __shfl_xor(i, 1); else y[i] = 100 + __popcll(__ballot(1));"
    body += "\n__syncthreads(); y[i] += __shfl(1, 0);"
    done = run(compiler, body, order=order)
    assert done.code == LaunchEnd.DONE, done.message
    assert done.buffers == [[(lane ^ 1) + 1 for lane in range(32)] + [133] * 32]


def test_a_lane_outside_the_branch_has_no_value_to_give(compiler: HostCompiler) -> None:
    done = run(compiler, "y[i] = 0; if (i < 32) y[i] = __shfl_xor(i, 32);")
    assert done.buffers == [[-1] * 32 + [0] * 32]


def test_a_loop_goes_on_before_those_that_have_left_it(compiler: HostCompiler) -> None:
    body = "int n = 0;\nfor (int k = 0; k <= i % 4; ++k)\n  n += __popcll(__ballot(1));\n"
    done = run(compiler, f"{body}y[i] = n + 1000 * __popcll(__ballot(1));")
    assert done.buffers == [[64000 + [64, 112, 144, 160][lane % 4] for lane in range(LANES)]]


def test_masks_have_64_bits(compiler: HostCompiler) -> None:
    done = run(compiler, "y[i] = __shfl_xor_sync(~0ull, i, 33) + (__activemask() >> i & 1);")
    assert done.buffers == [[(lane ^ 33) + 1 for lane in range(LANES)]]


def test_lds_is_64_kib_static_too(compiler: HostCompiler) -> None:
    body = "__shared__ int kept[{}]; kept[i] = i; __syncthreads(); y[i] = kept[i];"
    assert run(compiler, body.format(16384)).code == LaunchEnd.DONE
    refused = run(compiler, body.format(16385))
    assert refused.code == LaunchEnd.REFUSED
    assert "at most 65536 are possible" in refused.message


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = __builtin_amdgcn_mfma_f32_4x4x1f32(1.0f, 2.0f, 0, 0, 0, 0)[0];",
        'asm volatile("s_nop 0");',
    ],
)
def test_what_the_cpu_cannot_run_is_an_error_with_a_remedy(
    compiler: HostCompiler, body: str
) -> None:
    told = error(compiler, body)
    assert told.startswith("kernel.cu(5): error: ")
    assert "__CUDA_ON_HOST__" in told
