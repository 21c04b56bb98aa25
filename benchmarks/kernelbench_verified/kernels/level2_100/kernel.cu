// A kernel for bias_clamp_div.py: out [batch_size, n128, n47, n95, n95] from conv_transpose3d [batch_size, n128, n47, n95, n95], bias [n128, 1, 1, 1], row-major.
#define BLOCK_SIZE 256

// A block takes BLOCK_SIZE neighbouring elements of one (batch, channel) volume, one element a thread:
// the channel is found once from blockIdx.x, with no division in 64 bits per element.
__global__ void bias_clamp_div_kernel(const float* __restrict__ conv_transpose3d, const float* __restrict__ bias, float* __restrict__ out, int batch_size, int n128, int n47, int n95) {
  const unsigned volume = (unsigned)n47 * (unsigned)n95 * (unsigned)n95;
  const unsigned chunks = (volume + BLOCK_SIZE - 1) / BLOCK_SIZE;
  const unsigned row = blockIdx.x / chunks;  // batch * n128 + channel
  const unsigned j = (blockIdx.x - row * chunks) * BLOCK_SIZE + threadIdx.x;
  if (j >= volume) return;
  const long long i = (long long)row * volume + j;
  const float v = conv_transpose3d[i] + bias[row % (unsigned)n128];
  // a comparison rather than fmaxf, so that a NaN stays a NaN as in torch.clamp; * 0.5f is exact
  out[i] = (v < -1.0f ? -1.0f : v) * 0.5f;
}

void launch(const float* __restrict__ conv_transpose3d, const float* __restrict__ bias, float* __restrict__ out, int batch_size, int n128, int n47, int n95) {
  const int chunks = (n47 * n95 * n95 + BLOCK_SIZE - 1) / BLOCK_SIZE;
  const int blocks = batch_size * n128 * chunks;
  bias_clamp_div_kernel<<<blocks, BLOCK_SIZE>>>(conv_transpose3d, bias, out, batch_size, n128, n47, n95);
}
