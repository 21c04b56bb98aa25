"""A plain kernel for silu_and_mul, with places to spoil it."""

from __future__ import annotations

from tuner.model.kernel import Launch, Workload

WORKLOAD = Workload.of({"T": 16, "D": 1024})
LAUNCH = Launch("silu_and_mul", (16, 1, 1), (256, 1, 1))

_SOURCE = """\
#include <cuda_bf16.h>

__device__ int launches_so_far;

extern "C" __global__ void silu_and_mul(__nv_bfloat16* out, const __nv_bfloat16* input, int T,
                                        int D) {
  const long long count = static_cast<long long>(T) * D;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long thread = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  BEFORE
  for (long long i = thread; i < count; i += stride) {
    const __nv_bfloat16* row = input + i / D * 2 * D;
    const float gate = __bfloat162float(row[i % D]);
    const float up = __bfloat162float(row[D + i % D]);
    float result = gate / (1.0f + __expf(-gate)) * up;
    EACH
    out[i] = __float2bfloat16(result);
  }
  AFTER
}
"""


def silu(*, before: str = "", each: str = "", after: str = "") -> str:
    """Write the kernel with statements before, in and after its loop."""
    return _SOURCE.replace("BEFORE", before).replace("EACH", each).replace("AFTER", after)


# One kernel in two launches: each writes every second element.
ODD = silu(each="if (i % 2 == 0) continue;").replace("silu_and_mul", "odd")
EVEN_AND_ODD = silu(each="if (i % 2 == 1) continue;") + ODD.replace("launches_so_far", "unused")
