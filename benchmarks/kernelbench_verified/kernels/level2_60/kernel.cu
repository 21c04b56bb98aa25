#include <cuda_runtime.h>

// A kernel for level2_60.py: out [batch_size, out_channels, kernel_size + 28, kernel_size + 60, kernel_size + 60] from x [batch_size, in_channels, 16, 32, 32], conv_transpose_weight [in_channels, out_channels, kernel_size, kernel_size, kernel_size], conv_transpose_bias [out_channels], group_norm_weight [out_channels], group_norm_bias [out_channels], row-major.
// One block for each (image, group), whose outputs lie side by side: it writes the convolution after
// Swish to out, takes the mean and then the variance of what it wrote, and norms it in place.
// Stride 2, padding 1: input i and tap k give output 2 * i - 1 + k.
#define BLOCK_SIZE 256
#define GROUPS 4
#define IN_D 16
#define IN_H 32
#define IN_W 32

__global__ void level2_60_kernel(const float* __restrict__ x, const float* __restrict__ conv_transpose_weight, const float* __restrict__ conv_transpose_bias, const float* __restrict__ group_norm_weight, const float* __restrict__ group_norm_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size) {
  __shared__ double sums[BLOCK_SIZE];
  const int tid = threadIdx.x;
  const int group = blockIdx.x % GROUPS;
  const long long n = blockIdx.x / GROUPS;
  const int out_d = kernel_size + 28;
  const int out_h = kernel_size + 60;
  const int out_w = kernel_size + 60;
  const int positions = out_d * out_h * out_w;
  const int group_channels = out_channels / GROUPS;
  const int first_channel = group * group_channels;
  const long long size = (long long)group_channels * positions;
  float* y = out + (n * out_channels + first_channel) * positions;

  const long long volume = IN_D * IN_H * IN_W;
  const int taps = kernel_size * kernel_size * kernel_size;
  const long long weight_step = (long long)out_channels * taps;
  const float* xn = x + n * in_channels * volume;

  double sum = 0.0;
  for (long long j = tid; j < size; j += BLOCK_SIZE) {
    const int oc = first_channel + (int)(j / positions);
    const int position = (int)(j % positions);
    const int ow = position % out_w;
    const int oh = position / out_w % out_h;
    const int od = position / out_w / out_h;
    const float* wn = conv_transpose_weight + (long long)oc * taps;
    float v = conv_transpose_bias[oc];
    // Only the taps of the right parity meet an input: o + 1 - k has to be even.
    for (int kd = (od + 1) % 2; kd < kernel_size; kd += 2) {
      const int id = (od + 1 - kd) / 2;
      if (id < 0 || id >= IN_D) continue;
      for (int kh = (oh + 1) % 2; kh < kernel_size; kh += 2) {
        const int ih = (oh + 1 - kh) / 2;
        if (ih < 0 || ih >= IN_H) continue;
        for (int kw = (ow + 1) % 2; kw < kernel_size; kw += 2) {
          const int iw = (ow + 1 - kw) / 2;
          if (iw < 0 || iw >= IN_W) continue;
          const float* xp = xn + (id * IN_H + ih) * IN_W + iw;
          const float* wp = wn + (kd * kernel_size + kh) * kernel_size + kw;
          for (int ic = 0; ic < in_channels; ic++) {
            v += xp[ic * volume] * wp[ic * weight_step];
          }
        }
      }
    }
    v = v * (1.0f / (1.0f + expf(-v)));  // Swish
    y[j] = v;
    sum += v;
  }

  sums[tid] = sum;
  __syncthreads();
  for (int count = BLOCK_SIZE; count > 1;) {
    const int half = (count + 1) / 2;
    if (tid < count / 2) sums[tid] += sums[tid + half];
    __syncthreads();
    count = half;
  }
  const float mean = (float)(sums[0] / size);
  __syncthreads();  // all have read sums[0] before it is written again

  double squares = 0.0;
  for (long long j = tid; j < size; j += BLOCK_SIZE) {
    const double d = (double)y[j] - mean;
    squares += d * d;
  }
  sums[tid] = squares;
  __syncthreads();
  for (int count = BLOCK_SIZE; count > 1;) {
    const int half = (count + 1) / 2;
    if (tid < count / 2) sums[tid] += sums[tid + half];
    __syncthreads();
    count = half;
  }
  const float scale = (float)(1.0 / sqrt(sums[0] / size + 1e-5));

  for (long long j = tid; j < size; j += BLOCK_SIZE) {
    const int oc = first_channel + (int)(j / positions);
    const float v = (y[j] - mean) * scale * group_norm_weight[oc] + group_norm_bias[oc];
    y[j] = v * fminf(fmaxf(v + 3.0f, 0.0f), 6.0f) / 6.0f;  // HardSwish
  }
}

void launch(const float* __restrict__ x, const float* __restrict__ conv_transpose_weight, const float* __restrict__ conv_transpose_bias, const float* __restrict__ group_norm_weight, const float* __restrict__ group_norm_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size) {
  const int blocks = batch_size * GROUPS;
  level2_60_kernel<<<blocks, BLOCK_SIZE>>>(x, conv_transpose_weight, conv_transpose_bias, group_norm_weight, group_norm_bias, out, batch_size, in_channels, out_channels, kernel_size);
}
