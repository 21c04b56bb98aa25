#ifndef FLASHINFER_MATH_CUH_
#define FLASHINFER_MATH_CUH_
#include <cuda_runtime.h>

namespace flashinfer {
namespace math {

constexpr float log2e = 1.44269504088896340736f;

__forceinline__ __device__ float shfl_xor_sync(float x, int lane_mask) {
  return __shfl_xor_sync(0xffffffff, x, lane_mask);
}

__forceinline__ __device__ float rsqrt(float x) { return rsqrtf(x); }

}  // namespace math
}  // namespace flashinfer
#endif  // FLASHINFER_MATH_CUH_
