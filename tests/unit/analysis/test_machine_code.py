"""Instructions counted from bits: as many as in the disassembler's text, and never a fault."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.analysis.sass import codes, disassemble
from tuner.analysis.static_features import OTHER, InstructionCounts, count_instructions
from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.pool import NvrtcPool

SOURCE = """\
#include <cuda_fp16.h>
#include <mma.h>
#include <cuda_pipeline.h>

template <class T>
__global__ void copy(T* __restrict__ out, const T* __restrict__ in) {
  out[threadIdx.x] = in[threadIdx.x];
}

extern "C" __global__ void arithmetic(float* o, const float* a, const int* b, double* d, half2* h) {
  const int i = threadIdx.x;
  const float x = a[i], y = b[i];
  float z = fmaf(x, y, __expf(x)) + x / y + sinf(y) + fminf(x, y) + rsqrtf(x) + floorf(y);
  int n = b[i] * b[i + 1] + (b[i] >> 3) + __popc(b[i + 2]) + max(b[i], 7) + b[i] / 9;
  o[i] = z + (float)n + (float)(b[i + 1] / b[i + 2]);
  d[i] = d[i] * d[i + 1] + sqrt(d[i + 2]) + (double)n;
  h[i] = __hfma2(h[i], h[i + 1], __float2half2_rn(3.0f)) + __hmax2(h[i], h[i + 2]);
}

extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* out, const float* in, int n) {
  float v[64] = {};
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
      v[i] += in[(k * 64 + i) * 1024 + threadIdx.x] * v[(i * 7 + 1) % 64];
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) out[i * 1024 + threadIdx.x] = v[i];
}

extern "C" __global__ void together(int* out, const int* in, int n) {
  __shared__ int part[1024];
  __shared__ float4 wide[64];
  part[threadIdx.x] = in[threadIdx.x];
  wide[threadIdx.x % 64].x = in[threadIdx.x];
  __syncthreads();
  for (int d = n; d > 0; d /= 2) {
    if (threadIdx.x < d) part[threadIdx.x] += part[threadIdx.x + d];
    __syncthreads();
  }
  int x = part[n] + __shfl_xor_sync(~0u, part[threadIdx.x], 1) + __ballot_sync(~0u, n > 3);
  atomicAdd(&part[n], x);
  x += atomicAdd(out, (int)wide[n].x) + __any_sync(~0u, x > n);
  __threadfence();
  int* either = n & 1 ? part : out;
  either[n] = x + __ldcs(in + n);
  if (x == 77) __nanosleep(100);
}

extern "C" __global__ void multiply(float* out, const half* a, const half* b) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> x;
  fragment<matrix_b, 16, 16, 16, half, col_major> y;
  fragment<accumulator, 16, 16, 16, float> sum;
  fill_fragment(sum, 0.0f);
  __shared__ half part[256];
  __pipeline_memcpy_async(part + 8 * threadIdx.x, a + 8 * threadIdx.x, 16);
  __pipeline_memcpy_async(part + 8 * threadIdx.x, a + 2 * threadIdx.x, 4);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  load_matrix_sync(x, part, 16);
  load_matrix_sync(y, b, 16);
  mma_sync(sum, x, y, sum);
  store_matrix_sync(out, sum, 16, mem_row_major);
}

__device__ __noinline__ double far(double x, int n) { return n > 0 ? far(x * x, n - 1) + x : x; }

extern "C" __global__ void calling(double* out, int n) { out[1] = far(out[0], n); }

#if __CUDA_ARCH__ >= 1000
extern "C" __global__ void widest(float* o, const float* a) {
  float v[8];
  asm volatile("ld.global.v8.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];"
    : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
    : "l"(a + 8 * threadIdx.x));
  asm volatile("st.global.v8.f32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8};"
    :: "l"(o + 8 * threadIdx.x), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]),
       "f"(v[6]), "f"(v[7]));
}
#endif

#if __CUDA_ARCH__ == 900
extern "C" __global__ void bulk(float* o, const float* a) {
  extern __shared__ __align__(128) float part[];
  __shared__ unsigned long long bar;
  const unsigned p = __cvta_generic_to_shared(part), b = __cvta_generic_to_shared(&bar);
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b));
  asm volatile("fence.proxy.async;");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1], 4096, [%2];" :: "r"(p), "l"(a), "r"(b));
  asm volatile("griddepcontrol.wait;");
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
               " {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(p + 64ull), "l"(p + 128ull));
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  o[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
#endif
"""
WIDTHS = {"char": 8, "short": 16, "int": 32, "float2": 64, "float4": 128}
KERNELS = (
    *(f"copy<{name}>" for name in WIDTHS),
    "arithmetic",
    "spill",
    "together",
    "multiply",
    "calling",
)
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
ONLY_ON = {"sm_90a": ("bulk",), "sm_100a": ("widest",), "sm_103a": ("widest",)}

Compile = Callable[[str], CompileResult]


@pytest.fixture(scope="module")
def compile_for(compiler: NvrtcPool) -> Compile:
    """Compile all kernels for one architecture, once."""
    requests = {
        name: CompileRequest(SOURCE, (*KERNELS, *ONLY_ON.get(name, ())), name)
        for name in ARCHITECTURES
    }
    futures = {name: compiler.submit(request) for name, request in requests.items()}

    def compiled(architecture: str) -> CompileResult:
        result = futures[architecture].result(120)
        assert result.ok, result.error
        return result

    return compiled


@pytest.fixture(scope="module")
def hopper(compile_for: Compile) -> CompileResult:
    return compile_for("sm_90a")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bits_and_text_give_equal_counts(compile_for: Compile, architecture: str) -> None:
    result = compile_for(architecture)
    for code in codes(disassemble(result.cubin), result.lowered, ()):
        counted = count_instructions(result.cubin, result.lowered[code.kernel])
        assert counted.mix == code.mix, code.kernel
        assert counted.load_bits == code.load_bits, code.kernel
        assert counted.store_bits == code.store_bits, code.kernel
        assert counted.instructions == code.instructions > 0


@pytest.mark.parametrize(("architecture", "type_name"), [*product(("sm_75", "sm_120a"), WIDTHS)])
def test_the_width_of_an_access(compile_for: Compile, architecture: str, type_name: str) -> None:
    result = compile_for(architecture)
    counted = count_instructions(result.cubin, result.lowered[f"copy<{type_name}>"])
    assert counted.load_bits == counted.store_bits == {WIDTHS[type_name]: 1}


def test_blackwell_reads_256_bits_at_once(compile_for: Compile) -> None:
    counted = count_instructions(compile_for("sm_100a").cubin, "widest")
    assert counted.load_bits == counted.store_bits == {256: 1}


def test_opcodes_without_a_class_are_other(hopper: CompileResult) -> None:
    start = hopper.cubin.index(code_of(hopper, "spill"))
    unknown = struct.pack("<QQ", 0x7000, 0) * 4
    changed = hopper.cubin[:start] + unknown + hopper.cubin[start + len(unknown) :]
    assert count_instructions(changed, "spill").mix[OTHER] == 4


def test_what_never_runs_is_left_out(hopper: CompileResult) -> None:
    code = code_of(hopper, "spill")
    never = code.replace(code[:16], struct.pack("<Q", 0xF000 | code[0] | code[1] << 8) + code[8:16])
    counts = [
        count_instructions(cubin, "spill").instructions
        for cubin in (hopper.cubin, hopper.cubin.replace(code, never))
    ]
    assert counts[1] == counts[0] - 1


@pytest.mark.parametrize(
    ("cubin", "symbol"),
    [
        (b"", "spill"),
        (b"\x7fELF\x02\x01", "spill"),
        (b"\x7fELF\x02\x01" + bytes(200), "spill"),
        (b"#!/bin/sh\n" * 100, "spill"),
    ],
)
def test_no_cubin_has_no_instructions(cubin: bytes, symbol: str) -> None:
    assert count_instructions(cubin, symbol) == InstructionCounts()


@pytest.mark.parametrize("symbol", ["", "spil", "spill2", "spill\0", "\udc80", "no_such"])
def test_an_unknown_symbol_has_none(hopper: CompileResult, symbol: str) -> None:
    assert count_instructions(hopper.cubin, symbol) == InstructionCounts()


def test_earlier_architectures_and_processors_have_none(hopper: CompileResult) -> None:
    for flags in (0, 60 << 8):
        other = hopper.cubin[:48] + struct.pack("<I", flags) + hopper.cubin[52:]
        assert count_instructions(other, "spill") == InstructionCounts()


def test_a_cubin_that_is_cut_short_never_raises(hopper: CompileResult) -> None:
    whole = count_instructions(hopper.cubin, "spill").instructions
    for length in range(0, len(hopper.cubin), 97):
        assert count_instructions(hopper.cubin[:length], "spill").instructions <= whole


def test_damaged_headers_never_raise(hopper: CompileResult) -> None:
    drawn = random.Random(0)  # noqa: S311 - no secret
    table = struct.unpack_from("<Q", hopper.cubin, 40)[0]
    for _ in range(500):
        damaged = bytearray(hopper.cubin)
        for _ in range(drawn.randrange(1, 9)):
            place = drawn.choice([drawn.randrange(6, 64), drawn.randrange(table, len(damaged))])
            damaged[place] = drawn.choice([0, 0xFF, drawn.randrange(256)])
        count_instructions(bytes(damaged), "spill")


@given(st.binary(min_size=58, max_size=400))
def test_random_bytes_behind_the_magic_never_raise(content: bytes) -> None:
    count_instructions(b"\x7fELF\x02\x01" + content, "spill")


def code_of(result: CompileResult, symbol: str) -> bytes:
    """The bytes of a kernel: found by the section's name, as `readelf` would."""
    cubin = result.cubin
    (table,) = struct.unpack_from("<Q", cubin, 40)
    count, names = struct.unpack_from("<HH", cubin, 60)
    headers = [struct.unpack_from("<II8xQQQ", cubin, table + 64 * k) for k in range(count)]
    texts = headers[names][3]
    (found,) = (
        cubin[offset : offset + size]
        for name, _, _, offset, size in headers
        if cubin[texts + name :].startswith(b".text." + symbol.encode() + b"\0")
    )
    return found
