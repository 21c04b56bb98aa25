#include <torch/extension.h>

namespace fast {
#ifdef ENABLE_FAST
__device__ __forceinline__ float doubled(float x) { return x + x; }
#endif
}  // namespace fast

__global__ void twice_kernel(float* y, const float* x) {
  y[threadIdx.x] = fast::doubled(x[threadIdx.x]);
}
#ifdef ENABLE_WIDE
__global__ void thrice_kernel(float* y, const float* x) { y[threadIdx.x] = 3.0f * x[threadIdx.x]; }
#endif

void run(float* y, const float* x) {
  twice_kernel<<<1, 128>>>(y, x);
}
