#include <cuda_runtime.h>

// A kernel for level2_70.py: out [batch_size, hidden_size] from x [batch_size, input_size], gemm_weight [hidden_size, input_size], gemm_bias [hidden_size], row-major.
// One output a thread; a block takes a tile of BLOCK_SIZE / TILE_COLUMNS rows and TILE_COLUMNS columns of out.
#define BLOCK_SIZE 256
#define TILE_COLUMNS 16

__global__ void level2_70_kernel(const float* __restrict__ x, const float* __restrict__ gemm_weight, const float* __restrict__ gemm_bias, float* __restrict__ out, int batch_size, int input_size, int hidden_size) {
  const int tile_rows = BLOCK_SIZE / TILE_COLUMNS;
  const int tiles = (hidden_size + TILE_COLUMNS - 1) / TILE_COLUMNS;  // in one row of tiles
  const int row = blockIdx.x / tiles * tile_rows + threadIdx.x / TILE_COLUMNS;
  const int column = blockIdx.x % tiles * TILE_COLUMNS + threadIdx.x % TILE_COLUMNS;
  if (row >= batch_size || column >= hidden_size) return;

  const float* xr = x + (long long)row * input_size;
  const float* w = gemm_weight + (long long)column * input_size;
  float y = 0.0f;
  for (int k = 0; k < input_size; k++) y += xr[k] * w[k];
  y += gemm_bias[column];

  const float sigmoid = 1.0f / (1.0f + expf(-y));
  out[(long long)row * hidden_size + column] = sigmoid * 2.0f + y;
}

void launch(const float* __restrict__ x, const float* __restrict__ gemm_weight, const float* __restrict__ gemm_bias, float* __restrict__ out, int batch_size, int input_size, int hidden_size) {
  const int tile_rows = BLOCK_SIZE / TILE_COLUMNS;
  const int blocks = ((batch_size + tile_rows - 1) / tile_rows) * ((hidden_size + TILE_COLUMNS - 1) / TILE_COLUMNS);
  level2_70_kernel<<<blocks, BLOCK_SIZE>>>(x, gemm_weight, gemm_bias, out, batch_size, input_size, hidden_size);
}
