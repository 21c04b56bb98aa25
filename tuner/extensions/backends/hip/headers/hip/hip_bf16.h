// bfloat16 as HIP names it: 16 bits, rounded to the nearest, ties to even.
#pragma once

#include <hip/hip_runtime.h>

struct __hip_bfloat16 {
  unsigned short data;
  __hip_bfloat16() = default;
  __device__ explicit __hip_bfloat16(float value) {
    const unsigned bits = __builtin_bit_cast(unsigned, value);
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    data = static_cast<unsigned short>(is_nan ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
  __device__ operator float() const { return __builtin_bit_cast(float, static_cast<unsigned>(data) << 16); }
};
struct __attribute__((aligned(4))) __hip_bfloat162 { __hip_bfloat16 x, y; };

TUNE_DEVICE float __bfloat162float(__hip_bfloat16 x) { return x; }
TUNE_DEVICE __hip_bfloat16 __float2bfloat16(float x) { return __hip_bfloat16(x); }
TUNE_DEVICE __hip_bfloat162 __halves2bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return {x, y}; }
TUNE_DEVICE __hip_bfloat162 __float22bfloat162_rn(float2 x) { return {__hip_bfloat16(x.x), __hip_bfloat16(x.y)}; }
TUNE_DEVICE float2 __bfloat1622float2(__hip_bfloat162 x) { return {x.x, x.y}; }
TUNE_DEVICE unsigned short __bfloat16_as_ushort(__hip_bfloat16 x) { return x.data; }
TUNE_DEVICE __hip_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __builtin_bit_cast(__hip_bfloat16, x); }
