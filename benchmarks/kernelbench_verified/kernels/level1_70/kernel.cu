// A kernel for level1_70.py: out [batch_size, out_channels, depth + kernel_size - 1, height + kernel_size - 1, width + kernel_size - 1] from x [batch_size, in_channels, depth, height, width], conv_transpose3d_weight [in_channels, out_channels, kernel_size, kernel_size, kernel_size], row-major.
#define BLOCK_SIZE 256

__global__ void level1_70_kernel(const float* __restrict__ x, const float* __restrict__ conv_transpose3d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size, int depth, int height, int width) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  const int depth_out = depth + kernel_size - 1;
  const int height_out = height + kernel_size - 1;
  const int width_out = width + kernel_size - 1;
  if (i >= (long long)batch_size * out_channels * depth_out * height_out * width_out) return;
  long long r = i;
  const int ow = (int)(r % width_out);
  r /= width_out;
  const int oh = (int)(r % height_out);
  r /= height_out;
  const int od = (int)(r % depth_out);
  r /= depth_out;
  const long long o = r % out_channels;
  const long long b = r / out_channels;
  float sum = 0.0f;
  // Input d, tap kd goes to output d + kd (stride 1, padding 0).
  for (int c = 0; c < in_channels; ++c) {
    for (int kd = 0; kd < kernel_size; ++kd) {
      const int d = od - kd;
      if (d < 0 || d >= depth) continue;
      for (int kh = 0; kh < kernel_size; ++kh) {
        const int h = oh - kh;
        if (h < 0 || h >= height) continue;
        for (int kw = 0; kw < kernel_size; ++kw) {
          const int w = ow - kw;
          if (w < 0 || w >= width) continue;
          sum += x[(((b * in_channels + c) * depth + d) * height + h) * width + w] *
                 conv_transpose3d_weight[((((long long)c * out_channels + o) * kernel_size + kd) * kernel_size + kh) * kernel_size + kw];
        }
      }
    }
  }
  out[i] = sum;
}

void launch(const float* __restrict__ x, const float* __restrict__ conv_transpose3d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size, int depth, int height, int width) {
  const int blocks = (batch_size * out_channels * (depth + kernel_size - 1) * (height + kernel_size - 1) * (width + kernel_size - 1) + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level1_70_kernel<<<blocks, BLOCK_SIZE>>>(x, conv_transpose3d_weight, out, batch_size, in_channels, out_channels, kernel_size, depth, height, width);
}
