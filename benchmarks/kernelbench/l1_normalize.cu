#define BLOCK_SIZE 256

__global__ void l1_normalize_kernel(const float* __restrict__ x, float* __restrict__ out, int batch_size, int dim) {
  __shared__ float shared[BLOCK_SIZE];
  const float* row = x + (long long)blockIdx.x * dim;
  float mine = 0.0f;
  for (int c = threadIdx.x; c < dim; c += BLOCK_SIZE) mine += fabsf(row[c]);
  shared[threadIdx.x] = mine;
  for (int half = BLOCK_SIZE / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = shared[threadIdx.x] + shared[threadIdx.x + half];
  }
  __syncthreads();
  const float mean = shared[0] / dim;
  for (int c = threadIdx.x; c < dim; c += BLOCK_SIZE) out[(long long)blockIdx.x * dim + c] = row[c] / mean;
}

void launch(const float* x, float* out, int batch_size, int dim) {
  l1_normalize_kernel<<<batch_size, BLOCK_SIZE>>>(x, out, batch_size, dim);
}
