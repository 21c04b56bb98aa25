#include <cuda_runtime.h>

// A kernel for level2_30.py: out [batch_size, out_features] from x [batch_size, in_features], gemm_weight [out_features, in_features], gemm_bias [out_features], group_norm_weight [out_features], group_norm_bias [out_features], row-major.
// One block for each (row, group), whose outputs lie side by side: each warp of it computes one
// product after another and writes it to out, the block takes the mean and then the variance of
// what it wrote, and norms it in place. The rows of one group follow each other, so that its part of
// the weights is read again soon.
#define BLOCK_SIZE 256
#define GROUPS 16

__global__ void level2_30_kernel(const float* __restrict__ x, const float* __restrict__ gemm_weight, const float* __restrict__ gemm_bias, const float* __restrict__ group_norm_weight, const float* __restrict__ group_norm_bias, float* __restrict__ out, int batch_size, int in_features, int out_features) {
  __shared__ double sums[BLOCK_SIZE];
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const long long row = blockIdx.x % batch_size;
  const int group = blockIdx.x / batch_size;
  const int size = out_features / GROUPS;
  const int first = group * size;
  const float* xr = x + row * in_features;
  float* y = out + row * out_features + first;

  for (int j = warp; j < size; j += BLOCK_SIZE / 32) {
    const float* w = gemm_weight + (long long)(first + j) * in_features;
    float v = 0.0f;
    for (int k = lane; k < in_features; k += 32) v += xr[k] * w[k];
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffffu, v, offset);
    if (lane == 0) y[j] = v + gemm_bias[first + j];
  }
  __syncthreads();

  double sum = 0.0;
  for (int j = tid; j < size; j += BLOCK_SIZE) sum += y[j];
  sums[tid] = sum;
  __syncthreads();
  for (int count = BLOCK_SIZE; count > 1;) {
    const int half = (count + 1) / 2;
    if (tid < count / 2) sums[tid] += sums[tid + half];
    __syncthreads();
    count = half;
  }
  const float mean = (float)(sums[0] / size);
  __syncthreads();  // all have read sums[0] before it is written again

  double squares = 0.0;
  for (int j = tid; j < size; j += BLOCK_SIZE) {
    const double d = (double)y[j] - mean;
    squares += d * d;
  }
  sums[tid] = squares;
  __syncthreads();
  for (int count = BLOCK_SIZE; count > 1;) {
    const int half = (count + 1) / 2;
    if (tid < count / 2) sums[tid] += sums[tid + half];
    __syncthreads();
    count = half;
  }
  const float scale = (float)(1.0 / sqrt(sums[0] / size + 1e-5));

  for (int j = tid; j < size; j += BLOCK_SIZE) {
    float v = (y[j] - mean) * scale * group_norm_weight[first + j] + group_norm_bias[first + j];
    if (v < -2.0f) v = -2.0f;
    if (v > 2.0f) v = 2.0f;
    y[j] = v;
  }
}

void launch(const float* __restrict__ x, const float* __restrict__ gemm_weight, const float* __restrict__ gemm_bias, const float* __restrict__ group_norm_weight, const float* __restrict__ group_norm_bias, float* __restrict__ out, int batch_size, int in_features, int out_features) {
  const int blocks = batch_size * GROUPS;
  level2_30_kernel<<<blocks, BLOCK_SIZE>>>(x, gemm_weight, gemm_bias, group_norm_weight, group_norm_bias, out, batch_size, in_features, out_features);
}
