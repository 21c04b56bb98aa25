"""Which mutants change nothing, as far as the source tells."""

from __future__ import annotations

import pytest

from tuner.extensions.study.mutation.mutants import all_mutants
from tuner.extensions.study.mutation.told import changes_nothing
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
  out[i] = sum + other + read + packed;
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
    assert told() == [(5, "compound"), (8, "narrowed"), (8, "cast")]


def test_beyond_two_to_the_31_an_index_needs_its_64_bits(told) -> None:
    assert told(1 << 31) == [(5, "compound"), (8, "narrowed")]
