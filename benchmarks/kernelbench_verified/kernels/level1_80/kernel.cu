// A kernel for level1_80.py: out [batch_size, out_channels, height - 4, width - 16] from x [batch_size, in_channels, height, width], conv2d_weight [out_channels, in_channels, 5, 9], row-major.
// A block computes 16 output channels of a tile of 8 rows and 128 columns; a thread computes
// 4 columns (32 apart) of one row for the 16 channels. Input and weights are staged in shared
// memory, one input channel at a time.
#define BLOCK_SIZE 256
#define KH 5
#define KW 9
#define PAD_H 2
#define PAD_W 4
#define DIL_H 2
#define DIL_W 3
#define LANES 32                          // threads along a row
#define TILE_H (BLOCK_SIZE / LANES)       // output rows a block
#define PIX 4                             // output columns a thread
#define TILE_W (LANES * PIX)              // output columns a block
#define TILE_OC 16                        // output channels a block
#define WS_STRIDE (TILE_OC + 4)           // keeps float4 alignment, fewer bank conflicts
#define IN_H (TILE_H + (KH - 1) * DIL_H)
#define IN_W (TILE_W + (KW - 1) * DIL_W)

__global__ void __launch_bounds__(BLOCK_SIZE) level1_80_kernel(const float* __restrict__ x, const float* __restrict__ conv2d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int width, int height) {
  __shared__ float xs[IN_H][IN_W];
  __shared__ __align__(16) float ws[KH * KW * WS_STRIDE];

  const int out_h = height - 4;
  const int out_w = width - 16;
  const int tiles_w = (out_w + TILE_W - 1) / TILE_W;
  const int tiles_h = (out_h + TILE_H - 1) / TILE_H;
  const int tiles_oc = (out_channels + TILE_OC - 1) / TILE_OC;

  // Channel groups of one tile are neighbours, so that they share the input in L2.
  int b = blockIdx.x;
  const int oc0 = (b % tiles_oc) * TILE_OC;
  b /= tiles_oc;
  const int w0 = (b % tiles_w) * TILE_W;
  b /= tiles_w;
  const int h0 = (b % tiles_h) * TILE_H;
  const int n = b / tiles_h;

  const int tx = threadIdx.x % LANES;
  const int ty = threadIdx.x / LANES;

  float acc[PIX][TILE_OC];
#pragma unroll
  for (int p = 0; p < PIX; ++p)
#pragma unroll
    for (int o = 0; o < TILE_OC; ++o) acc[p][o] = 0.0f;

  for (int ic = 0; ic < in_channels; ++ic) {
    const float* xc = x + ((long long)n * in_channels + ic) * height * width;
    for (int r = ty; r < IN_H; r += TILE_H) {
      const int h = h0 - PAD_H + r;
      for (int c = tx; c < IN_W; c += LANES) {
        const int w = w0 - PAD_W + c;
        float v = 0.0f;
        if (h >= 0 && h < height && w >= 0 && w < width) v = xc[(long long)h * width + w];
        xs[r][c] = v;
      }
    }
    for (int i = threadIdx.x; i < TILE_OC * KH * KW; i += BLOCK_SIZE) {
      const int o = i / (KH * KW);
      const int k = i % (KH * KW);
      float v = 0.0f;
      if (oc0 + o < out_channels) v = conv2d_weight[((long long)(oc0 + o) * in_channels + ic) * (KH * KW) + k];
      ws[k * WS_STRIDE + o] = v;
    }
    __syncthreads();

#pragma unroll 1
    for (int kh = 0; kh < KH; ++kh) {
      const float* xr = &xs[ty + kh * DIL_H][tx];
      const float* wr = &ws[kh * KW * WS_STRIDE];
#pragma unroll
      for (int kw = 0; kw < KW; ++kw) {
        float xv[PIX];
#pragma unroll
        for (int p = 0; p < PIX; ++p) xv[p] = xr[p * LANES + kw * DIL_W];
#pragma unroll
        for (int q = 0; q < TILE_OC / 4; ++q) {
          const float4 wv = *reinterpret_cast<const float4*>(wr + kw * WS_STRIDE + q * 4);
#pragma unroll
          for (int p = 0; p < PIX; ++p) {
            acc[p][q * 4 + 0] += xv[p] * wv.x;
            acc[p][q * 4 + 1] += xv[p] * wv.y;
            acc[p][q * 4 + 2] += xv[p] * wv.z;
            acc[p][q * 4 + 3] += xv[p] * wv.w;
          }
        }
      }
    }
    __syncthreads();
  }

  const int oh = h0 + ty;
  if (oh >= out_h) return;
#pragma unroll
  for (int o = 0; o < TILE_OC; ++o) {
    if (oc0 + o < out_channels) {
      float* orow = out + (((long long)n * out_channels + oc0 + o) * out_h + oh) * out_w;
#pragma unroll
      for (int p = 0; p < PIX; ++p) {
        const int ow = w0 + p * LANES + tx;
        if (ow < out_w) orow[ow] = acc[p][o];
      }
    }
  }
}

void launch(const float* __restrict__ x, const float* __restrict__ conv2d_weight, float* __restrict__ out, int batch_size, int in_channels, int out_channels, int width, int height) {
  const int tiles_w = (width - 16 + TILE_W - 1) / TILE_W;
  const int tiles_h = (height - 4 + TILE_H - 1) / TILE_H;
  const int tiles_oc = (out_channels + TILE_OC - 1) / TILE_OC;
  const int blocks = batch_size * tiles_h * tiles_w * tiles_oc;
  level1_80_kernel<<<blocks, BLOCK_SIZE>>>(x, conv2d_weight, out, batch_size, in_channels, out_channels, width, height);
}
