// bf16, fp16 and fp8 as CUDA's headers name them, rounded to nearest even in software.
#pragma once

#include "../cuda_on_host.h"

namespace cuda_on_host {

// Round to `mantissa_bits`, ties to even; the caller handles NaN, infinity and overflow.
inline unsigned round_code(double value, int mantissa_bits, int bias) {
  unsigned long long bits;
  memcpy(&bits, &value, sizeof bits);
  int exponent = static_cast<int>(bits >> 52 & 0x7FF) - 1023;
  if (exponent == -1023) return 0;
  const unsigned long long mantissa = (bits & 0xFFFFFFFFFFFFFull) | 1ull << 52;
  const int lowest = 1 - bias;
  int shift = 52 - mantissa_bits;
  if (exponent < lowest) {
    shift += lowest - exponent;
    exponent = lowest;
  }
  if (shift >= 54) return 0;
  unsigned long long code = mantissa >> shift;
  const unsigned long long rest = mantissa & ((1ull << shift) - 1), half = 1ull << (shift - 1);
  code += rest > half || (rest == half && (code & 1));
  return static_cast<unsigned>((static_cast<unsigned long long>(exponent - lowest) << mantissa_bits) + code);
}

inline float code_value(unsigned code, int mantissa_bits, int bias) {
  const int exponent = static_cast<int>(code >> mantissa_bits);
  const float mantissa = static_cast<float>(code & ((1u << mantissa_bits) - 1));
  const float one = static_cast<float>(1u << mantissa_bits);
  if (exponent == 0) return ldexpf(mantissa, 1 - bias - mantissa_bits);
  return ldexpf(one + mantissa, exponent - bias - mantissa_bits);
}

struct Bf16 {
  static constexpr unsigned kInfinity = 0x7F80, kNan = 0x7FFF;
  static unsigned magnitude(double x) { return round_code(x, 7, 127); }
  static float decode(unsigned short code) { return __uint_as_float(static_cast<unsigned>(code) << 16); }
};

struct Fp16 {
  static constexpr unsigned kInfinity = 0x7C00, kNan = 0x7FFF;
  static unsigned magnitude(double x) { return round_code(x, 10, 15); }
  static float decode(unsigned short code) {
    const unsigned size = code & 0x7FFF;
    float value = size > kInfinity ? __builtin_nanf("") : size == kInfinity ? __builtin_inff() : code_value(size, 10, 15);
    return code & 0x8000 ? -value : value;
  }
};

template <class Format>
unsigned short encode16(double x) {
  if (x != x) return Format::kNan;
  const unsigned sign = std::signbit(x) ? 0x8000 : 0;
  unsigned code = Format::kInfinity;
  if (fabs(x) <= 0x1.fffffep127 * 2) code = Format::magnitude(fabs(x));
  return static_cast<unsigned short>(sign | (code < Format::kInfinity ? code : Format::kInfinity));
}

// From float, which is the usual way, bf16 takes a shift and an addition.
template <class Format>
unsigned short encode16(float x) {
  if (!std::is_same<Format, Bf16>::value) return encode16<Format>(static_cast<double>(x));
  if (x != x) return Format::kNan;
  const unsigned bits = __float_as_uint(x);
  return static_cast<unsigned short>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Arithmetic in float and one rounding is exact: float has more than twice the digits.
template <class Format>
struct Narrow {
  unsigned short code;

  Narrow() = default;
  Narrow(float x) : code(encode16<Format>(x)) {}
  Narrow(double x) : code(encode16<Format>(x)) {}
  template <class I, class = std::enable_if_t<std::is_integral<I>::value>>
  Narrow(I x) : code(encode16<Format>(static_cast<double>(x))) {}
  operator float() const { return Format::decode(code); }
  Narrow operator-() const { return with_code(code ^ 0x8000); }
  Narrow& operator+=(Narrow b) { return *this = *this + b; }
  Narrow& operator-=(Narrow b) { return *this = *this - b; }
  Narrow& operator*=(Narrow b) { return *this = *this * b; }
  Narrow& operator/=(Narrow b) { return *this = *this / b; }
  static Narrow with_code(unsigned code) {
    Narrow result;
    result.code = static_cast<unsigned short>(code);
    return result;
  }
  friend Narrow operator+(Narrow a, Narrow b) { return float(a) + float(b); }
  friend Narrow operator-(Narrow a, Narrow b) { return float(a) - float(b); }
  friend Narrow operator*(Narrow a, Narrow b) { return float(a) * float(b); }
  friend Narrow operator/(Narrow a, Narrow b) { return float(a) / float(b); }
  friend bool operator<(Narrow a, Narrow b) { return float(a) < float(b); }
  friend bool operator>(Narrow a, Narrow b) { return float(a) > float(b); }
  friend bool operator<=(Narrow a, Narrow b) { return float(a) <= float(b); }
  friend bool operator>=(Narrow a, Narrow b) { return float(a) >= float(b); }
  friend bool operator==(Narrow a, Narrow b) { return float(a) == float(b); }
  friend bool operator!=(Narrow a, Narrow b) { return float(a) != float(b); }
};

template <class Format>
struct alignas(4) Pair {
  Narrow<Format> x, y;

  Pair() = default;
  Pair(Narrow<Format> x_, Narrow<Format> y_) : x(x_), y(y_) {}
  friend Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
  friend Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }
  friend Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }
  friend Pair operator/(Pair a, Pair b) { return {a.x / b.x, a.y / b.y}; }
};

}  // namespace cuda_on_host

using __nv_bfloat16 = cuda_on_host::Narrow<cuda_on_host::Bf16>;
using __nv_bfloat162 = cuda_on_host::Pair<cuda_on_host::Bf16>;
using __half = cuda_on_host::Narrow<cuda_on_host::Fp16>;
using __half2 = cuda_on_host::Pair<cuda_on_host::Fp16>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
using half = __half;
using half2 = __half2;

#define ON_HOST_NARROW(ONE, TWO, NAME, NAME2, LONG, LONG2)                                     \
  inline ONE __float2##LONG(float x) { return ONE(x); }                                        \
  inline ONE __float2##LONG##_rn(float x) { return ONE(x); }                                   \
  inline ONE __double2##LONG(double x) { return ONE(x); }                                      \
  inline ONE __int2##LONG##_rn(int x) { return ONE(x); }                                       \
  inline float __##LONG##2float(ONE x) { return x; }                                           \
  inline int __##LONG##2int_rn(ONE x) { return __float2int_rn(x); }                            \
  inline TWO __float2##LONG2##_rn(float x) { return {ONE(x), ONE(x)}; }                        \
  inline TWO __floats2##LONG2##_rn(float x, float y) { return {ONE(x), ONE(y)}; }              \
  inline TWO __float22##LONG2##_rn(float2 v) { return {ONE(v.x), ONE(v.y)}; }                  \
  inline float2 __##LONG2##2float2(TWO v) { return {float(v.x), float(v.y)}; }                 \
  inline TWO __##LONG##2##LONG2(ONE x) { return {x, x}; }                                      \
  inline TWO __halves2##LONG2(ONE x, ONE y) { return {x, y}; }                                 \
  inline TWO make_##LONG2(ONE x, ONE y) { return {x, y}; }                                     \
  inline ONE __low2##LONG(TWO v) { return v.x; }                                               \
  inline ONE __high2##LONG(TWO v) { return v.y; }                                              \
  inline unsigned short __##LONG##_as_ushort(ONE x) { return x.code; }                         \
  inline ONE __ushort_as_##LONG(unsigned short x) { return ONE::with_code(x); }                \
  inline short __##LONG##_as_short(ONE x) { return static_cast<short>(x.code); }               \
  inline ONE __short_as_##LONG(short x) { return ONE::with_code(static_cast<unsigned short>(x)); } \
  inline float __low2float(TWO v) { return v.x; }                                              \
  inline float __high2float(TWO v) { return v.y; }                                             \
  inline ONE __hadd(ONE a, ONE b) { return a + b; }                                            \
  inline ONE __hsub(ONE a, ONE b) { return a - b; }                                            \
  inline ONE __hmul(ONE a, ONE b) { return a * b; }                                            \
  inline ONE __hdiv(ONE a, ONE b) { return a / b; }                                            \
  inline ONE __hfma(ONE a, ONE b, ONE c) { return double(float(a)) * float(b) + float(c); }    \
  inline ONE __hneg(ONE a) { return -a; }                                                      \
  inline ONE __habs(ONE a) { return ONE::with_code(a.code & 0x7FFF); }                         \
  inline ONE __hmax(ONE a, ONE b) { return fmaxf(a, b); }                                      \
  inline ONE __hmin(ONE a, ONE b) { return fminf(a, b); }                                      \
  inline bool __hlt(ONE a, ONE b) { return a < b; }                                            \
  inline bool __hle(ONE a, ONE b) { return a <= b; }                                           \
  inline bool __hgt(ONE a, ONE b) { return a > b; }                                            \
  inline bool __hge(ONE a, ONE b) { return a >= b; }                                           \
  inline bool __heq(ONE a, ONE b) { return a == b; }                                           \
  inline bool __hisnan(ONE a) { return a != a; }                                               \
  inline ONE hexp(ONE a) { return expf(a); }                                                   \
  inline ONE hlog(ONE a) { return logf(a); }                                                   \
  inline ONE hsqrt(ONE a) { return sqrtf(a); }                                                 \
  inline ONE hrsqrt(ONE a) { return rsqrtf(a); }                                               \
  inline ONE hrcp(ONE a) { return 1.0f / float(a); }                                           \
  inline TWO __hadd2(TWO a, TWO b) { return a + b; }                                           \
  inline TWO __hsub2(TWO a, TWO b) { return a - b; }                                           \
  inline TWO __hmul2(TWO a, TWO b) { return a * b; }                                           \
  inline TWO __h2div(TWO a, TWO b) { return a / b; }                                           \
  inline TWO __hfma2(TWO a, TWO b, TWO c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline TWO __hneg2(TWO a) { return {-a.x, -a.y}; }                                           \
  inline TWO __habs2(TWO a) { return {__habs(a.x), __habs(a.y)}; }                             \
  inline TWO __hmax2(TWO a, TWO b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }            \
  inline TWO __hmin2(TWO a, TWO b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
ON_HOST_NARROW(__nv_bfloat16, __nv_bfloat162, bf16, bf162, bfloat16, bfloat162)
ON_HOST_NARROW(__half, __half2, half, half2, half, half2)
#undef ON_HOST_NARROW

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

template <__nv_fp8_interpretation_t kKind>
struct Fp8 {
  __nv_fp8_storage_t __x;

  Fp8() = default;
  template <class T, class = std::enable_if_t<std::is_convertible<T, float>::value>>
  explicit Fp8(T x) : __x(__nv_cvt_double_to_fp8(static_cast<double>(x), __NV_SATFINITE, kKind)) {}
  explicit operator float() const { return decode8<kKind>(__x); }
  explicit operator __half() const { return float(*this); }
  explicit operator __nv_bfloat16() const { return float(*this); }
};

template <__nv_fp8_interpretation_t kKind>
struct Fp8x2 {
  __nv_fp8x2_storage_t __x;

  Fp8x2() = default;
  explicit Fp8x2(float2 v) : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, kKind)) {}
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
