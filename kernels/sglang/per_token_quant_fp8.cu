// Each row of x[T, K] as fp8 (e4m3) with a scale of its own: scale[t] is the largest |x[t, k]| over
// 448, the largest fp8, and q[t, k] is x[t, k] / scale[t], rounded to nearest even. bf16 in.
//
// A row of zeros has scale 0 and codes of 0. x is finite, and so is 448 over the largest of any
// other row. K is a multiple of 8.
//
// The launch choices are those of SGLang's JIT operator: 256 threads, 16 bytes a load, and the row
// is read twice. A block has one row; from 16 rows a multiprocessor on it has 8, one for each warp.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

constexpr int kBlockSize = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kBlockSize / kWarp;
constexpr int kElements = 8;  // of a vector
constexpr float kLargest = 448.0f;

struct alignas(16) Vector {
  __nv_bfloat162 pairs[kElements / 2];
};

struct alignas(8) Codes {
  __nv_fp8x2_storage_t pairs[kElements / 2];
};

// The largest |x| in every stride-th vector of a row.
__device__ __forceinline__ float largest_of(const Vector* row, int count, int first, int stride) {
  float largest = 0.0f;
  for (int i = first; i < count; i += stride) {
    const Vector x = row[i];
#pragma unroll
    for (int k = 0; k < kElements / 2; ++k) {
      const float2 pair = __bfloat1622float2(x.pairs[k]);
      largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
  }
  return largest;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

__device__ __forceinline__ void quantize(Codes* codes, const Vector* row, float step, int count,
                                         int first, int stride) {
  const float factor = step > 0.0f ? 1.0f / step : 0.0f;
  for (int i = first; i < count; i += stride) {
    const Vector x = row[i];
    Codes result;
#pragma unroll
    for (int k = 0; k < kElements / 2; ++k) {
      const float2 pair = __bfloat1622float2(x.pairs[k]);
      const float2 scaled = make_float2(pair.x * factor, pair.y * factor);
      result.pairs[k] = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
    }
    codes[i] = result;
  }
}

// grid = T
extern "C" __global__ void per_token_quant_fp8_block(__nv_fp8_e4m3* __restrict__ q,
                                                     float* __restrict__ scale,
                                                     const __nv_bfloat16* __restrict__ x, int T,
                                                     int K) {
  __shared__ float maxima[kWarps];

  const int thread = threadIdx.x;
  const int lane = thread % kWarp;
  const size_t start = static_cast<size_t>(blockIdx.x) * K;
  const Vector* row = reinterpret_cast<const Vector*>(x + start);

  float largest = warp_max(largest_of(row, K / kElements, thread, kBlockSize));
  if (lane == 0) maxima[thread / kWarp] = largest;
  __syncthreads();
  largest = warp_max(lane < kWarps ? maxima[lane] : 0.0f);

  const float step = largest / kLargest;
  if (thread == 0) scale[blockIdx.x] = step;
  quantize(reinterpret_cast<Codes*>(q + start), row, step, K / kElements, thread, kBlockSize);
}

// grid = ceil(T / 8)
extern "C" __global__ void per_token_quant_fp8_warp(__nv_fp8_e4m3* __restrict__ q,
                                                    float* __restrict__ scale,
                                                    const __nv_bfloat16* __restrict__ x, int T,
                                                    int K) {
  const int lane = threadIdx.x % kWarp;
  const int token = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (token >= T) return;
  const size_t start = static_cast<size_t>(token) * K;
  const Vector* row = reinterpret_cast<const Vector*>(x + start);

  const float step = warp_max(largest_of(row, K / kElements, lane, kWarp)) / kLargest;
  if (lane == 0) scale[token] = step;
  quantize(reinterpret_cast<Codes*>(q + start), row, step, K / kElements, lane, kWarp);
}
