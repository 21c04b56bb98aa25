// bf16 and fp16 as CUDA's headers name them, rounded to nearest even in software.
#pragma once

#include "../cuda_on_host.h"

// The same bits without their meaning.
struct __nv_bfloat16_raw {
  unsigned short x;
};
struct __half_raw {
  unsigned short x;
};
struct __nv_bfloat162_raw {
  unsigned short x, y;
};
struct __half2_raw {
  unsigned short x, y;
};

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
  using Raw = __nv_bfloat16_raw;
  using Raw2 = __nv_bfloat162_raw;
  static constexpr unsigned kInfinity = 0x7F80, kNan = 0x7FFF;
  static unsigned magnitude(double x) { return round_code(x, 7, 127); }
  static float decode(unsigned short code) { return __uint_as_float(static_cast<unsigned>(code) << 16); }
};

struct Fp16 {
  using Raw = __half_raw;
  using Raw2 = __half2_raw;
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
  using format = Format;
  unsigned short code;

  Narrow() = default;
  Narrow(float x) : code(encode16<Format>(x)) {}
  Narrow(double x) : code(encode16<Format>(x)) {}
  template <class I, class = std::enable_if_t<std::is_integral<I>::value>>
  Narrow(I x) : code(encode16<Format>(static_cast<double>(x))) {}
  Narrow(typename Format::Raw raw) : code(raw.x) {}
  operator typename Format::Raw() const { return {code}; }
  operator float() const { return Format::decode(code); }
  Narrow operator-() const { return with_code(code ^ 0x8000); }
  Narrow operator+() const { return *this; }
  Narrow& operator++() { return *this += Narrow(1.0f); }
  Narrow& operator--() { return *this -= Narrow(1.0f); }
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
  Pair(typename Format::Raw2 raw) : x(Narrow<Format>::with_code(raw.x)), y(Narrow<Format>::with_code(raw.y)) {}
  operator typename Format::Raw2() const { return {x.code, y.code}; }
  friend Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
  friend Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }
  friend Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }
  friend Pair operator/(Pair a, Pair b) { return {a.x / b.x, a.y / b.y}; }
  friend bool operator==(Pair a, Pair b) { return a.x == b.x && a.y == b.y; }
  friend bool operator!=(Pair a, Pair b) { return !(a == b); }
  Pair operator-() const { return {-x, -y}; }
  Pair& operator+=(Pair b) { return *this = *this + b; }
  Pair& operator-=(Pair b) { return *this = *this - b; }
  Pair& operator*=(Pair b) { return *this = *this * b; }
  Pair& operator/=(Pair b) { return *this = *this / b; }
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
