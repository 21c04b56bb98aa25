extern "C" __global__ void run(float* y, const float* x, int T, int D) {
  const int row = blockIdx.x, lane = threadIdx.x;
  float largest = x[row * D + lane % D];
  for (int i = lane; i < D; i += 32) largest = fmaxf(largest, x[row * D + i]);
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  const float shift = $shift;
  float sum = 0.0f;
  for (int i = lane; i < D; i += 32) sum += expf(x[row * D + i] - shift);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  for (int i = lane; i < D; i += 32) {
    float result = expf(x[row * D + i] - shift) / sum;
    $each
    y[row * D + i] = result;
  }
}
