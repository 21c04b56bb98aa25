#define BLOCK_SIZE 256

__global__ void conv_2d_kernel(const float* __restrict__ x, const float* __restrict__ conv_weight, const float* __restrict__ conv_bias,
    float* __restrict__ out, int batch_size, int in_channels, int out_channels, int height, int width) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * out_channels * ((height + 1) / 2) * ((width + 1) / 2)) return;
  const int rows = (height + 1) / 2, columns = (width + 1) / 2;
  const int column = i % columns, row = i / columns % rows, o = i / columns / rows % out_channels;
  const long long image = i / columns / rows / out_channels;
  float sum = conv_bias[o];
  for (int c = 0; c < in_channels; ++c)
    for (int dy = 0; dy < 3; ++dy)
      for (int dx = 0; dx < 3; ++dx) {
        const int y = 2 * row + dy - 1, z = 2 * column + dx - 1;
        if (y < 0 || y >= height || z < 0 || z >= width) continue;
        sum += x[((image * in_channels + c) * height + y) * width + z] * conv_weight[((o * in_channels + c) * 3 + dy) * 3 + dx];
      }
  out[i] = sum;
}

void launch(const float* x, const float* conv_weight, const float* conv_bias,
    float* out, int batch_size, int in_channels, int out_channels, int height, int width) {
  conv_2d_kernel<<<(batch_size * out_channels * ((height + 1) / 2) * ((width + 1) / 2) + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, conv_weight, conv_bias, out, batch_size, in_channels, out_channels, height, width);
}
