#include <cuda_fp16.h>

extern "C" __global__ void run(float* y, const __half* x, int T, int D) {
  extern __shared__ float sums[];
  const int row = blockIdx.x, thread = threadIdx.x;
  float sum = 0.0f;
  for (int i = thread; i < D; i += blockDim.x) {
    const float value = __half2float(x[row * D + i]);
    sum += value * value;
  }
  sums[thread] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    __syncthreads();
  }
  if (thread == 0) y[row] = sums[0];
}
