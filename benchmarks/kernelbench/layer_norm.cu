#define BLOCK_SIZE 256

__global__ void layer_norm_kernel(const float* __restrict__ x, const float* __restrict__ norm_weight, const float* __restrict__ norm_bias,
    float* __restrict__ out, int rows, int features) {
  __shared__ float shared[BLOCK_SIZE];
  const float* row = x + (long long)blockIdx.x * features;
  float mine = 0.0f;
  for (int c = threadIdx.x; c < features; c += BLOCK_SIZE) mine += row[c];
  shared[threadIdx.x] = mine;
  for (int half = BLOCK_SIZE / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = shared[threadIdx.x] + shared[threadIdx.x + half];
  }
  __syncthreads();
  const float mean = shared[0] / features;
  __syncthreads();
  mine = 0.0f;
  for (int c = threadIdx.x; c < features; c += BLOCK_SIZE) mine += (row[c] - mean) * (row[c] - mean);
  shared[threadIdx.x] = mine;
  for (int half = BLOCK_SIZE / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = shared[threadIdx.x] + shared[threadIdx.x + half];
  }
  __syncthreads();
  const float scale = rsqrtf(shared[0] / features + 1e-5f);
  for (int c = threadIdx.x; c < features; c += BLOCK_SIZE)
    out[(long long)blockIdx.x * features + c] = (row[c] - mean) * scale * norm_weight[c] + norm_bias[c];
}

void launch(const float* x, const float* norm_weight, const float* norm_bias,
    float* out, int rows, int features) {
  layer_norm_kernel<<<rows, BLOCK_SIZE>>>(x, norm_weight, norm_bias, out, rows, features);
}
