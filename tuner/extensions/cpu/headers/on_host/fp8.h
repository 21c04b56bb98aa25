// fp8 as CUDA's header names it, rounded to nearest even in software.
#pragma once

#include "narrow_arithmetic.h"

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
using __nv_fp8_storage_t = unsigned char;
using __nv_fp8x2_storage_t = unsigned short;
using __nv_fp8x4_storage_t = unsigned int;

inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t saturation,
                                                 __nv_fp8_interpretation_t kind) {
  const unsigned sign = std::signbit(x) ? 0x80 : 0;
  const bool e4m3 = kind == __NV_E4M3;
  if (x != x) return e4m3 ? 0x7F : 0x7E;
  const unsigned largest = e4m3 ? 0x7E : 0x7B;
  const unsigned beyond = saturation == __NV_SATFINITE ? largest : e4m3 ? 0x7F : 0x7C;
  unsigned code = beyond;
  if (fabs(x) < 1e6) code = e4m3 ? cuda_on_host::round_code(fabs(x), 3, 7)
                                 : cuda_on_host::round_code(fabs(x), 2, 15);
  return static_cast<__nv_fp8_storage_t>(sign | (code > largest ? beyond : code));
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation,
                                                __nv_fp8_interpretation_t kind) {
  return __nv_cvt_double_to_fp8(x, saturation, kind);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t saturation,
                                                     __nv_fp8_interpretation_t kind) {
  return static_cast<__nv_fp8x2_storage_t>(__nv_cvt_float_to_fp8(v.x, saturation, kind) |
                                           __nv_cvt_float_to_fp8(v.y, saturation, kind) << 8);
}

namespace cuda_on_host {

template <__nv_fp8_interpretation_t kKind>
float decode8(unsigned char code) {
  const unsigned size = code & 0x7F;
  float value = kKind == __NV_E4M3 ? code_value(size, 3, 7) : code_value(size, 2, 15);
  if (kKind == __NV_E4M3 ? size == 0x7F : size > 0x7C) value = __builtin_nanf("");
  if (kKind == __NV_E5M2 && size == 0x7C) value = __builtin_inff();
  return code & 0x80 ? -value : value;
}

// Whether a number converts from and to float without being asked, as PyTorch's do: a unit says so.
template <__nv_fp8_interpretation_t kKind>
struct Implicit : std::false_type {};

template <__nv_fp8_interpretation_t kKind, bool kImplicit>
struct Code8 {
  __nv_fp8_storage_t __x;
  explicit operator float() const { return decode8<kKind>(__x); }
};

template <__nv_fp8_interpretation_t kKind>
struct Code8<kKind, true> {
  __nv_fp8_storage_t __x;
  operator float() const { return decode8<kKind>(__x); }
};

template <__nv_fp8_interpretation_t kKind>
struct Fp8 : Code8<kKind, Implicit<kKind>::value> {
  Fp8() = default;
  template <class T>
  static constexpr bool kImplicit = Implicit<kKind>::value && std::is_same<T, float>::value;
  template <class T, std::enable_if_t<std::is_convertible<T, float>::value && !kImplicit<T>, int> = 0>
  explicit Fp8(T x) {
    this->__x = __nv_cvt_double_to_fp8(static_cast<double>(x), __NV_SATFINITE, kKind);
  }
  template <class T, std::enable_if_t<kImplicit<T>, int> = 0>
  Fp8(T x) {
    this->__x = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kKind);
  }
  explicit operator double() const { return decode8<kKind>(this->__x); }
  explicit operator __half() const { return decode8<kKind>(this->__x); }
  explicit operator __nv_bfloat16() const { return decode8<kKind>(this->__x); }
};

template <__nv_fp8_interpretation_t kKind>
struct Fp8x2 {
  __nv_fp8x2_storage_t __x;

  Fp8x2() = default;
  explicit Fp8x2(float2 v) : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, kKind)) {}
  explicit Fp8x2(__half2 v) : Fp8x2(float2{v.x, v.y}) {}
  explicit Fp8x2(__nv_bfloat162 v) : Fp8x2(float2{v.x, v.y}) {}
  explicit operator __half2() const {
    const float2 v = float2(*this);
    return {v.x, v.y};
  }
  explicit operator float2() const {
    return {decode8<kKind>(static_cast<unsigned char>(__x)), decode8<kKind>(static_cast<unsigned char>(__x >> 8))};
  }
};

template <__nv_fp8_interpretation_t kKind>
struct Fp8x4 {
  __nv_fp8x4_storage_t __x;

  Fp8x4() = default;
  explicit Fp8x4(float4 v)
      : __x(__nv_cvt_float2_to_fp8x2({v.x, v.y}, __NV_SATFINITE, kKind) |
            static_cast<unsigned>(__nv_cvt_float2_to_fp8x2({v.z, v.w}, __NV_SATFINITE, kKind)) << 16) {}
  explicit Fp8x4(__half2 low, __half2 high) : Fp8x4(float4{low.x, low.y, high.x, high.y}) {}
  explicit Fp8x4(__nv_bfloat162 low, __nv_bfloat162 high) : Fp8x4(float4{low.x, low.y, high.x, high.y}) {}
  explicit operator float4() const {
    const auto at = [this](int i) { return decode8<kKind>(static_cast<unsigned char>(__x >> (8 * i))); };
    return {at(0), at(1), at(2), at(3)};
  }
};

}  // namespace cuda_on_host

using __nv_fp8_e4m3 = cuda_on_host::Fp8<__NV_E4M3>;
using __nv_fp8_e5m2 = cuda_on_host::Fp8<__NV_E5M2>;
using __nv_fp8x2_e4m3 = cuda_on_host::Fp8x2<__NV_E4M3>;
using __nv_fp8x2_e5m2 = cuda_on_host::Fp8x2<__NV_E5M2>;
using __nv_fp8x4_e4m3 = cuda_on_host::Fp8x4<__NV_E4M3>;
using __nv_fp8x4_e5m2 = cuda_on_host::Fp8x4<__NV_E5M2>;

namespace cuda_on_host {
inline float decode8(unsigned code, __nv_fp8_interpretation_t kind) {
  const unsigned char byte = static_cast<unsigned char>(code);
  return kind == __NV_E4M3 ? decode8<__NV_E4M3>(byte) : decode8<__NV_E5M2>(byte);
}
}  // namespace cuda_on_host

inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
  return __half(cuda_on_host::decode8(x, kind));
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t kind) {
  return {__half(cuda_on_host::decode8(x, kind)).code, __half(cuda_on_host::decode8(x >> 8u, kind)).code};
}
inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t saturation,
                                                  __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(__half(x), saturation, kind);
}
inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, __nv_saturation_t saturation,
                                                      __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(__nv_bfloat16(x), saturation, kind);
}
inline __nv_fp8x2_storage_t __nv_cvt_halfraw2_to_fp8x2(__half2_raw x, __nv_saturation_t saturation,
                                                       __nv_fp8_interpretation_t kind) {
  const __half2 v = x;
  return __nv_cvt_float2_to_fp8x2({v.x, v.y}, saturation, kind);
}
inline __nv_fp8x2_storage_t __nv_cvt_bfloat16raw2_to_fp8x2(__nv_bfloat162_raw x, __nv_saturation_t saturation,
                                                           __nv_fp8_interpretation_t kind) {
  const __nv_bfloat162 v = x;
  return __nv_cvt_float2_to_fp8x2({v.x, v.y}, saturation, kind);
}
inline __nv_fp8x2_storage_t __nv_cvt_double2_to_fp8x2(double2 v, __nv_saturation_t saturation,
                                                      __nv_fp8_interpretation_t kind) {
  return static_cast<__nv_fp8x2_storage_t>(__nv_cvt_double_to_fp8(v.x, saturation, kind) |
                                           __nv_cvt_double_to_fp8(v.y, saturation, kind) << 8);
}
