// In place: residual = x + residual, and x = sum / sqrt(mean of sum^2 + eps) * w, where sum is
// x + residual in fp32. bf16 in and out. With GEMMA the weights are 1 + w.
//
// What is normalized is the sum itself, as in FlashInfer and in SGLang's PyTorch fallback. With
// ROUNDED it is the new residual, that is the sum rounded to bf16, as in SGLang's own JIT kernel.
// The squares are those of the sum in both.
//
// H % 8 == 0. The squares of a row of sums must add up to less than the largest float.
//
// The algorithm and the launch choices are those of FlashInfer, which SGLang calls: one block a row
// (grid = T), a thread for each 16 bytes of it up to 1024, shuffles and one exchange in shared
// memory for the sum of squares, and a second pass over the sums, which wait in shared memory.
#include <cuda_bf16.h>

#ifndef GEMMA
#define GEMMA false
#endif
#ifndef ROUNDED
#define ROUNDED false
#endif

constexpr int kWarp = 32;
constexpr int kMaxWarps = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kSize = 8;
constexpr float kBias = GEMMA ? 1.0f : 0.0f;

struct alignas(16) Vector {
  __nv_bfloat16 values[kSize];
};

struct alignas(16) Sums {
  float values[kSize];
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

extern "C" __global__ void fused_add_rmsnorm(__nv_bfloat16* __restrict__ x,
                                             __nv_bfloat16* __restrict__ residual,
                                             const __nv_bfloat16* __restrict__ w, float eps, int T,
                                             int H) {
  extern __shared__ float4 row_of_sums[];
  __shared__ float partial[kMaxWarps];

  const size_t row = static_cast<size_t>(blockIdx.x) * H;
  Sums* sums = reinterpret_cast<Sums*>(row_of_sums);
  Vector* row_x = reinterpret_cast<Vector*>(x + row);
  Vector* row_residual = reinterpret_cast<Vector*>(residual + row);
  const Vector* weights = reinterpret_cast<const Vector*>(w);

  float squares = 0.0f;
  for (int i = threadIdx.x; i < H / kSize; i += blockDim.x) {
    const Vector a = row_x[i];
    const Vector b = row_residual[i];
    Vector stored;
    Sums kept;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float sum = __bfloat162float(a.values[k]) + __bfloat162float(b.values[k]);
      squares += sum * sum;
      stored.values[k] = __float2bfloat16(sum);
      kept.values[k] = ROUNDED ? __bfloat162float(stored.values[k]) : sum;
    }
    row_residual[i] = stored;
    sums[i] = kept;
  }
  const float scale = rsqrtf(block_sum(squares, partial) / H + eps);

  for (int i = threadIdx.x; i < H / kSize; i += blockDim.x) {
    const Sums kept = sums[i];
    const Vector by = weights[i];
    Vector r;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float value = kept.values[k] * scale;
      r.values[k] = __float2bfloat16(value * (kBias + __bfloat162float(by.values[k])));
    }
    row_x[i] = r;
  }
}
