// out[t, i] = ACTIVATION(input[t, i]) * input[t, D + i]: bf16 in and out, fp32 inside, one rounding.
//
// The launch choices are those of SGLang's prebuilt operator: one block a row (grid = T),
// min(D / 8, 1024) threads, 16 bytes an access, and a loop over the row that is not unrolled.
#include <cuda_bf16.h>

#ifndef ACTIVATION
#define ACTIVATION silu
#endif

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

__device__ __forceinline__ float gelu(float x) {
  return 0.5f * x * erfcf(x * -0.70710678118654752f);
}

__device__ __forceinline__ float gelu_tanh(float x) {
  const float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return x / (1.0f + __expf(-2.0f * inner));  // 0.5 (1 + tanh(y)) = 1 / (1 + exp(-2 y))
}

struct alignas(16) Vector {
  __nv_bfloat162 pairs[4];
};

extern "C" __global__ void silu_and_mul(__nv_bfloat16* __restrict__ out,
                                        const __nv_bfloat16* __restrict__ input, int T, int D) {
  const size_t row = blockIdx.x;
  const Vector* gate = reinterpret_cast<const Vector*>(input + row * 2 * D);
  const Vector* up = reinterpret_cast<const Vector*>(input + row * 2 * D + D);
  Vector* result = reinterpret_cast<Vector*>(out + row * D);

#pragma unroll 1
  for (int i = threadIdx.x; i < D / 8; i += blockDim.x) {
    const Vector g = gate[i];
    const Vector u = up[i];
    Vector r;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 a = __bfloat1622float2(g.pairs[k]);
      const float2 b = __bfloat1622float2(u.pairs[k]);
      r.pairs[k] = __floats2bfloat162_rn(ACTIVATION(a.x) * b.x, ACTIVATION(a.y) * b.y);
    }
    result[i] = r;
  }
}
