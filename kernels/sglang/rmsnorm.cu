// out[t, i] = x[t, i] / sqrt(mean of x[t]^2 + eps) * w[i]: bf16 in and out, fp32 inside, one
// rounding. With GEMMA the weights are 1 + w[i].
//
// Any H. The squares of a row must add up to less than the largest float.
//
// The algorithm and the launch choices are those of FlashInfer, which SGLang calls: one block a row
// (grid = T), a thread for each 16 bytes of it up to 1024, shuffles and one exchange in shared
// memory for the sum, and a second pass that reads the row again.
#include <cuda_bf16.h>

#ifndef GEMMA
#define GEMMA false
#endif

constexpr int kWarp = 32;
constexpr int kMaxWarps = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr float kBias = GEMMA ? 1.0f : 0.0f;

template <int kSize>
struct alignas(2 * kSize) Vector {
  __nv_bfloat16 values[kSize];
};

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

// Adds up one value of each thread, and gives the sum to every thread.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  value = warp_sum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  if (warp == 0) {
    const float total = warp_sum(lane < blockDim.x / kWarp ? scratch[lane] : 0.0f);
    if (lane == 0) scratch[0] = total;
  }
  __syncthreads();
  return scratch[0];
}

template <int kSize>
__device__ __forceinline__ void normalize(__nv_bfloat16* out, const __nv_bfloat16* x,
                                          const __nv_bfloat16* w, float eps, int H,
                                          float* scratch) {
  using V = Vector<kSize>;
  const V* row = reinterpret_cast<const V*>(x);
  const V* weights = reinterpret_cast<const V*>(w);
  V* result = reinterpret_cast<V*>(out);

  float squares = 0.0f;
  for (int i = threadIdx.x; i < H / kSize; i += blockDim.x) {
    const V v = row[i];
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float value = __bfloat162float(v.values[k]);
      squares += value * value;
    }
  }
  const float scale = rsqrtf(block_sum(squares, scratch) / H + eps);

  for (int i = threadIdx.x; i < H / kSize; i += blockDim.x) {
    const V v = row[i];
    const V by = weights[i];
    V r;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float value = __bfloat162float(v.values[k]) * scale;
      r.values[k] = __float2bfloat16(value * (kBias + __bfloat162float(by.values[k])));
    }
    result[i] = r;
  }
}

extern "C" __global__ void rmsnorm(__nv_bfloat16* __restrict__ out,
                                   const __nv_bfloat16* __restrict__ x,
                                   const __nv_bfloat16* __restrict__ w, float eps, int T, int H) {
  __shared__ float sums[kMaxWarps];

  const size_t row = static_cast<size_t>(blockIdx.x) * H;
  if (H % 8 == 0) {
    normalize<8>(out + row, x + row, w, eps, H, sums);
  } else {  // rows that don't start at a multiple of 16 bytes
    normalize<1>(out + row, x + row, w, eps, H, sums);
  }
}
