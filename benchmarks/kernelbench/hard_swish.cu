#define BLOCK_SIZE 256

__global__ void hard_swish_kernel(const float* __restrict__ x, float* __restrict__ out, int batch_size, int dim) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * dim) return;
  out[i] = x[i] * (fminf(fmaxf(x[i] + 3.0f, 0.0f), 6.0f) / 6.0f);
}

void launch(const float* x, float* out, int batch_size, int dim) {
  hard_swish_kernel<<<(batch_size * dim + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, out, batch_size, dim);
}
