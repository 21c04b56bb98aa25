// out[t, i] = x[t, i] / sqrt(mean of x[t]^2 + eps) * w[i]: bf16 in and out, fp32 inside, one rounding.
//
// One block a row (grid = T); any H. The squares of a row must add up to less than the largest
// float.
#include <cuda_bf16.h>

constexpr int kBlockSize = 256;  // a power of two

// Adds up one value of each thread in `scratch`, and gives the sum to every thread.
__device__ float block_sum(float value, float* scratch) {
  const int thread = threadIdx.x;
  scratch[thread] = value;
  __syncthreads();
  for (int half = kBlockSize / 2; half > 0; half /= 2) {
    if (thread < half) scratch[thread] += scratch[thread + half];
    __syncthreads();
  }
  return scratch[0];
}

extern "C" __global__ void rmsnorm(__nv_bfloat16* __restrict__ out,
                                   const __nv_bfloat16* __restrict__ x,
                                   const __nv_bfloat16* __restrict__ w, float eps, int T, int H) {
  __shared__ float sums[kBlockSize];

  const size_t row = static_cast<size_t>(blockIdx.x) * H;
  const int thread = threadIdx.x;

  float squares = 0.0f;
  for (int i = thread; i < H; i += kBlockSize) {
    const float value = __bfloat162float(x[row + i]);
    squares += value * value;
  }
  const float scale = rsqrtf(block_sum(squares, sums) / H + eps);

  for (int i = thread; i < H; i += kBlockSize) {
    const float value = __bfloat162float(x[row + i]) * scale;
    out[row + i] = __float2bfloat16(value * __bfloat162float(w[i]));
  }
}
