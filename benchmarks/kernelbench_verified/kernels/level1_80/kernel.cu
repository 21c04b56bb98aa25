// A kernel for level1_80.py: out [batch_size, out_channels, height - 4, width - 16] from x [batch_size, in_channels, height, width], conv2d_weight [out_channels, in_channels, 5, 9], row-major.
#define BLOCK_SIZE 256

__global__ void level1_80_kernel(const float* __restrict__ x, const float* __restrict__ conv2d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int width, int height) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  const int height_out = height - 4;
  const int width_out = width - 16;
  if (i >= (long long)batch_size * out_channels * height_out * width_out) return;
  long long r = i;
  const int ow = (int)(r % width_out);
  r /= width_out;
  const int oh = (int)(r % height_out);
  r /= height_out;
  const long long o = r % out_channels;
  const long long b = r / out_channels;
  float sum = 0.0f;
  for (int c = 0; c < in_channels; ++c) {
    for (int kh = 0; kh < 5; ++kh) {
      const int h = oh - 2 + kh * 2;  // padding 2, dilation 2
      if (h < 0 || h >= height) continue;
      for (int kw = 0; kw < 9; ++kw) {
        const int w = ow - 4 + kw * 3;  // padding 4, dilation 3
        if (w < 0 || w >= width) continue;
        sum += x[((b * in_channels + c) * height + h) * width + w] *
               conv2d_weight[((o * in_channels + c) * 5 + kh) * 9 + kw];
      }
    }
  }
  out[i] = sum;
}

void launch(const float* __restrict__ x, const float* __restrict__ conv2d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int width, int height) {
  const int blocks = (batch_size * out_channels * (height - 4) * (width - 16) + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level1_80_kernel<<<blocks, BLOCK_SIZE>>>(x, conv2d_weight, out, batch_size, in_channels, out_channels, width, height);
}
