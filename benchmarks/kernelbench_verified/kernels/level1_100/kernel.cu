// A kernel for level1_100.py: out [1] from predictions [batch_size, batch_size], targets [batch_size], row-major.
// out[0] = mean over (r, c) of max(0, 1 - predictions[r, c] * targets[c]): targets run along the last axis.
// A block takes whole rows, a grid's stride apart; the last block to finish adds up the blocks' sums.
#define BLOCK_SIZE 256
#define MAX_BLOCKS 792  // 6 blocks of 256 threads (33 registers each) on each of 132 SMs: one wave

__device__ double level1_100_partial[MAX_BLOCKS];
__device__ unsigned int level1_100_done = 0;  // back to 0 after each launch: atomicInc wraps around

// The sum over the block, in thread 0.
__device__ double level1_100_block_sum(double v) {
  __shared__ double s[BLOCK_SIZE];
  __syncthreads();
  s[threadIdx.x] = v;
  for (int n = BLOCK_SIZE; n > 1;) {
    const int half = (n + 1) / 2;
    __syncthreads();
    if ((int)threadIdx.x < n - half) s[threadIdx.x] += s[threadIdx.x + half];
    n = half;
  }
  return s[0];
}

__global__ void level1_100_kernel(const float* __restrict__ predictions, const float* __restrict__ targets, float* __restrict__ out, int batch_size, int input_shape_0) {
  __shared__ bool last;
  double total = 0.0;
  for (int r = blockIdx.x; r < batch_size; r += gridDim.x) {
    const float* row = predictions + (long long)r * input_shape_0;
    float sum = 0.0f;
#pragma unroll 4
    for (int c = threadIdx.x; c < input_shape_0; c += BLOCK_SIZE) {
      const float h = 1.0f - row[c] * targets[c];
      sum += h < 0.0f ? 0.0f : h;  // a NaN stays one, as in clamp
    }
    total += sum;
  }

  total = level1_100_block_sum(total);
  if (threadIdx.x == 0) {
    level1_100_partial[blockIdx.x] = total;
    __threadfence();
    last = atomicInc(&level1_100_done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;

  __threadfence();
  double all = 0.0;
  for (int b = threadIdx.x; b < (int)gridDim.x; b += BLOCK_SIZE) all += __ldcg(&level1_100_partial[b]);
  all = level1_100_block_sum(all);
  if (threadIdx.x == 0) out[0] = (float)(all / ((double)batch_size * (double)input_shape_0));
}

void launch(const float* __restrict__ predictions, const float* __restrict__ targets, float* __restrict__ out, int batch_size, int input_shape_0) {
  const int blocks = batch_size < MAX_BLOCKS ? batch_size : MAX_BLOCKS;
  level1_100_kernel<<<blocks, BLOCK_SIZE>>>(predictions, targets, out, batch_size, input_shape_0);
}
