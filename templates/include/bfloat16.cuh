// Pairs of bf16 numbers as 32 bits, the first of them in the lower half.
#include <cuda_bf16.h>

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }

__device__ __forceinline__ float high(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Both, exactly.
__device__ __forceinline__ float2 floats(unsigned pair) { return {low(pair), high(pair)}; }

// Two floats, each rounded to nearest even.
__device__ __forceinline__ unsigned rounded(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
