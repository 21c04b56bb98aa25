#include <cuda_runtime.h>

#include "unary.h"

// Every operator is one line.
#define DEFINE_UNARY(name, expression)                                          \
  __device__ __forceinline__ float name##_of(float x) { return expression; }    \
  __global__ void name##_kernel(float* __restrict__ out, const float* __restrict__ in, int n) { \
    const int i = blockIdx.x * blockDim.x + threadIdx.x;                        \
    if (i < n) out[i] = name##_of(in[i]);                                       \
  }                                                                             \
  void name(float* out, const float* in, int n, cudaStream_t stream) {          \
    name##_kernel<<<(n + 255) / 256, 256, 0, stream>>>(out, in, n);             \
    CHECK_LAUNCH();                                                             \
  }

DEFINE_UNARY(relu, fmaxf(x, kZero))
DEFINE_UNARY(square, x * x)
