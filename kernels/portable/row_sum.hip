// out[t] = the sum of x[t, :] in float32: a block of 256 threads a row.
#include <hip/hip_runtime.h>

extern "C" __global__ void row_sum(float* out, const float* x, int T, int K) {
  __shared__ float partial[256];
  const float* row = x + static_cast<long long>(blockIdx.x) * K;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < K; i += 256) sum += row[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}
