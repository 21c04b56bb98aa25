// Each row of x[T, K] as fp8 (e4m3) with a scale of its own: scale[t] is the largest |x[t, k]| over
// 448, the largest fp8, and q[t, k] is x[t, k] / scale[t], rounded to nearest even. bf16 in.
//
// A row of zeros has scale 0 and codes of 0. x is finite, and so is 448 over the largest of any
// other row. One block a row (grid = T); any K.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

constexpr int kBlockSize = 256;  // a power of two
constexpr float kLargest = 448.0f;

// Finds the largest of one value of each thread in `scratch`, and gives it to every thread.
__device__ float block_max(float value, float* scratch) {
  const int thread = threadIdx.x;
  scratch[thread] = value;
  __syncthreads();
  for (int half = kBlockSize / 2; half > 0; half /= 2) {
    if (thread < half) scratch[thread] = fmaxf(scratch[thread], scratch[thread + half]);
    __syncthreads();
  }
  return scratch[0];
}

extern "C" __global__ void per_token_quant_fp8(__nv_fp8_e4m3* __restrict__ q,
                                               float* __restrict__ scale,
                                               const __nv_bfloat16* __restrict__ x, int T, int K) {
  __shared__ float maxima[kBlockSize];

  const size_t row = static_cast<size_t>(blockIdx.x) * K;
  const int thread = threadIdx.x;

  float largest = 0.0f;
  for (int k = thread; k < K; k += kBlockSize) {
    largest = fmaxf(largest, fabsf(__bfloat162float(x[row + k])));
  }
  const float step = block_max(largest, maxima) / kLargest;
  if (thread == 0) scale[blockIdx.x] = step;

  for (int k = thread; k < K; k += kBlockSize) {
    const float value = step > 0.0f ? __bfloat162float(x[row + k]) / step : 0.0f;
    q[row + k] = __nv_fp8_e4m3(value);
  }
}
