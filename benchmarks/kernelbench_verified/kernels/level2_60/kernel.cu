#include <cuda_runtime.h>

// A kernel for level2_60.py: out [batch_size, out_channels, kernel_size + 28, kernel_size + 60, kernel_size + 60] from x [batch_size, in_channels, 16, 32, 32], conv_transpose_weight [in_channels, out_channels, kernel_size, kernel_size, kernel_size], conv_transpose_bias [out_channels], group_norm_weight [out_channels], group_norm_bias [out_channels], row-major.
// One block a (sample, group): its warps take rows of the output, lanes go along a row. The first pass writes
// swish(conv_transpose) to out and adds up the sums (in double); the second normalizes in place.
#define BLOCK_SIZE 512
#define GROUPS 4
#define EPS 1e-5
#define IN_D 16
#define IN_H 32
#define IN_W 32

__global__ void __launch_bounds__(BLOCK_SIZE) level2_60_kernel(const float* __restrict__ x, const float* __restrict__ conv_transpose_weight, const float* __restrict__ conv_transpose_bias, const float* __restrict__ group_norm_weight, const float* __restrict__ group_norm_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size) {
  __shared__ double partial_sum[BLOCK_SIZE / 32];
  __shared__ double partial_square[BLOCK_SIZE / 32];

  const int n = blockIdx.x / GROUPS;
  const int group = blockIdx.x % GROUPS;
  if (n >= batch_size) return;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;

  const int k = kernel_size;
  const int out_d = k + 28;
  const int out_h = k + 60;
  const int out_w = k + 60;
  const int volume = out_d * out_h * out_w;
  const int channels = out_channels / GROUPS;
  const int first = group * channels;
  const float* xn = x + (long long)n * in_channels * (IN_D * IN_H * IN_W);
  float* on = out + ((long long)n * out_channels + first) * volume;

  // out position o takes input i by tap t where o = 2 * i - 1 + t.
  double sum = 0.0;
  double square = 0.0;
  for (int row = warp; row < channels * out_d * out_h; row += BLOCK_SIZE / 32) {
    const int oh = row % out_h;
    const int od = row / out_h % out_d;
    const int oc = first + row / (out_h * out_d);
    const float bias = conv_transpose_bias[oc];
    for (int ow = lane; ow < out_w; ow += 32) {
      float v = bias;
      for (int ic = 0; ic < in_channels; ++ic) {
        const float* xc = xn + ic * (IN_D * IN_H * IN_W);
        const float* wc = conv_transpose_weight + (ic * out_channels + oc) * k * k * k;
        for (int kd = (od + 1) % 2; kd < k; kd += 2) {
          const int id = (od + 1 - kd) >> 1;
          if (id < 0 || id >= IN_D) continue;
          for (int kh = (oh + 1) % 2; kh < k; kh += 2) {
            const int ih = (oh + 1 - kh) >> 1;
            if (ih < 0 || ih >= IN_H) continue;
            for (int kw = (ow + 1) % 2; kw < k; kw += 2) {
              const int iw = (ow + 1 - kw) >> 1;
              if (iw < 0 || iw >= IN_W) continue;
              v = fmaf(xc[(id * IN_H + ih) * IN_W + iw], wc[(kd * k + kh) * k + kw], v);
            }
          }
        }
      }
      v = v / (1.0f + expf(-v));
      on[(long long)row * out_w + ow] = v;
      const double dv = (double)v;
      sum += dv;
      square = fma(dv, dv, square);
    }
  }

  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    square += __shfl_xor_sync(0xffffffffu, square, offset);
  }
  if (lane == 0) {
    partial_sum[warp] = sum;
    partial_square[warp] = square;
  }
  __syncthreads();
  sum = 0.0;
  square = 0.0;
  for (int i = 0; i < BLOCK_SIZE / 32; ++i) {
    sum += partial_sum[i];
    square += partial_square[i];
  }
  const double count = (double)channels * volume;
  const double mean = sum / count;
  const double variance = fmax(square / count - mean * mean, 0.0);
  const float center = (float)mean;
  const float rstd = (float)(1.0 / sqrt(variance + EPS));

  for (int c = 0; c < channels; ++c) {
    const float scale = rstd * group_norm_weight[first + c];
    const float shift = group_norm_bias[first + c];
    float* oc = on + (long long)c * volume;
    for (int i = threadIdx.x; i < volume; i += BLOCK_SIZE) {
      const float y = fmaf(oc[i] - center, scale, shift);
      oc[i] = y * fminf(fmaxf(y + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
    }
  }
}

void launch(const float* __restrict__ x, const float* __restrict__ conv_transpose_weight, const float* __restrict__ conv_transpose_bias, const float* __restrict__ group_norm_weight, const float* __restrict__ group_norm_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size) {
  const int blocks = batch_size * 4;
  level2_60_kernel<<<blocks, BLOCK_SIZE>>>(x, conv_transpose_weight, conv_transpose_bias, group_norm_weight, group_norm_bias, out, batch_size, in_channels, out_channels, kernel_size);
}
