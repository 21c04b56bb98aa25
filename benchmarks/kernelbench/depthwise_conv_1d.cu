#define BLOCK_SIZE 256

__global__ void depthwise_conv_1d_kernel(const float* __restrict__ x, const float* __restrict__ conv_weight, float* __restrict__ out,
    int batch_size, int channels, int length) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * channels * length) return;
  const int place = i % length, channel = i / length % channels;
  float sum = 0.0f;
  for (int tap = 0; tap < 4; ++tap)
    if (place + tap >= 3) sum += x[i + tap - 3] * conv_weight[channel * 4 + tap];
  out[i] = sum;
}

void launch(const float* x, const float* conv_weight, float* out,
    int batch_size, int channels, int length) {
  depthwise_conv_1d_kernel<<<(batch_size * channels * length + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, conv_weight, out, batch_size, channels, length);
}
