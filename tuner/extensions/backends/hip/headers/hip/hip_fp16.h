// Half precision as HIP names it, on the compiler's own _Float16.
#pragma once

#include <hip/hip_runtime.h>

struct __half {
  _Float16 data;
  __host__ __device__ __half() = default;
  __host__ __device__ constexpr __half(_Float16 value) : data(value) {}
  __host__ __device__ constexpr __half(float value) : data(static_cast<_Float16>(value)) {}
  __host__ __device__ constexpr __half(double value) : data(static_cast<_Float16>(value)) {}
  __host__ __device__ constexpr __half(int value) : data(static_cast<_Float16>(value)) {}
  __host__ __device__ constexpr operator float() const { return static_cast<float>(data); }
};
typedef __half half;
struct __attribute__((aligned(4))) __half2 { __half x, y; };
typedef __half2 half2;

#define TUNE_HALF(OPERATOR) \
  TUNE_DEVICE __half operator OPERATOR(__half a, __half b) { return static_cast<_Float16>(a.data OPERATOR b.data); }
TUNE_HALF(+)
TUNE_HALF(-)
TUNE_HALF(*)
TUNE_HALF(/)
#undef TUNE_HALF
TUNE_DEVICE float __half2float(__half x) { return static_cast<float>(x.data); }
TUNE_DEVICE __half __float2half(float x) { return static_cast<_Float16>(x); }
TUNE_DEVICE __half __float2half_rn(float x) { return static_cast<_Float16>(x); }
TUNE_DEVICE __half __hadd(__half a, __half b) { return a + b; }
TUNE_DEVICE __half __hmul(__half a, __half b) { return a * b; }
TUNE_DEVICE __half __hfma(__half a, __half b, __half c) { return __builtin_fmaf16(a.data, b.data, c.data); }
TUNE_DEVICE __half2 __halves2half2(__half x, __half y) { return {x, y}; }
TUNE_DEVICE __half2 make_half2(__half x, __half y) { return {x, y}; }
TUNE_DEVICE __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
TUNE_DEVICE __half2 __float22half2_rn(float2 x) { return __floats2half2_rn(x.x, x.y); }
TUNE_DEVICE float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
TUNE_DEVICE float __low2float(__half2 x) { return __half2float(x.x); }
TUNE_DEVICE float __high2float(__half2 x) { return __half2float(x.y); }
TUNE_DEVICE unsigned short __half_as_ushort(__half x) { return __builtin_bit_cast(unsigned short, x); }
TUNE_DEVICE __half __ushort_as_half(unsigned short x) { return __builtin_bit_cast(__half, x); }
