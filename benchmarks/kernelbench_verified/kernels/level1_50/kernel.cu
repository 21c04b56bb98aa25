// A kernel for level1_50.py: out [batch_size, 96, (n224 - 3) // 4, (n224 - 3) // 4] from x [batch_size, 3, n224, n224], conv1_weight [96, 3, 11, 11], conv1_bias [96], row-major.
// A convolution as a tiled product: a block computes TILE_P output pixels (of all images, flattened) for all 96 channels,
// with the 363 = 3 * 11 * 11 terms of the sum staged through shared memory TILE_K (three kernel rows) at a time.
#define BLOCK_SIZE 256  // 128, 256 or 512
#define CHANNELS 96
#define TERMS 363
#define TILE_K 33
#define LANES_P (BLOCK_SIZE / 16)
#define PER_P 8
#define PER_C 6
#define TILE_P (LANES_P * PER_P)

__global__ void level1_50_kernel(const float* __restrict__ x, const float* __restrict__ conv1_weight, const float* __restrict__ conv1_bias, float* __restrict__ out, int batch_size, int n224) {
  __shared__ float xs[TILE_K][TILE_P];
  __shared__ float ws[TILE_K][CHANNELS + 1];

  const int o = (n224 - 3) / 4;
  const long long plane = (long long)o * o;
  const long long pixels = batch_size * plane;
  const long long first = blockIdx.x * (long long)TILE_P;
  const int t = threadIdx.x;

  // The pixel whose inputs this thread stages: one of two threads a pixel (BLOCK_SIZE == 2 * TILE_P).
  const int sp = t % TILE_P;
  const int sk = t / TILE_P;
  const long long p = first + sp;
  const bool live = p < pixels;
  const long long image = live ? p / plane : 0;
  const int rest = live ? (int)(p - image * plane) : 0;
  const int y0 = rest / o * 4 - 2;
  const int x0 = rest % o * 4 - 2;
  const float* xi = x + image * 3 * n224 * n224;

  const int lp = t % LANES_P;
  const int lc = t / LANES_P;
  float acc[PER_C][PER_P];
#pragma unroll
  for (int c = 0; c < PER_C; ++c) {
    const float bias = conv1_bias[lc + 16 * c];
#pragma unroll
    for (int q = 0; q < PER_P; ++q) acc[c][q] = bias;
  }

  for (int k0 = 0; k0 < TERMS; k0 += TILE_K) {
    for (int kk = sk; kk < TILE_K; kk += 2) {
      const int k = k0 + kk;
      const int ci = k / 121;
      const int iy = y0 + k % 121 / 11;
      const int ix = x0 + k % 11;
      float v = 0.0f;
      if (live && iy >= 0 && iy < n224 && ix >= 0 && ix < n224) v = xi[((long long)ci * n224 + iy) * n224 + ix];
      xs[kk][sp] = v;
    }
    for (int e = t; e < TILE_K * CHANNELS; e += BLOCK_SIZE) {
      const int c = e / TILE_K;
      const int kk = e % TILE_K;
      ws[kk][c] = conv1_weight[c * TERMS + k0 + kk];
    }
    __syncthreads();

#pragma unroll 3
    for (int kk = 0; kk < TILE_K; ++kk) {
      float a[PER_P], w[PER_C];
#pragma unroll
      for (int q = 0; q < PER_P; ++q) a[q] = xs[kk][lp + LANES_P * q];
#pragma unroll
      for (int c = 0; c < PER_C; ++c) w[c] = ws[kk][lc + 16 * c];
#pragma unroll
      for (int c = 0; c < PER_C; ++c)
#pragma unroll
        for (int q = 0; q < PER_P; ++q) acc[c][q] = fmaf(w[c], a[q], acc[c][q]);
    }
    __syncthreads();
  }

#pragma unroll
  for (int q = 0; q < PER_P; ++q) {
    const long long po = first + lp + LANES_P * q;
    if (po < pixels) {
      const long long b = po / plane;
      const long long r = po - b * plane;
#pragma unroll
      for (int c = 0; c < PER_C; ++c) out[(b * CHANNELS + lc + 16 * c) * plane + r] = acc[c][q];
    }
  }
}

void launch(const float* __restrict__ x, const float* __restrict__ conv1_weight, const float* __restrict__ conv1_bias, float* __restrict__ out, int batch_size, int n224) {
  const int blocks = (batch_size * ((n224 - 3) / 4) * ((n224 - 3) / 4) + TILE_P - 1) / TILE_P;
  level1_50_kernel<<<blocks, BLOCK_SIZE>>>(x, conv1_weight, conv1_bias, out, batch_size, n224);
}
