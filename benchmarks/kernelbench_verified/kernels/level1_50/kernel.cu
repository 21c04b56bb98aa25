// A kernel for level1_50.py: out [batch_size, 96, (n224 - 3) // 4, (n224 - 3) // 4] from x [batch_size, 3, n224, n224], conv1_weight [96, 3, 11, 11], conv1_bias [96], row-major.
#define BLOCK_SIZE 256

__global__ void level1_50_kernel(const float* __restrict__ x, const float* __restrict__ conv1_weight, const float* __restrict__ conv1_bias, float* __restrict__ out, int batch_size, int n224) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  const int side = (n224 - 3) / 4;
  if (i >= (long long)batch_size * 96 * side * side) return;
  const int ow = (int)(i % side);
  const int oh = (int)(i / side % side);
  const int o = (int)(i / ((long long)side * side) % 96);
  const long long b = i / ((long long)side * side * 96);
  float sum = 0.0f;
  for (int c = 0; c < 3; ++c) {
    for (int kh = 0; kh < 11; ++kh) {
      const int h = oh * 4 - 2 + kh;  // stride 4, padding 2
      if (h < 0 || h >= n224) continue;
      for (int kw = 0; kw < 11; ++kw) {
        const int w = ow * 4 - 2 + kw;
        if (w < 0 || w >= n224) continue;
        sum += x[((b * 3 + c) * n224 + h) * n224 + w] * conv1_weight[((o * 3 + c) * 11 + kh) * 11 + kw];
      }
    }
  }
  out[i] = sum + conv1_bias[o];
}

void launch(const float* __restrict__ x, const float* __restrict__ conv1_weight, const float* __restrict__ conv1_bias, float* __restrict__ out, int batch_size, int n224) {
  const int blocks = (batch_size * 96 * ((n224 - 3) / 4) * ((n224 - 3) / 4) + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level1_50_kernel<<<blocks, BLOCK_SIZE>>>(x, conv1_weight, conv1_bias, out, batch_size, n224);
}
