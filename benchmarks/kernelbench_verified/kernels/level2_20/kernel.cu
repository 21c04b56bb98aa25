// A kernel for bias_add_mul.py: out [batch_size, n64, n32, n64, n64] from conv_transpose3d [batch_size, n64, n32, n64, n64], bias [n64, 1, 1, 1], bias_2 [n64, 1, 1, 1], row-major.
// One element a thread. A block stays within one plane (one batch and channel), so that its channel
// and its two biases are found from the block's number, without a 64-bit division.
#define BLOCK_SIZE 256

__global__ void bias_add_mul_kernel(const float* __restrict__ conv_transpose3d, const float* __restrict__ bias, const float* __restrict__ bias_2, float* __restrict__ out, int batch_size, int n64, int n32) {
  const int plane_size = n32 * n64 * n64;
  const int chunks = (plane_size + BLOCK_SIZE - 1) / BLOCK_SIZE;  // blocks a plane
  const int plane = blockIdx.x / chunks;
  const int j = (blockIdx.x - plane * chunks) * BLOCK_SIZE + threadIdx.x;
  if (plane >= batch_size * n64 || j >= plane_size) return;
  const int channel = plane % n64;
  const long long i = (long long)plane * plane_size + j;
  const float t = conv_transpose3d[i] + bias[channel];
  out[i] = ((t + bias_2[channel]) + t) * t + t;
}

void launch(const float* __restrict__ conv_transpose3d, const float* __restrict__ bias, const float* __restrict__ bias_2, float* __restrict__ out, int batch_size, int n64, int n32) {
  const int chunks = (n32 * n64 * n64 + BLOCK_SIZE - 1) / BLOCK_SIZE;
  const int blocks = batch_size * n64 * chunks;
  bias_add_mul_kernel<<<blocks, BLOCK_SIZE>>>(conv_transpose3d, bias, bias_2, out, batch_size, n64, n32);
}
