"""Which mutants change nothing, as far as the source tells."""

from __future__ import annotations

import pytest

from tuner.compiler.base import CompileRequest
from tuner.compiler.pool import NvrtcPool
from tuner.extensions.study.mutation.mutants import all_mutants, changes_nothing, is_same_code
from tuner.source import parse_source

KERNEL = """\
#include <cuda_bf16.h>
__global__ void f(float* out, const __nv_bfloat16* in, int N) {
  const int i = threadIdx.x;
  float sum = 0.0f, other = 0.0f;
  if (i > 0) sum += __bfloat162float(in[i - 1]);
  sum += 1.5f;
  for (int k = 0; k < N; ++k) other += sum;
  const float read = __bfloat162float(in[static_cast<size_t>(i) * N]);
  const long long packed = static_cast<long long>(i) << 32;
  const float least = -INFINITY;
  out[i] = fmaxf(sum + other + read + packed, least);
}
"""


@pytest.fixture
def told(tmp_path):
    source = parse_source(KERNEL, tmp_path / "f.cu")

    def tell(largest_bytes: int = 1 << 20) -> list[tuple[int, str]]:
        return [
            (one.line, one.identity.operator)
            for one in all_mutants(source)
            if changes_nothing(one, source, largest_bytes)
        ]

    return tell


def test_first_additions_to_zero_wide_indices_and_repeated_roundings_change_nothing(told) -> None:
    assert told() == [(5, "compound"), (8, "narrowed"), (8, "cast"), (10, "narrowed")]


def test_beyond_two_to_the_31_an_index_needs_its_64_bits(told) -> None:
    assert told(1 << 31) == [(5, "compound"), (8, "narrowed"), (10, "narrowed")]


NAMED_BY_UNIT = """\
#include <cuda_bf16.h>
static __device__ float twice(float x) {{ return 2 * x; }}
template <float (*change)(float)>
__global__ void g(float* out, const __nv_bfloat16* in) {{ out[0] = change({}); }}
"""


def test_the_hash_in_the_names_of_a_unit_is_no_other_code() -> None:
    texts = "static_cast<float>(in[0])", "(in[0])", "static_cast<float>(in[1])"
    cubins = []
    for text in texts:
        request = CompileRequest(NAMED_BY_UNIT.format(text), ("g<twice>",), "sm_90a")
        with NvrtcPool(1) as pool:  # in a process of its own
            cubins.append(pool.submit(request).result().cubin)
    one, same, other = cubins
    assert one != same
    assert is_same_code(one, same)
    assert not is_same_code(one, other)
