#define BLOCK_SIZE 256

__global__ void max_over_columns_kernel(const float* __restrict__ x, float* __restrict__ out, int batch_size, int rows, int columns) {
  __shared__ float shared[BLOCK_SIZE];
  const float* row = x + (long long)blockIdx.x * columns;
  float mine = -INFINITY;
  for (int c = threadIdx.x; c < columns; c += BLOCK_SIZE) mine = fmaxf(mine, row[c]);
  shared[threadIdx.x] = mine;
  for (int half = BLOCK_SIZE / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = shared[0];
}

void launch(const float* x, float* out, int batch_size, int rows, int columns) {
  max_over_columns_kernel<<<batch_size * rows, BLOCK_SIZE>>>(x, out, batch_size, rows, columns);
}
