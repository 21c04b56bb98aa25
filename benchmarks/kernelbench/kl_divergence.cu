#define BLOCK_SIZE 256

__global__ void kl_divergence_kernel(const float* __restrict__ predictions, const float* __restrict__ targets, float* __restrict__ out,
    int batch_size, int dim) {
  __shared__ float shared[BLOCK_SIZE];
  float mine = 0.0f;
  for (long long i = threadIdx.x; i < (long long)batch_size * dim; i += BLOCK_SIZE)
    mine += targets[i] * (logf(targets[i]) - logf(predictions[i]));
  shared[threadIdx.x] = mine;
  for (int half = BLOCK_SIZE / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = shared[threadIdx.x] + shared[threadIdx.x + half];
  }
  __syncthreads();
  if (threadIdx.x == 0) out[0] = shared[0] / batch_size;
}

void launch(const float* predictions, const float* targets, float* out,
    int batch_size, int dim) {
  kl_divergence_kernel<<<1, BLOCK_SIZE>>>(predictions, targets, out, batch_size, dim);
}
