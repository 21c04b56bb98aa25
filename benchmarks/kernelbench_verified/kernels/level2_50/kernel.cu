#include <cuda_runtime.h>

// A kernel for level2_50.py: out [batch_size, out_channels, (kernel_size + 28) // 2, (kernel_size + 60) // 2, (kernel_size + 60) // 2] from x [batch_size, in_channels, 16, 32, 32], scale1 [1], bias [out_channels, 1, 1, 1], scale2 [1], conv_transpose_weight [in_channels, out_channels, kernel_size, kernel_size, kernel_size], conv_transpose_bias [out_channels], row-major.
// One output a thread: it adds up the eight outputs of the transposed convolution that are pooled.
// Stride 2, padding 1: input i and tap k give output 2 * i - 1 + k.
#define BLOCK_SIZE 256
#define IN_D 16
#define IN_H 32
#define IN_W 32

__global__ void level2_50_kernel(const float* __restrict__ x, const float* __restrict__ scale1, const float* __restrict__ bias, const float* __restrict__ scale2, const float* __restrict__ conv_transpose_weight, const float* __restrict__ conv_transpose_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  const int out_d = (kernel_size + 28) / 2;
  const int out_h = (kernel_size + 60) / 2;
  const int out_w = (kernel_size + 60) / 2;
  if (i >= (long long)batch_size * out_channels * out_d * out_h * out_w) return;

  long long rest = i;
  const int pw = (int)(rest % out_w);
  rest /= out_w;
  const int ph = (int)(rest % out_h);
  rest /= out_h;
  const int pd = (int)(rest % out_d);
  rest /= out_d;
  const int oc = (int)(rest % out_channels);
  const long long n = rest / out_channels;

  const long long volume = IN_D * IN_H * IN_W;
  const int taps = kernel_size * kernel_size * kernel_size;
  const long long weight_step = (long long)out_channels * taps;
  const float* xn = x + n * in_channels * volume;
  const float* wn = conv_transpose_weight + (long long)oc * taps;
  const float conv_bias = conv_transpose_bias[oc];
  const float factor = scale1[0];

  float sum = 0.0f;
  for (int od = 2 * pd; od < 2 * pd + 2; od++) {
    for (int oh = 2 * ph; oh < 2 * ph + 2; oh++) {
      for (int ow = 2 * pw; ow < 2 * pw + 2; ow++) {
        float y = conv_bias;
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
        sum += y * factor;
      }
    }
  }
  out[i] = (sum / 8.0f + bias[oc]) * scale2[0];
}

void launch(const float* __restrict__ x, const float* __restrict__ scale1, const float* __restrict__ bias, const float* __restrict__ scale2, const float* __restrict__ conv_transpose_weight, const float* __restrict__ conv_transpose_bias, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int kernel_size) {
  const int blocks = (batch_size * out_channels * ((kernel_size + 28) / 2) * ((kernel_size + 60) / 2) * ((kernel_size + 60) / 2) + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level2_50_kernel<<<blocks, BLOCK_SIZE>>>(x, scale1, bias, scale2, conv_transpose_weight, conv_transpose_bias, out, batch_size, in_channels, out_channels, kernel_size);
}
