#define BLOCK_SIZE 256

__global__ void tanh_gelu_kernel(const float* __restrict__ x, float* __restrict__ out, int batch_size, int dim) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size * dim) return;
  const float v = x[i];
  out[i] = 0.5f * v * (1.0f + tanhf(0.7978845608f * v * (1.0f + 0.044715f * v * v)));
}

void launch(const float* x, float* out, int batch_size, int dim) {
  tanh_gelu_kernel<<<(batch_size * dim + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, out, batch_size, dim);
}
