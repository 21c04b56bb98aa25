// out[t, i] = ACTIVATION(input[t, i]) * input[t, D + i]: bf16 in and out, fp32 inside, one rounding.
//
// The choices are those of the operator that SGLang compiles when it is first called: blocks of 256
// threads, one vector of 16 bytes a thread wherever it lies, and programmatic dependent launch.
#include <cuda_bf16.h>

#ifndef ACTIVATION
#define ACTIVATION silu
#endif

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

__device__ __forceinline__ float gelu(float x) {
  return 0.5f * x * erfcf(x * -0.70710678118654752f);
}

__device__ __forceinline__ float gelu_tanh(float x) {
  const float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.0f + __expf(-2.0f * inner));  // 0.5 (1 + tanh(y)) = 1 / (1 + exp(-2 y))
}

struct alignas(16) Vector {
  __nv_bfloat162 pairs[4];
};

extern "C" __global__ void silu_and_mul(__nv_bfloat16* out, const __nv_bfloat16* input, int T,
                                        int D) {
  const int per_row = D / 8;
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= T * per_row) return;
  const int row = index / per_row;
  const size_t first = static_cast<size_t>(row) * 2 * per_row + (index - row * per_row);
  asm volatile("griddepcontrol.wait;" ::: "memory");

  const Vector* vectors = reinterpret_cast<const Vector*>(input);
  const Vector gate = vectors[first];
  const Vector up = vectors[first + per_row];
  Vector result;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 a = __bfloat1622float2(gate.pairs[k]);
    const float2 b = __bfloat1622float2(up.pairs[k]);
    result.pairs[k] = __floats2bfloat162_rn(ACTIVATION(a.x) * b.x, ACTIVATION(a.y) * b.y);
  }
  reinterpret_cast<Vector*>(out)[index] = result;
}
