// A kernel for level1_20.py: out [batch_size, dim] from x [batch_size, dim], row-major.
#define BLOCK_SIZE 256

__global__ void level1_20_kernel(const float* __restrict__ x, float* __restrict__ out, int batch_size, int dim) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * dim) return;
  const float v = x[i];
  out[i] = v > 0.0f ? v : 0.01f * v;  // negative_slope = 0.01
}

void launch(const float* __restrict__ x, float* __restrict__ out, int batch_size, int dim) {
  const int blocks = (batch_size * dim + BLOCK_SIZE - 1) / BLOCK_SIZE;
  level1_20_kernel<<<blocks, BLOCK_SIZE>>>(x, out, batch_size, dim);
}
