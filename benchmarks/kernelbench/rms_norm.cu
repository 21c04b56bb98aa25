#define BLOCK_SIZE 256

__global__ void rms_norm_kernel(const float* __restrict__ x, float* __restrict__ out, int batch_size, int channels, int height, int width) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * height * width) return;
  const int plane = height * width;
  const long long first = i / plane * channels * plane + i % plane;
  float sum = 0.0f;
  for (int c = 0; c < channels; ++c) sum += x[first + (long long)c * plane] * x[first + (long long)c * plane];
  const float root = sqrtf(sum / channels + 1e-5f);
  for (int c = 0; c < channels; ++c) out[first + (long long)c * plane] = x[first + (long long)c * plane] / root;
}

void launch(const float* x, float* out, int batch_size, int channels, int height, int width) {
  rms_norm_kernel<<<(batch_size * height * width + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, out, batch_size, channels, height, width);
}
