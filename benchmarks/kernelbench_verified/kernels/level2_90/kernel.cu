// A kernel for bias_leaky_relu_gelu.py: out [batch_size, n64, n14, n62, n62] from conv3d [batch_size, n64, n14, n62, n62], bias [n64, 1, 1, 1], sum_tensor [n64, 1, 1, 1], row-major.
// One element a thread. A block lies within one plane (one sample and channel), so the channel is found once a block.
#define BLOCK_SIZE 256

__global__ void bias_leaky_relu_gelu_kernel(const float* __restrict__ conv3d, const float* __restrict__ bias, const float* __restrict__ sum_tensor, float* __restrict__ out, int batch_size, int n64, int n14, int n62) {
  const long long plane_size = (long long)n14 * n62 * n62;
  const unsigned int chunks = (unsigned int)((plane_size + BLOCK_SIZE - 1) / BLOCK_SIZE);  // blocks a plane
  const unsigned int plane = blockIdx.x / chunks;
  const unsigned int chunk = blockIdx.x - plane * chunks;
  const long long at = (long long)chunk * BLOCK_SIZE + threadIdx.x;
  if (plane >= (long long)batch_size * n64 || at >= plane_size) return;
  const unsigned int channel = plane % (unsigned int)n64;
  const long long i = plane * plane_size + at;

  float v = conv3d[i] + bias[channel];
  v = v > 0.0f ? v : 0.2f * v;
  v += sum_tensor[channel];
  v = v < -1.0f ? -1.0f : (v > 1.0f ? 1.0f : v);  // a NaN stays one
  out[i] = 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
}

void launch(const float* __restrict__ conv3d, const float* __restrict__ bias, const float* __restrict__ sum_tensor, float* __restrict__ out, int batch_size, int n64, int n14, int n62) {
  const long long chunks = ((long long)n14 * n62 * n62 + BLOCK_SIZE - 1) / BLOCK_SIZE;
  const int blocks = (long long)batch_size * n64 * chunks;
  bias_leaky_relu_gelu_kernel<<<blocks, BLOCK_SIZE>>>(conv3d, bias, sum_tensor, out, batch_size, n64, n14, n62);
}
