#include <cuda_fp16.h>

constexpr int kParts = 8;

// A block for every part of a row; whoever finds the others done adds them up, in one order, and
// never resets the counter.
extern "C" __global__ void run(float* y, float* partial, unsigned* done, const __half* x, int T,
                               int D) {
  const int row = blockIdx.x / kParts, part = blockIdx.x % kParts;
  if (threadIdx.x != 0) return;
  float sum = 0.0f;
  for (int i = part; i < D; i += kParts) {
    const float value = __half2float(x[row * D + i]);
    sum += value * value;
  }
  partial[blockIdx.x] = sum;
  __threadfence();
  if (atomicAdd(&done[row], 1u) % kParts != kParts - 1) return;
  __threadfence();
  float total = 0.0f;
  for (int i = 0; i < kParts; ++i) total += __ldcg(&partial[row * kParts + i]);
  y[row] = total;
}
