extern "C" __global__ void weighted_sum(float* out, const float* x, const float* w, int K) {
  float sum = 0.0f;
  for (int k = threadIdx.x; k < K; k += 32) sum += x[blockIdx.x * K + k] * w[k];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
