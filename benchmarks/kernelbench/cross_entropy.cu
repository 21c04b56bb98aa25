#define BLOCK_SIZE 256

__global__ void cross_entropy_kernel(const float* __restrict__ predictions, const long long* __restrict__ targets, float* __restrict__ out,
    int batch_size, int classes) {
  __shared__ float shared[BLOCK_SIZE];
  float mine = 0.0f;
  for (int r = threadIdx.x; r < batch_size; r += BLOCK_SIZE) {
    const float* row = predictions + (long long)r * classes;
    float largest = row[0], sum = 0.0f;
    for (int c = 1; c < classes; ++c) largest = fmaxf(largest, row[c]);
    for (int c = 0; c < classes; ++c) sum += expf(row[c] - largest);
    mine += (logf(sum) + largest - row[targets[r]]) / batch_size;
  }
  shared[threadIdx.x] = mine;
  for (int half = BLOCK_SIZE / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = shared[threadIdx.x] + shared[threadIdx.x + half];
  }
  __syncthreads();
  if (threadIdx.x == 0) out[0] = shared[0];
}

void launch(const float* predictions, const long long* targets, float* out,
    int batch_size, int classes) {
  cross_entropy_kernel<<<1, BLOCK_SIZE>>>(predictions, targets, out, batch_size, classes);
}
