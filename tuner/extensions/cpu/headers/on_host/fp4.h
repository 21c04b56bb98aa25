// fp4 as CUDA's header names it: e2m1, rounded to nearest even, 6 for what is beyond.
#pragma once

#include "fp8.h"

enum __nv_fp4_interpretation_t { __NV_E2M1 };
enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };
using __nv_fp4_storage_t = unsigned char;
using __nv_fp4x2_storage_t = unsigned char;
using __nv_fp4x4_storage_t = unsigned short;

namespace cuda_on_host {

inline unsigned code_e2m1(double x) {
  if (x != x) return 7;
  const unsigned sign = std::signbit(x) ? 8 : 0, code = fabs(x) < 16 ? round_code(fabs(x), 1, 1) : 7;
  return sign | (code < 7 ? code : 7);
}
inline float value_e2m1(unsigned code) { return (code & 8 ? -1.0f : 1.0f) * code_value(code & 7, 1, 1); }

}  // namespace cuda_on_host

inline __nv_fp4_storage_t __nv_cvt_double_to_fp4(double x, __nv_fp4_interpretation_t, cudaRoundMode) {
  return static_cast<__nv_fp4_storage_t>(cuda_on_host::code_e2m1(x));
}
inline __nv_fp4x2_storage_t __nv_cvt_double2_to_fp4x2(double2 v, __nv_fp4_interpretation_t, cudaRoundMode) {
  return static_cast<__nv_fp4x2_storage_t>(cuda_on_host::code_e2m1(v.x) | cuda_on_host::code_e2m1(v.y) << 4);
}
inline __half_raw __nv_cvt_fp4_to_halfraw(__nv_fp4_storage_t x, __nv_fp4_interpretation_t) {
  return __half(cuda_on_host::value_e2m1(x));
}
inline __half2_raw __nv_cvt_fp4x2_to_halfraw2(__nv_fp4x2_storage_t x, __nv_fp4_interpretation_t) {
  return __half2(cuda_on_host::value_e2m1(x), cuda_on_host::value_e2m1(x >> 4));
}
#define ON_HOST_TO_FP4(NAME, ONE, TWO, PAIR)                                                          \
  inline __nv_fp4_storage_t __nv_cvt_##NAME##_to_fp4(ONE x, __nv_fp4_interpretation_t kind, cudaRoundMode mode) { \
    return __nv_cvt_double_to_fp4(static_cast<float>(x), kind, mode);                                 \
  }                                                                                                   \
  inline __nv_fp4x2_storage_t __nv_cvt_##NAME##2_to_fp4x2(TWO x, __nv_fp4_interpretation_t kind, cudaRoundMode mode) { \
    const PAIR v = x;                                                                                 \
    return __nv_cvt_double2_to_fp4x2({v.x, v.y}, kind, mode);                                         \
  }
ON_HOST_TO_FP4(float, float, float2, float2)
ON_HOST_TO_FP4(halfraw, __half, __half2_raw, __half2)
ON_HOST_TO_FP4(bfloat16raw, __nv_bfloat16, __nv_bfloat162_raw, __nv_bfloat162)
#undef ON_HOST_TO_FP4

struct __nv_fp4_e2m1 {
  __nv_fp4_storage_t __x;

  __nv_fp4_e2m1() = default;
  template <class T, class = std::enable_if_t<std::is_convertible<T, float>::value>>
  explicit __nv_fp4_e2m1(T x) : __x(__nv_cvt_double_to_fp4(static_cast<double>(x), __NV_E2M1, cudaRoundNearest)) {}
  explicit operator float() const { return cuda_on_host::value_e2m1(__x); }
  explicit operator __half() const { return float(*this); }
  explicit operator __nv_bfloat16() const { return float(*this); }
};
struct __nv_fp4x2_e2m1 {
  __nv_fp4x2_storage_t __x;

  __nv_fp4x2_e2m1() = default;
  explicit __nv_fp4x2_e2m1(float2 v) : __x(__nv_cvt_float2_to_fp4x2(v, __NV_E2M1, cudaRoundNearest)) {}
  explicit __nv_fp4x2_e2m1(__half2 v) : __nv_fp4x2_e2m1(float2{v.x, v.y}) {}
  explicit __nv_fp4x2_e2m1(__nv_bfloat162 v) : __nv_fp4x2_e2m1(float2{v.x, v.y}) {}
  explicit operator float2() const { return {cuda_on_host::value_e2m1(__x), cuda_on_host::value_e2m1(__x >> 4)}; }
  explicit operator __half2() const { return __nv_cvt_fp4x2_to_halfraw2(__x, __NV_E2M1); }
};
struct __nv_fp4x4_e2m1 {
  __nv_fp4x4_storage_t __x;

  __nv_fp4x4_e2m1() = default;
  explicit __nv_fp4x4_e2m1(float4 v)
      : __x(static_cast<__nv_fp4x4_storage_t>(__nv_fp4x2_e2m1(float2{v.x, v.y}).__x |
                                              __nv_fp4x2_e2m1(float2{v.z, v.w}).__x << 8)) {}
  explicit operator float4() const {
    const auto at = [this](int i) { return cuda_on_host::value_e2m1(__x >> 4 * i); };
    return {at(0), at(1), at(2), at(3)};
  }
};
