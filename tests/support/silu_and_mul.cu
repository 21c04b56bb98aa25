#include <cuda_bf16.h>

__device__ int launches_so_far;

extern "C" __global__ void silu_and_mul(__nv_bfloat16* out, const __nv_bfloat16* input, int T,
                                        int D) {
  const long long count = static_cast<long long>(T) * D;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long thread = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  $before
  for (long long i = thread; i < count; i += stride) {
    const __nv_bfloat16* row = input + i / D * 2 * D;
    const float gate = __bfloat162float(row[i % D]);
    const float up = __bfloat162float(row[D + i % D]);
    float result = gate / (1.0f + __expf(-gate)) * up;
    $each
    out[i] = __float2bfloat16(result);
  }
  $after
}
