// A kernel for level1_70.py: out [batch_size, out_channels, depth + kernel_size - 1, height + kernel_size - 1, width + kernel_size - 1] from x [batch_size, in_channels, depth, height, width], conv_transpose3d_weight [in_channels, out_channels, kernel_size, kernel_size, kernel_size], row-major.
//
// A thread holds one position of the output for OC_TILE output channels, and gathers: out[n, oc, d, h, w] is the sum over
// ic, kd, kh, kw of x[n, ic, d - kd, h - kh, w - kw] * weight[ic, oc, kd, kh, kw], where x has that element.
// The weights of one input channel and OC_TILE output channels lie in shared memory, TAPS taps at a time.
#define BLOCK_SIZE 256
#define OC_TILE 8
#define TAPS 128

__global__ void __launch_bounds__(BLOCK_SIZE) level1_70_kernel(const float* __restrict__ x, const float* __restrict__ conv_transpose3d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size, int depth, int height, int width) {
  __shared__ __align__(16) float taps[TAPS][OC_TILE];

  const int depth_out = depth + kernel_size - 1;
  const int height_out = height + kernel_size - 1;
  const int width_out = width + kernel_size - 1;
  const long long plane_out = (long long)depth_out * height_out * width_out;
  const long long plane = (long long)depth * height * width;
  const int volume = kernel_size * kernel_size * kernel_size;

  const int oc_groups = (out_channels + OC_TILE - 1) / OC_TILE;
  const int oc0 = (int)(blockIdx.x % oc_groups) * OC_TILE;
  const int oc_count = min(OC_TILE, out_channels - oc0);

  const long long i = (blockIdx.x / oc_groups) * (long long)BLOCK_SIZE + threadIdx.x;
  const bool active = i < batch_size * plane_out;

  long long n = 0;
  long long position = 0;
  int d = 0, h = 0, w = 0;
  if (active) {
    n = i / plane_out;
    position = i - n * plane_out;
    const long long row = position / width_out;
    w = (int)(position - row * width_out);
    d = (int)(row / height_out);
    h = (int)(row - (long long)d * height_out);
  }

  float sum[OC_TILE];
#pragma unroll
  for (int c = 0; c < OC_TILE; ++c) sum[c] = 0.0f;

  for (int ic = 0; ic < in_channels; ++ic) {
    const float* x_channel = x + (n * in_channels + ic) * plane;
    const float* weight = conv_transpose3d_weight + ((long long)ic * out_channels + oc0) * volume;
    int kd = 0, kh = 0, kw = 0;

    for (int first = 0; first < volume; first += TAPS) {
      const int count = min(TAPS, volume - first);

      __syncthreads();
      for (int e = threadIdx.x; e < count * OC_TILE; e += BLOCK_SIZE) {
        const int c = e / count;
        const int t = e - c * count;
        taps[t][c] = c < oc_count ? weight[(long long)c * volume + first + t] : 0.0f;
      }
      __syncthreads();

      int t = 0;
      while (t < count) {
        // One row of taps, or what the tile holds of it.
        const int steps = min(kernel_size - kw, count - t);
        const int xd = d - kd;
        const int xh = h - kh;
        if (active && xd >= 0 && xd < depth && xh >= 0 && xh < height) {
          const float* x_row = x_channel + ((long long)xd * height + xh) * width;
          for (int s = 0; s < steps; ++s) {
            const int xw = w - kw - s;
            if (xw >= 0 && xw < width) {
              const float value = x_row[xw];
#pragma unroll
              for (int c = 0; c < OC_TILE; ++c) sum[c] = fmaf(value, taps[t + s][c], sum[c]);
            }
          }
        }
        t += steps;
        kw += steps;
        if (kw == kernel_size) {
          kw = 0;
          if (++kh == kernel_size) {
            kh = 0;
            ++kd;
          }
        }
      }
    }
  }

  if (active) {
    float* out_position = out + (n * out_channels + oc0) * plane_out + position;
#pragma unroll
    for (int c = 0; c < OC_TILE; ++c) {
      if (c < oc_count) out_position[c * plane_out] = sum[c];
    }
  }
}

void launch(const float* __restrict__ x, const float* __restrict__ conv_transpose3d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size, int depth, int height, int width) {
  const long long positions = (long long)batch_size * (depth + kernel_size - 1) * (height + kernel_size - 1) * (width + kernel_size - 1);
  const long long blocks = (positions + BLOCK_SIZE - 1) / BLOCK_SIZE * ((out_channels + OC_TILE - 1) / OC_TILE);
  level1_70_kernel<<<blocks, BLOCK_SIZE>>>(x, conv_transpose3d_weight, out, batch_size, in_channels, out_channels, kernel_size, depth, height, width);
}
