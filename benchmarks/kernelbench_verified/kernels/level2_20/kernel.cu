#include <cuda_runtime.h>

// A kernel for level2_20.py: out [batch_size, out_channels, kernel_size + 29, kernel_size + 61, kernel_size + 61] from x [batch_size, in_channels, 16, 32, 32], bias [out_channels, 1, 1, 1], conv_transpose_weight [in_channels, out_channels, kernel_size, kernel_size, kernel_size], conv_transpose_bias [out_channels], row-major.
// One output a thread. Stride 2, padding 1: input i and tap k give output 2 * i - 1 + k
// (the output padding only makes the output larger).
#define BLOCK_SIZE 256
#define IN_D 16
#define IN_H 32
#define IN_W 32

__global__ void level2_20_kernel(const float* __restrict__ x, const float* __restrict__ bias, const float* __restrict__ conv_transpose_weight, const float* __restrict__ conv_transpose_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  const int out_d = kernel_size + 29;
  const int out_h = kernel_size + 61;
  const int out_w = kernel_size + 61;
  if (i >= (long long)batch_size * out_channels * out_d * out_h * out_w) return;

  long long rest = i;
  const int ow = (int)(rest % out_w);
  rest /= out_w;
  const int oh = (int)(rest % out_h);
  rest /= out_h;
  const int od = (int)(rest % out_d);
  rest /= out_d;
  const int oc = (int)(rest % out_channels);
  const long long n = rest / out_channels;

  const long long volume = IN_D * IN_H * IN_W;
  const int taps = kernel_size * kernel_size * kernel_size;
  const long long weight_step = (long long)out_channels * taps;
  const float* xn = x + n * in_channels * volume;
  const float* wn = conv_transpose_weight + (long long)oc * taps;

  float y = conv_transpose_bias[oc];
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
          y += xp[ic * volume] * wp[ic * weight_step];
        }
      }
    }
  }

  float v = y + bias[oc];
  v = v + y;
  v = v * y;
  v = v + y;
  out[i] = v;
}

void launch(const float* __restrict__ x, const float* __restrict__ bias, const float* __restrict__ conv_transpose_weight, const float* __restrict__ conv_transpose_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size) {
  const int blocks = (batch_size * out_channels * (kernel_size + 29) * (kernel_size + 61) * (kernel_size + 61) + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level2_20_kernel<<<blocks, BLOCK_SIZE>>>(x, bias, conv_transpose_weight, conv_transpose_bias, out, batch_size, in_channels, out_channels, kernel_size);
}
