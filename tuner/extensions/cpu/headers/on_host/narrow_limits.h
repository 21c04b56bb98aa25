// std::numeric_limits of floats of 8 and 16 bits, which are 0 without.
#pragma once

#include <limits>

#include "fp8.h"

namespace cuda_on_host {

// Bits of the smallest normal and subnormal numbers, the largest, epsilon, infinity and NaN.
template <class T, class Bits, Bits kMin, Bits kTiny, Bits kMax, Bits kEpsilon, Bits kInfinity, Bits kNan, int kDigits>
struct NarrowLimits {
  static constexpr T of(Bits bits) { return __builtin_bit_cast(T, bits); }
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = kInfinity != 0, has_quiet_NaN = true;
  static constexpr int radix = 2, digits = kDigits;
  static constexpr T min() { return of(kMin); }
  static constexpr T denorm_min() { return of(kTiny); }
  static constexpr T max() { return of(kMax); }
  static constexpr T lowest() { return of(static_cast<Bits>(kMax | Bits(1) << (8 * sizeof(Bits) - 1))); }
  static constexpr T epsilon() { return of(kEpsilon); }
  static constexpr T infinity() { return of(kInfinity); }
  static constexpr T quiet_NaN() { return of(kNan); }
};

}  // namespace cuda_on_host

namespace std {

template <>
struct numeric_limits<__half>
    : cuda_on_host::NarrowLimits<__half, unsigned short, 0x0400, 1, 0x7BFF, 0x1400, 0x7C00, 0x7FFF, 11> {};

template <>
struct numeric_limits<__nv_bfloat16>
    : cuda_on_host::NarrowLimits<__nv_bfloat16, unsigned short, 0x0080, 1, 0x7F7F, 0x3C00, 0x7F80, 0x7FFF, 8> {};

template <>
struct numeric_limits<__nv_fp8_e4m3>
    : cuda_on_host::NarrowLimits<__nv_fp8_e4m3, unsigned char, 0x08, 1, 0x7E, 0x20, 0, 0x7F, 4> {};

template <>
struct numeric_limits<__nv_fp8_e5m2>
    : cuda_on_host::NarrowLimits<__nv_fp8_e5m2, unsigned char, 0x04, 1, 0x7B, 0x34, 0x7C, 0x7F, 3> {};

}  // namespace std
