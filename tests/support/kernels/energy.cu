#include <cuda_bf16.h>
#include <cuda_fp16.h>
$top
extern "C" __global__ void run(float* y, const __half* x, int T, int D) {
  const int row = blockIdx.x, lane = threadIdx.x;
  if (row >= T) return;
  $before
  $zero
  for (int i = lane; i < D; i += 32) {
    const float value = __half2float(x[row * D + i]);
    $add
  }
  $after
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) { $store }
}
