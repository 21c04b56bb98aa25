#include <cuda_runtime.h>

// A kernel for level2_81.py: out [batch_size, out_features] from x [batch_size, in_features], gemm_weight [out_features, in_features], gemm_bias [out_features], row-major.
// One output a thread; a block takes a tile of BLOCK_SIZE / TILE_COLUMNS rows and TILE_COLUMNS columns of out.
#define BLOCK_SIZE 256
#define TILE_COLUMNS 16

__global__ void level2_81_kernel(const float* __restrict__ x, const float* __restrict__ gemm_weight, const float* __restrict__ gemm_bias, float* __restrict__ out, int batch_size, int in_features, int out_features) {
  const int tile_rows = BLOCK_SIZE / TILE_COLUMNS;
  const int tiles = (out_features + TILE_COLUMNS - 1) / TILE_COLUMNS;  // in one row of tiles
  const int row = blockIdx.x / tiles * tile_rows + threadIdx.x / TILE_COLUMNS;
  const int column = blockIdx.x % tiles * TILE_COLUMNS + threadIdx.x % TILE_COLUMNS;
  if (row >= batch_size || column >= out_features) return;

  const float* xr = x + (long long)row * in_features;
  const float* w = gemm_weight + (long long)column * in_features;
  float y = 0.0f;
  for (int k = 0; k < in_features; k++) y += xr[k] * w[k];
  y += gemm_bias[column];

  float v = y * (1.0f / (1.0f + expf(-y)));  // Swish
  v = v / 2.0f;
  if (v < -1.0f) v = -1.0f;
  if (v > 1.0f) v = 1.0f;
  v = tanhf(v);
  if (v < -1.0f) v = -1.0f;
  if (v > 1.0f) v = 1.0f;
  out[(long long)row * out_features + column] = v;
}

void launch(const float* __restrict__ x, const float* __restrict__ gemm_weight, const float* __restrict__ gemm_bias, float* __restrict__ out, int batch_size, int in_features, int out_features) {
  const int tile_rows = BLOCK_SIZE / TILE_COLUMNS;
  const int blocks = ((batch_size + tile_rows - 1) / tile_rows) * ((out_features + TILE_COLUMNS - 1) / TILE_COLUMNS);
  level2_81_kernel<<<blocks, BLOCK_SIZE>>>(x, gemm_weight, gemm_bias, out, batch_size, in_features, out_features);
}
