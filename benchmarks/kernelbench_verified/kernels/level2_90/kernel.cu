#include <cuda_runtime.h>

// A kernel for level2_90.py: out [batch_size, out_channels, 14, 62, 62] from x [batch_size, in_channels, 16, 64, 64], sum_tensor [out_channels, 1, 1, 1], conv_weight [out_channels, in_channels, 3, 3, 3], conv_bias [out_channels], row-major.
// One output a thread.
#define BLOCK_SIZE 256
#define IN_D 16
#define IN_H 64
#define IN_W 64
#define OUT_D 14
#define OUT_H 62
#define OUT_W 62
#define KERNEL 3

__global__ void level2_90_kernel(const float* __restrict__ x, const float* __restrict__ sum_tensor, const float* __restrict__ conv_weight, const float* __restrict__ conv_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * out_channels * OUT_D * OUT_H * OUT_W) return;

  long long rest = i;
  const int ow = (int)(rest % OUT_W);
  rest /= OUT_W;
  const int oh = (int)(rest % OUT_H);
  rest /= OUT_H;
  const int od = (int)(rest % OUT_D);
  rest /= OUT_D;
  const int oc = (int)(rest % out_channels);
  const long long n = rest / out_channels;

  const long long volume = IN_D * IN_H * IN_W;
  const int taps = KERNEL * KERNEL * KERNEL;
  const float* xn = x + n * in_channels * volume + (od * IN_H + oh) * IN_W + ow;
  const float* wn = conv_weight + (long long)oc * in_channels * taps;

  float v = conv_bias[oc];
  for (int ic = 0; ic < in_channels; ic++) {
    const float* xp = xn + ic * volume;
    const float* wp = wn + ic * taps;
    for (int kd = 0; kd < KERNEL; kd++) {
      for (int kh = 0; kh < KERNEL; kh++) {
        for (int kw = 0; kw < KERNEL; kw++) {
          v += xp[(kd * IN_H + kh) * IN_W + kw] * wp[(kd * KERNEL + kh) * KERNEL + kw];
        }
      }
    }
  }
  if (v < 0.0f) v = v * 0.2f;  // LeakyReLU
  v = v + sum_tensor[oc];
  if (v < -1.0f) v = -1.0f;
  if (v > 1.0f) v = 1.0f;
  out[i] = 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));  // GELU, the exact one
}

void launch(const float* __restrict__ x, const float* __restrict__ sum_tensor, const float* __restrict__ conv_weight, const float* __restrict__ conv_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels) {
  const int blocks = (batch_size * out_channels * OUT_D * OUT_H * OUT_W + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level2_90_kernel<<<blocks, BLOCK_SIZE>>>(x, sum_tensor, conv_weight, conv_bias, out, batch_size, in_channels, out_channels);
}
