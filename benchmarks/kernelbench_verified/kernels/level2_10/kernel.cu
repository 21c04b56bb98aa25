// A kernel for bias_max_pool2d_tanh.py: out [batch_size, n64, 1, 1] from conv_transpose2d [batch_size, n64, height, height], bias [n64, 1, 1], row-major.
// One block a plane (image and channel), one warp a pooled row, one pooled element a lane at a time.
#include <cuda_runtime.h>

#define BLOCK_SIZE 256  // a multiple of 32, up to 1024

// The larger of the two; NaN wins, as in torch's max_pool2d.
__device__ __forceinline__ float larger(float m, float v) {
  return (v > m || v != v) ? v : m;
}

__global__ void bias_max_pool2d_tanh_kernel(const float* __restrict__ conv_transpose2d, const float* __restrict__ bias, float* __restrict__ out, int batch_size, int height, int n64) {
  __shared__ float partial[BLOCK_SIZE / 32];
  const int plane = blockIdx.x;
  if (plane >= batch_size * n64) return;  // the same for the whole block
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int pooled = height / 2;  // a last odd row or column is left out
  const float b = bias[plane % n64];
  const float* x = conv_transpose2d + (long long)plane * height * height;

  float sum = 0.0f;
  for (int r = warp; r < pooled; r += BLOCK_SIZE / 32) {
    const float* top = x + (long long)(2 * r) * height;
    const float* bottom = top + height;
    for (int c = lane; c < pooled; c += 32) {
      float m = top[2 * c] + b;
      m = larger(m, top[2 * c + 1] + b);
      m = larger(m, bottom[2 * c] + b);
      m = larger(m, bottom[2 * c + 1] + b);
      // hardtanh; NaN stays NaN
      m = m < -1.0f ? -1.0f : (m > 1.0f ? 1.0f : m);
      sum += m;
    }
  }

  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, offset);
  }
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (int w = 0; w < BLOCK_SIZE / 32; ++w) total += partial[w];
    out[plane] = tanhf(total / ((float)pooled * (float)pooled));
  }
}

void launch(const float* __restrict__ conv_transpose2d, const float* __restrict__ bias, float* __restrict__ out, int batch_size, int height, int n64) {
  const int blocks = batch_size * n64;
  bias_max_pool2d_tanh_kernel<<<blocks, BLOCK_SIZE>>>(conv_transpose2d, bias, out, batch_size, height, n64);
}
