// A kernel for level1_60.py: out [batch_size, out_channels, width - 2, height - 4, depth - 6] from x [batch_size, in_channels, width, height, depth], conv3d_weight [out_channels, in_channels, 3, 5, 7], row-major.
#define BLOCK_SIZE 256

__global__ void level1_60_kernel(const float* __restrict__ x, const float* __restrict__ conv3d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int width, int height, int depth) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  const int width_out = width - 2;
  const int height_out = height - 4;
  const int depth_out = depth - 6;
  if (i >= (long long)batch_size * out_channels * width_out * height_out * depth_out) return;
  long long r = i;
  const int d = (int)(r % depth_out);
  r /= depth_out;
  const int h = (int)(r % height_out);
  r /= height_out;
  const int w = (int)(r % width_out);
  r /= width_out;
  const long long o = r % out_channels;
  const long long b = r / out_channels;
  float sum = 0.0f;
  for (int c = 0; c < in_channels; ++c) {
    for (int kw = 0; kw < 3; ++kw) {
      for (int kh = 0; kh < 5; ++kh) {
        for (int kd = 0; kd < 7; ++kd) {
          sum += x[(((b * in_channels + c) * width + w + kw) * height + h + kh) * depth + d + kd] *
                 conv3d_weight[(((o * in_channels + c) * 3 + kw) * 5 + kh) * 7 + kd];
        }
      }
    }
  }
  out[i] = sum;
}

void launch(const float* __restrict__ x, const float* __restrict__ conv3d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int width, int height, int depth) {
  const int blocks = (batch_size * out_channels * (width - 2) * (height - 4) * (depth - 6) + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level1_60_kernel<<<blocks, BLOCK_SIZE>>>(x, conv3d_weight, out, batch_size, in_channels, out_channels, width, height, depth);
}
