// The gradients of a layer norm's weights and bias: for each of H columns the sums over T rows of
// dy * (x - mean) * rstd and of dy. bf16 in, fp32 inside and out.
//
// A block has 32 columns, and 16 rows at a time; no block shares its columns with another.
#include <cuda_bf16.h>

constexpr int kColumns = 32;
constexpr int kRows = 16;

extern "C" __global__ void __launch_bounds__(kColumns * kRows)
    sum_columns(float* dweight, float* dbias, float* partials, const __nv_bfloat16* dy,
                const __nv_bfloat16* x, const float* mean, const float* rstd, int T, int H) {
  __shared__ float weights[kRows][kColumns];
  __shared__ float biases[kRows][kColumns];
  const int column = blockIdx.x * kColumns + threadIdx.x;
  float weight = 0.0f, bias = 0.0f;
  if (column < H) {
    for (int row = threadIdx.y; row < T; row += kRows) {
      const size_t at = static_cast<size_t>(row) * H + column;
      const float slope = __bfloat162float(dy[at]);
      weight += slope * (__bfloat162float(x[at]) - mean[row]) * rstd[row];
      bias += slope;
    }
  }
  weights[threadIdx.y][threadIdx.x] = weight;
  biases[threadIdx.y][threadIdx.x] = bias;
  __syncthreads();
  if (threadIdx.y > 0 || column >= H) return;
  for (int row = 1; row < kRows; ++row) {
    weight += weights[row][threadIdx.x];
    bias += biases[row][threadIdx.x];
  }
  dweight[column] = weight;
  dbias[column] = bias;
}
