#include <cuda_fp16.h>

__device__ int lock;

extern "C" __global__ void clear(float* y, const __half* x, int T, int D) {
  if (threadIdx.x < D) y[threadIdx.x] = 0.0f;
}

// One block at a time adds its rows.
extern "C" __global__ void add(float* y, const __half* x, int T, int D) {
  if (threadIdx.x == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) __nanosleep(100);
    __threadfence();
  }
  __syncthreads();
  float sum = __ldcg(&y[threadIdx.x]);
  for (int row = blockIdx.x; row < T; row += gridDim.x) {
    const float value = __half2float(x[row * D + threadIdx.x]);
    sum += value * value;
  }
  __stcg(&y[threadIdx.x], sum);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(&lock, 0);
}
