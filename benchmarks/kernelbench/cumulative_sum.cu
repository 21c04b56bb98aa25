#define BLOCK_SIZE 256

__global__ void cumulative_sum_kernel(const float* __restrict__ x, float* __restrict__ out, int batch_size, int dim) {
  const long long i = blockIdx.x * (long long)BLOCK_SIZE + threadIdx.x;
  if (i >= (long long)batch_size) return;
  float sum = 0.0f;
  for (int c = 0; c < dim; ++c) {
    sum += x[i * dim + c];
    out[i * dim + c] = sum;
  }
}

void launch(const float* x, float* out, int batch_size, int dim) {
  cumulative_sum_kernel<<<(batch_size + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(x, out, batch_size, dim);
}
