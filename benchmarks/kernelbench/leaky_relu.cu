#define BLOCK_SIZE 256

__global__ void leaky_relu_kernel(const float* __restrict__ x, float* __restrict__ out, int batch_size, int dim) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * dim) return;
  out[i] = x[i] > 0 ? x[i] : 0.02f * x[i];
}

void launch(const float* x, float* out, int batch_size, int dim) {
  leaky_relu_kernel<<<(batch_size * dim + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, out, batch_size, dim);
}
