// The instructions of inline PTX, as the compile step writes them: `tuner/extensions/cpu/ptx.py` says
// which instruction becomes a call of which function.
//
// A register is an unsigned number of its width; `as` and `put` give it the instruction's type.
// What is exact in PTX is exact here; approximations are the function itself, rounded once.
#pragma once

#include <limits>

#include "../tune/tensor.h"
#include "fp4.h"

namespace on_host_ptx {

using cuda_on_host::current;
using cuda_on_host::Operation;
using cuda_on_host::Rounding;

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using u128 = unsigned __int128;
using s8 = signed char;
using s16 = short;
using s32 = int;
using s64 = long long;
using b8 = u8;
using b16 = u16;
using b32 = u32;
using b64 = u64;
using b128 = u128;
using f32 = float;
using f64 = double;
using f16 = __half;
using bf16 = __nv_bfloat16;
using f16x2 = __half2;
using bf16x2 = __nv_bfloat162;
using f32x2 = float2;
using pred = bool;
// Codes without arithmetic: as many bits as the pair has.
struct e4m3x2 { u16 code; };
struct e5m2x2 { u16 code; };
struct ue8m0x2 { u16 code; };
struct e2m1x2 { u8 code; };
struct tf32 { u32 code; };
template <int kBytes>
using word = std::conditional_t<kBytes == 1, u8, std::conditional_t<kBytes == 2, u16,
             std::conditional_t<kBytes == 4, u32, std::conditional_t<kBytes == 8, u64, u128>>>>;

// An instruction's modifiers; the first two bits are a Rounding.
enum How : unsigned { kRounding = 3, kFtz = 4, kSat = 8, kRelu = 16, kNan = 32, kXorsign = 64, kIntegral = 128, kAway = 256 };
constexpr Rounding rounding_of(unsigned how) { return static_cast<Rounding>(how & kRounding); }

template <class T, class R>
T as(R bits) {
  if constexpr (std::is_same<T, bool>::value) return bits != 0;
  if constexpr (std::is_same<T, R>::value) return bits;
  T value = {};
  memcpy(static_cast<void*>(&value), &bits, sizeof value < sizeof bits ? sizeof value : sizeof bits);
  return value;
}
template <class T, class V>
T constant(V value) {
  // 0f3F800000 for bits is those bits
  constexpr bool kBits = std::is_floating_point<V>::value && std::is_integral<T>::value;
  if constexpr (std::is_arithmetic<T>::value && !kBits) return static_cast<T>(value);
  else return as<T>(value);
}
// Into a wider register a signed number takes its sign along.
template <class R, class V>
void put(R& bits, V value) {
  if constexpr (std::is_integral<V>::value || std::is_same<V, u128>::value) {
    bits = static_cast<R>(value);
  } else {
    bits = 0;
    memcpy(&bits, static_cast<const void*>(&value), sizeof value < sizeof bits ? sizeof value : sizeof bits);
  }
}

// What an operand's constraint makes of an expression, and back.
template <char kConstraint, class T>
auto taken(T value) {
  constexpr int kBytes = kConstraint == 'h' ? 2 : kConstraint == 'r' || kConstraint == 'f' ? 4 : kConstraint == 'q' ? 16 : 8;
  using R = word<kBytes>;
  if constexpr (kConstraint == 'f' && std::is_arithmetic<T>::value) return as<R>(static_cast<float>(value));
  else if constexpr (kConstraint == 'd' && std::is_arithmetic<T>::value) return as<R>(static_cast<double>(value));
  else if constexpr (kConstraint == 'n') return static_cast<long long>(value);
  else if constexpr (std::is_integral<T>::value || std::is_enum<T>::value) return static_cast<R>(value);
  else return as<R>(value);
}
template <class T, class R>
void give(T& to, R bits) {
  static_assert(std::is_trivially_copyable<T>::value, "an operand of inline PTX is a plain value");
  if constexpr (sizeof to <= sizeof bits) memcpy(static_cast<void*>(&to), &bits, sizeof to);
  else to = static_cast<T>(bits);
}

template <class T>
constexpr bool is_pair = std::is_same<T, f16x2>::value || std::is_same<T, bf16x2>::value || std::is_same<T, f32x2>::value;
template <class T>
constexpr bool is_narrow = std::is_same<T, f16>::value || std::is_same<T, bf16>::value;

template <unsigned kHow, class T>
T flushed(T x) {
  if constexpr ((kHow & kFtz) && std::is_same<T, float>::value)
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
  else if constexpr ((kHow & kFtz) && std::is_same<T, f16>::value)
    return x.code & 0x7C00 ? x : f16::with_code(x.code & 0x8000);
  else
    return x;
}
template <unsigned kHow, class T>
T finished(T x) {
  if constexpr (!!(kHow & kSat)) return x > T(0.0f) ? (x < T(1.0f) ? flushed<kHow>(x) : T(1.0f)) : T(0.0f);
  else if constexpr (!!(kHow & kRelu)) return x != x || x > T(0.0f) ? x : T(0.0f);
  else return flushed<kHow>(x);
}

// One operation on each half of a pair, or on the number itself.
template <class Op, unsigned kHow, class T, class... More>
auto apply(T a, More... more) {
  if constexpr (is_pair<T>) return T{Op::template of<kHow>(a.x, more.x...), Op::template of<kHow>(a.y, more.y...)};
  else return Op::template of<kHow>(a, more...);
}

// Whatever wraps is computed without a sign.
template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed<T>::value, s32, u32>,
             std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed<T>::value, s64, u64>,
             std::conditional_t<std::is_signed<T>::value, __int128, u128>>>;

#define ON_HOST_PTX_SUM(NAME, OPERATION, SIGN)                                                              \
  struct NAME {                                                                                             \
    template <unsigned kHow, class T>                                                                       \
    static T of(T left, T right) {                                                                          \
      if constexpr (std::is_integral<T>::value) {                                                           \
        if constexpr (!!(kHow & kSat)) return cuda_on_host::saturated<T>(double(left) SIGN double(right));  \
        else return static_cast<T>(static_cast<u64>(left) SIGN static_cast<u64>(right));                    \
      } else {                                                                                              \
        const T a = flushed<kHow>(left), b = flushed<kHow>(right);                                          \
        if constexpr (is_narrow<T>) return finished<kHow>(a SIGN b);                                        \
        else return finished<kHow>(cuda_on_host::operate<T, rounding_of(kHow), Operation::OPERATION>(a, b)); \
      }                                                                                                     \
    }                                                                                                       \
  };
ON_HOST_PTX_SUM(Add, add, +)
ON_HOST_PTX_SUM(Sub, sub, -)
ON_HOST_PTX_SUM(Mul, mul, *)
#undef ON_HOST_PTX_SUM

struct MulHi {
  template <unsigned kHow, class T>
  static T of(T a, T b) { return static_cast<T>(static_cast<Wide<T>>(a) * b >> (8 * sizeof(T))); }
};
struct MulWide {
  template <unsigned kHow, class T>
  static Wide<T> of(T a, T b) { return static_cast<Wide<T>>(a) * b; }
};
struct Mul24 {
  template <unsigned kHow, class T>
  static T of(T a, T b) {
    if constexpr (std::is_signed<T>::value) return __mul24(a, b);
    else return __umul24(a, b);
  }
};
struct Fma {
  template <unsigned kHow, class T>
  static T of(T x, T y, T z) {
    const T a = flushed<kHow>(x), b = flushed<kHow>(y), c = flushed<kHow>(z);
    if constexpr (is_narrow<T>) return finished<kHow>(__hfma(a, b, c));
    else if constexpr (rounding_of(kHow) == Rounding::nearest) return finished<kHow>(std::fma(a, b, c));
    else return finished<kHow>(cuda_on_host::rounded_fma(rounding_of(kHow), a, b, c));
  }
};
template <class A, class B>
auto plus(A a, B b) { return static_cast<A>(static_cast<std::conditional_t<sizeof(A) == 16, u128, u64>>(a) + b); }

// Division by zero gives what a GPU gives: all ones.
struct Div {
  template <unsigned kHow, class T>
  static T of(T left, T right) {
    if constexpr (std::is_integral<T>::value) {
      if (right == 0) return static_cast<T>(~T(0));
      if (std::is_signed<T>::value && right == static_cast<T>(-1)) return static_cast<T>(0 - static_cast<u64>(left));
      return left / right;
    } else {
      const T a = flushed<kHow>(left), b = flushed<kHow>(right);
      return finished<kHow>(cuda_on_host::operate<T, rounding_of(kHow), Operation::div>(a, b));
    }
  }
};
struct Rem {
  template <unsigned kHow, class T>
  static T of(T a, T b) {
    if (b == 0) return a;
    return std::is_signed<T>::value && b == static_cast<T>(-1) ? T(0) : a % b;
  }
};

// +0 is more than -0; NaN gives way to a number unless it is asked for.
template <unsigned kHow, bool kLess, class T>
T chosen(T left, T right) {
  if constexpr (std::is_integral<T>::value) {
    return (left < right) == kLess ? left : right;
  } else {
    T a = flushed<kHow>(left), b = flushed<kHow>(right);
    const bool sign = std::signbit(float(a)) != std::signbit(float(b));
    if constexpr (!!(kHow & kXorsign)) a = T(std::fabs(a)), b = T(std::fabs(b));
    T result = a != a ? b : b != b ? a : a == b ? (std::signbit(float(a)) == kLess ? a : b) : (a < b) == kLess ? a : b;
    if ((kHow & kNan) && (a != a || b != b)) return a != a ? a : b;
    if constexpr (!!(kHow & kXorsign)) result = sign ? T(-result) : result;
    return finished<kHow & ~kFtz>(result);
  }
}
struct Min {
  template <unsigned kHow, class T, class... More>
  static T of(T a, T b, More... more) {
    if constexpr (sizeof...(More) > 0) return of<kHow>(chosen<kHow, true>(a, b), more...);
    else return chosen<kHow, true>(a, b);
  }
};
struct Max {
  template <unsigned kHow, class T, class... More>
  static T of(T a, T b, More... more) {
    if constexpr (sizeof...(More) > 0) return of<kHow>(chosen<kHow, false>(a, b), more...);
    else return chosen<kHow, false>(a, b);
  }
};
struct Neg {
  template <unsigned kHow, class T>
  static T of(T a) {
    if constexpr (std::is_integral<T>::value) return static_cast<T>(0 - static_cast<u64>(a));
    else return flushed<kHow>(T(-a));
  }
};
struct Abs {
  template <unsigned kHow, class T>
  static T of(T a) {
    if constexpr (std::is_integral<T>::value) return a < 0 ? Neg::of<kHow>(a) : a;
    else if constexpr (is_narrow<T>) return flushed<kHow>(T::with_code(a.code & 0x7FFF));
    else return flushed<kHow>(std::fabs(a));
  }
};
struct Copysign {
  template <unsigned kHow, class T>
  static T of(T sign, T size) { return std::copysign(size, sign); }
};

// In double and rounded once.
#define ON_HOST_PTX_FUNCTION(NAME, VALUE)                                  \
  struct NAME {                                                            \
    template <unsigned kHow, class T>                                      \
    static T of(T a) {                                                     \
      const double x = static_cast<double>(flushed<kHow>(a));              \
      return finished<kHow>(T(VALUE));                                     \
    }                                                                      \
  };
ON_HOST_PTX_FUNCTION(Ex2, exp2(x))
ON_HOST_PTX_FUNCTION(Lg2, log2(x))
ON_HOST_PTX_FUNCTION(Sin, sin(x))
ON_HOST_PTX_FUNCTION(Cos, cos(x))
ON_HOST_PTX_FUNCTION(Tanh, tanh(x))
ON_HOST_PTX_FUNCTION(Rsqrt, 1.0 / sqrt(x))
#undef ON_HOST_PTX_FUNCTION
struct Sqrt {
  template <unsigned kHow, class T>
  static T of(T a) {
    return finished<kHow>(cuda_on_host::operate<T, rounding_of(kHow), Operation::sqrt>(flushed<kHow>(a), T(0)));
  }
};
struct Rcp {
  template <unsigned kHow, class T>
  static T of(T a) { return Div::of<kHow>(T(1), a); }
};

struct And { template <unsigned, class T> static T of(T a, T b) { return a & b; } };
struct Or { template <unsigned, class T> static T of(T a, T b) { return a | b; } };
struct Xor { template <unsigned, class T> static T of(T a, T b) { return a ^ b; } };
struct Not {
  template <unsigned, class T>
  static T of(T a) {
    if constexpr (std::is_same<T, bool>::value) return !a;
    else return static_cast<T>(~a);
  }
};
struct Cnot { template <unsigned, class T> static T of(T a) { return a == 0; } };
// A shift by the width or more leaves nothing but the sign.
template <class T>
T shl(T a, u32 by) { return by < 8 * sizeof(T) ? static_cast<T>(static_cast<Unsigned<T>>(a) << by) : T(0); }
template <class T>
T shr(T a, u32 by) { return static_cast<T>(by < 8 * sizeof(T) ? a >> by : a < 0 ? -1 : 0); }
inline u32 shf_l_wrap(u32 a, u32 b, u32 by) { return __funnelshift_l(a, b, by); }
inline u32 shf_l_clamp(u32 a, u32 b, u32 by) { return by < 32 ? __funnelshift_l(a, b, by) : a; }
inline u32 shf_r_wrap(u32 a, u32 b, u32 by) { return __funnelshift_r(a, b, by); }
inline u32 shf_r_clamp(u32 a, u32 b, u32 by) { return by < 32 ? __funnelshift_r(a, b, by) : b; }

inline u32 prmt(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
inline u32 lop3(u32 a, u32 b, u32 c, u32 table) {
  u32 result = 0;
  for (unsigned i = 0; i < 8; ++i)
    if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return result;
}
template <class T>
T bfe(T a, u32 position, u32 length) {
  constexpr u32 kBits = 8 * sizeof(T);
  const u32 start = position & 255, count = length & 255;
  if (count == 0) return 0;
  const u32 last = start + count - 1 < kBits - 1 ? start + count - 1 : kBits - 1;
  const bool sign = std::is_signed<T>::value && (static_cast<Unsigned<T>>(a) >> last & 1);
  Unsigned<T> result = start < kBits ? static_cast<Unsigned<T>>(a) >> start : 0;
  if (count < kBits) result &= (Unsigned<T>(1) << count) - 1;
  const u32 held = start < kBits ? last - start + 1 : 0;
  if (sign && held < kBits) result |= ~Unsigned<T>(0) << held;
  return static_cast<T>(result);
}
template <class T>
T bfi(T a, T b, u32 position, u32 length) {
  constexpr u32 kBits = 8 * sizeof(T);
  const u32 start = position & 255, count = length & 255;
  if (start >= kBits || count == 0) return b;
  const T mask = (count < kBits ? (T(1) << count) - 1 : ~T(0)) << start;
  return (b & ~mask) | (a << start & mask);
}
template <class T>
u32 popc(T a) { return __builtin_popcountll(a); }
template <class T>
u32 clz(T a) { return a ? __builtin_clzll(a) - (64 - 8 * sizeof(T)) : 8 * sizeof(T); }
template <class T>
T brev(T a) { return sizeof(T) == 8 ? static_cast<T>(__brevll(a)) : static_cast<T>(__brev(static_cast<u32>(a))); }
template <bool kShift, class T>
u32 bfind(T a) {
  const Unsigned<T> bits = std::is_signed<T>::value && a < 0 ? ~static_cast<Unsigned<T>>(a) : static_cast<Unsigned<T>>(a);
  if (!bits) return ~0u;
  return kShift ? clz(bits) : 8 * sizeof(T) - 1 - clz(bits);
}
template <class A, class B>
u32 dp4a(u32 a, u32 b, u32 c) {
  return cuda_on_host::dot4<std::conditional_t<std::is_signed<A>::value, signed char, unsigned char>,
                            std::conditional_t<std::is_signed<B>::value, signed char, unsigned char>>(a, b, c);
}
template <class T>
T sad(T a, T b, T c) { return static_cast<T>(static_cast<u64>(c) + (a < b ? static_cast<u64>(b) - a : static_cast<u64>(a) - b)); }

// Ordered comparisons are false where an operand is NaN, those that end in `u` are true.
#define ON_HOST_PTX_COMPARE(NAME, HOLDS) \
  struct NAME { template <class T> static bool of(T a, T b) { return HOLDS; } };
ON_HOST_PTX_COMPARE(eq, a == b)
ON_HOST_PTX_COMPARE(ne, std::is_integral<T>::value ? a != b : a < b || b < a)
ON_HOST_PTX_COMPARE(lt, a < b)
ON_HOST_PTX_COMPARE(le, a <= b)
ON_HOST_PTX_COMPARE(gt, b < a)
ON_HOST_PTX_COMPARE(ge, b <= a)
ON_HOST_PTX_COMPARE(equ, !(a < b || b < a))
ON_HOST_PTX_COMPARE(neu, !(a == b))
ON_HOST_PTX_COMPARE(ltu, !(b <= a))
ON_HOST_PTX_COMPARE(leu, !(b < a))
ON_HOST_PTX_COMPARE(gtu, !(a <= b))
ON_HOST_PTX_COMPARE(geu, !(a < b))
ON_HOST_PTX_COMPARE(num, a == a && b == b)
ON_HOST_PTX_COMPARE(nan, a != a || b != b)
#undef ON_HOST_PTX_COMPARE
template <class Compare, unsigned kHow, class T>
bool setp(T a, T b) { return Compare::of(flushed<kHow>(a), flushed<kHow>(b)); }

// Parts of a register, the lowest first.
template <class R, class... Part>
void pack(R& to, Part... part) {
  unsigned char bytes[sizeof(R)] = {};
  size_t at = 0;
  (void(((memcpy(bytes + at, &part, sizeof part)), at += sizeof part)), ...);
  memcpy(&to, bytes, sizeof to);
}
template <class R, class... Part>
void unpack(R from, Part&... part) {
  unsigned char bytes[sizeof(R)];
  memcpy(bytes, &from, sizeof from);
  size_t at = 0;
  (void(((memcpy(&part, bytes + at, sizeof part)), at += sizeof part)), ...);
}

// A power of two, towards zero or up; the last code is NaN.
template <unsigned kHow>
u32 code_ue8m0(float x) {
  if (x != x) return 255;
  const u32 bits = as<u32>(x) & 0x7FFFFFFF, up = rounding_of(kHow) == Rounding::up && (bits & 0x7FFFFF);
  const u32 code = (bits >> 23) + up;
  return code < 254 ? code : 254;
}
inline float value_ue8m0(u32 code) { return code == 255 ? __builtin_nanf("") : ldexpf(1.0f, static_cast<int>(code) - 127); }

// Code of one number of a packed type, and back.
template <class T, unsigned kHow>
u32 encoded(float x) {
  const float value = (kHow & kRelu) && !(x > 0) && x == x ? 0.0f : x;
  if constexpr (std::is_same<T, e4m3x2>::value) return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  else if constexpr (std::is_same<T, e5m2x2>::value) return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2);
  else if constexpr (std::is_same<T, e2m1x2>::value) return cuda_on_host::code_e2m1(value);
  else return code_ue8m0<kHow>(value);
}
template <class T>
float decoded(u32 code) {
  if constexpr (std::is_same<T, e4m3x2>::value) return cuda_on_host::decode8<__NV_E4M3>(static_cast<u8>(code));
  else if constexpr (std::is_same<T, e5m2x2>::value) return cuda_on_host::decode8<__NV_E5M2>(static_cast<u8>(code));
  else if constexpr (std::is_same<T, e2m1x2>::value) return cuda_on_host::value_e2m1(code);
  else return value_ue8m0(code & 255);
}
template <class T>
constexpr bool is_coded = std::is_same<T, e4m3x2>::value || std::is_same<T, e5m2x2>::value ||
                          std::is_same<T, e2m1x2>::value || std::is_same<T, ue8m0x2>::value;

template <unsigned kHow>
double integral(double x) {
  if (kHow & kAway) return round(x);
  constexpr Rounding kMode = rounding_of(kHow);
  return kMode == Rounding::nearest ? nearbyint(x) : kMode == Rounding::zero ? trunc(x)
         : kMode == Rounding::down ? floor(x) : ceil(x);
}
template <class To, unsigned kHow>
To narrowed(float x) {
  constexpr Rounding kMode = rounding_of(kHow);
  if constexpr (kMode == Rounding::nearest) return To(x);
  else return cuda_on_host::directed<To>(x, kMode == Rounding::zero ? 0 : kMode == Rounding::down ? -1 : 1);
}
template <class To, class From, unsigned kHow>
auto cvt(From given) {
  const From a = flushed<kHow>(given);
  if constexpr (is_coded<From>) {  // two codes to two numbers
    const u32 bits = sizeof(From) == 1 ? 4 : 8, code = a.code;
    using One = decltype(To{}.x);
    return To{One(finished<kHow & kRelu>(decoded<From>(code))), One(finished<kHow & kRelu>(decoded<From>(code >> bits)))};
  } else if constexpr (is_coded<To>) {  // two halves to two codes
    const u32 low = encoded<To, kHow>(a.x), high = encoded<To, kHow>(a.y);
    return To{static_cast<decltype(To{}.code)>(low | high << (sizeof(To) == 1 ? 4 : 8))};
  } else if constexpr (std::is_same<To, tf32>::value) {
    const u32 bits = as<u32>(a), half = kHow & kAway ? 0x1000 : rounding_of(kHow) == Rounding::zero ? 0 : 0xFFF + (bits >> 13 & 1);
    return tf32{a != a ? 0x7FFFFFFF : (bits + half) & ~0x1FFFu};
  } else if constexpr (std::is_integral<To>::value && std::is_integral<From>::value) {
    if constexpr (!(kHow & kSat)) return static_cast<To>(a);
    else {
      const __int128 low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max(), x = a;
      return static_cast<To>(x < low ? low : x > high ? high : x);
    }
  } else if constexpr (std::is_integral<To>::value) {
    return cuda_on_host::saturated<To>(integral<kHow>(static_cast<double>(a)));
  } else if constexpr (std::is_same<To, double>::value) {
    return static_cast<double>(a);
  } else if constexpr (std::is_same<To, float>::value) {
    if constexpr (!!(kHow & kIntegral)) return finished<kHow>(static_cast<float>(integral<kHow>(static_cast<double>(a))));
    else if constexpr (is_narrow<From> || std::is_same<From, float>::value) return finished<kHow>(static_cast<float>(a));
    else if constexpr (std::is_same<From, double>::value) return finished<kHow>(cuda_on_host::to_float(rounding_of(kHow), a));
    else return cuda_on_host::to_float(rounding_of(kHow), static_cast<std::conditional_t<std::is_signed<From>::value, s64, u64>>(a));
  } else if constexpr (std::is_same<From, double>::value) {
    return finished<kHow>(To(a));
  } else if constexpr (!!(kHow & kIntegral)) {
    return finished<kHow>(To(static_cast<float>(integral<kHow>(static_cast<double>(a)))));
  } else {
    return finished<kHow & ~kFtz>(narrowed<To, kHow>(static_cast<float>(a)));
  }
}
// Two floats to a pair: the first is the upper half.
template <class To, unsigned kHow>
To cvt_pair(float upper, float lower) {
  if constexpr (is_coded<To>) {
    const u32 high = encoded<To, kHow>(upper), low = encoded<To, kHow>(lower);
    return To{static_cast<decltype(To{}.code)>(low | high << (sizeof(To) == 1 ? 4 : 8))};
  } else {
    using One = decltype(To{}.x);
    return To{cvt<One, float, kHow>(lower), cvt<One, float, kHow>(upper)};
  }
}

// Memory. A generic address is a pointer; one in shared memory is the GPU's, of 32 bits.
enum Space { kGeneric, kShared, kCluster };
template <Space kSpace>
unsigned char* place(u64 address, unsigned bytes, int line) {
  if constexpr (kSpace == kShared) {
    return cuda_on_host::shared_at(static_cast<u32>(address), bytes, bytes, "an access", line);
  } else if constexpr (kSpace == kCluster) {
    return cuda_on_host::shared_of_cluster_at(static_cast<u32>(address), bytes, line);
  } else {
    if (!address || address % bytes) cuda_on_host::misaligned(reinterpret_cast<void*>(address), bytes, line);
    return reinterpret_cast<unsigned char*>(address);
  }
}
// One access as wide as the instruction's, so that a sanitizer sees its place.
template <class T, Space kSpace, class... R>
void load(u64 address, int line, R&... to) {
  struct Held { T at[sizeof...(R)]; };
  const Held held = *reinterpret_cast<const Held*>(place<kSpace>(address, sizeof(Held), line));
  int i = 0;
  (put(to, held.at[i++]), ...);
}
template <class T, Space kSpace, class... V>
void store(u64 address, int line, V... value) {
  struct Held { T at[sizeof...(V)]; };
  *reinterpret_cast<Held*>(place<kSpace>(address, sizeof(Held), line)) = Held{{value...}};
}
inline void acquired() { cuda_on_host::let_others_run(); }

struct Exch { template <unsigned, class T> static T of(T, T b) { return b; } };
struct Inc { template <unsigned, class T> static T of(T a, T b) { return a >= b ? 0 : a + 1; } };
struct Dec { template <unsigned, class T> static T of(T a, T b) { return a == 0 || a > b ? b : a - 1; } };
template <class Op, Space kSpace, class T>
T atom(u64 address, int line, T value) {
  T& at = *reinterpret_cast<T*>(place<kSpace>(address, sizeof(T), line));
  const T before = at;
  at = apply<Op, 0>(before, value);
  return before;
}
template <Space kSpace, class T>
T cas(u64 address, int line, T expected, T desired) {
  T& at = *reinterpret_cast<T*>(place<kSpace>(address, sizeof(T), line));
  const T before = at;
  if (before == expected) at = desired;
  else cuda_on_host::let_others_run();
  return before;
}
template <Space kSpace>
u64 to_generic(u64 address, int line) {
  return kSpace == kGeneric ? address : reinterpret_cast<u64>(place<kCluster>(address, 1, line));
}
template <Space kSpace>
u64 from_generic(u64 address, int line) {
  return kSpace == kGeneric ? address : cuda_on_host::window_of(reinterpret_cast<void*>(address), line);
}

// Among the lanes of a warp.
inline u32 lane() { return cuda_on_host::lane_of(current); }
enum Shuffle { kUp, kDown, kBfly, kIdx };
template <Shuffle kMode>
u32 shfl(bool& inside, u32 value, u32 b, u32 c, u32 mask, int line) {
  const int segment = c >> 8 & 31, me = lane(), by = b & 31;
  const int first = me & segment, last = first | (c & 31 & ~segment);
  const int from = kMode == kUp ? me - by : kMode == kDown ? me + by : kMode == kBfly ? me ^ by : first | (by & ~segment);
  inside = kMode == kUp ? from >= last : from <= last;
  return cuda_on_host::shuffle("shfl.sync", mask, value, inside ? from : me, line);
}
inline u32 ballot(bool holds, u32 mask, int line) { return __ballot_sync(mask, holds, line); }
inline bool uniform(bool holds, u32 mask, int line) {
  const unsigned long long votes = cuda_on_host::in_warp("vote.sync", cuda_on_host::finish_ballot, mask, holds, 0, line);
  return votes == 0 || votes == cuda_on_host::threads[current].present;
}
inline u32 match_all(bool& same, u64 value, u32 mask, int line) {
  int all;
  const u32 found = __match_all_sync(mask, value, &all, line);
  same = all != 0;
  return found;
}
inline u32 elect(bool& chosen, u32 mask, int line) {
  __syncwarp(mask, line);
  const u32 leader = __builtin_ctz(mask);
  chosen = leader == lane();
  return leader;
}
template <class Op, unsigned kHow>
struct Combined { template <class T> T operator()(T a, T b) const { return Op::template of<kHow>(a, b); } };
template <class Op, unsigned kHow, class T>
T redux(T value, u32 mask, int line) {
  T total = {};
  bool first = true;
  for (unsigned i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    const T other = cuda_on_host::shuffle("redux.sync", mask, value, i, line);
    total = first ? other : Op::template of<kHow>(total, other);
    first = false;
  }
  return total;
}

// Barriers: 0 of all threads is `__syncthreads`.
inline void bar(bool wait, u32 number, u32 count, int line) {
  if (number == 0 && wait && (count == 0 || count == cuda_on_host::thread_count)) __syncthreads(line);
  else cuda_on_host::meet(number, count ? count : (cuda_on_host::thread_count + 31) / 32 * 32, wait, line);
}

inline void cp_async(u32 to, u64 from, u32 bytes, u32 from_bytes, int line) {
  const void* const source = reinterpret_cast<const void*>(from);
  cuda_on_host::watch_source(source, from_bytes);
  cuda_on_host::copy_of_thread(to, source, bytes, from_bytes, line);
}
inline void wait_all() {
  cuda_on_host::commit_copies();
  cuda_on_host::wait_for_copies(0);
}
inline void arrive_after_copies(u32 barrier, bool counted, int line) {
  wait_all();
  if (counted) cuda_on_host::arrive(barrier, 0, line);
}
inline u64 arrive(u32 barrier, u32 count, u32 bytes, int line) {
  const u64 phase = cuda_on_host::phase_of_mbarrier(barrier, line);
  for (u32 i = 0; i < count; ++i) cuda_on_host::arrive(barrier, i ? 0 : bytes, line);
  return phase;
}

template <int kCount, bool kTransposed, class... R>
void ldmatrix(u32 row, int line, R&... to) {
  u32 held[kCount];
  cuda_on_host::load_matrices(held, kCount, row, kTransposed, line);
  int i = 0;
  ((to = held[i++]), ...);
}
// Row r of matrix i lies where lane 8 i + r says.
template <bool kTransposed, class... V>
void stmatrix(u32 row, int line, V... value) {
  const u32 held[] = {value...}, group = lane() / 4, two = lane() % 4 * 2;
  for (u32 i = 0; i < sizeof...(V); ++i)
    for (u32 half = 0; half < 2; ++half) {
      const u32 start = cuda_on_host::shuffle("stmatrix", ~0u, row, i * 8 + (kTransposed ? two + half : group), line);
      const u32 column = kTransposed ? group : two + half;
      const u16 number = static_cast<u16>(held[i] >> 16 * half);
      memcpy(cuda_on_host::shared_at(start, 16, 16, "stmatrix", line) + 2 * column, &number, 2);
    }
}
inline u32 movmatrix(u32 value, int line) {
  u32 result = 0;
  for (u32 half = 0; half < 2; ++half) {
    const u32 row = lane() % 4 * 2 + half, column = lane() / 4;
    const u32 found = cuda_on_host::shuffle("movmatrix", ~0u, value, row * 4 + column / 2, line);
    result |= (found >> 16 * (column % 2) & 0xFFFF) << 16 * half;
  }
  return result;
}

// One number of an operand's register, by its type; the last is tf32.
template <class T>
T operand_at(const u32* words, u32 k) {
  constexpr u32 kBits = 8 * sizeof(T);
  return as<T>(static_cast<word<sizeof(T)>>(words[k * kBits / 32] >> k * kBits % 32));
}
struct e4m3 { u8 code; operator float() const { return decoded<e4m3x2>(code); } };
struct e5m2 { u8 code; operator float() const { return decoded<e5m2x2>(code); } };
struct tensor32 { u32 code; operator float() const { return as<float>(code & ~0x1FFFu); } };

struct Product {
  const u32 *a, *b, *c;
  u32* d;
};
// mma.m16n8kK of a whole warp: a row of an operand is K numbers in 4 or 8 words, word w with lane
// w % 4 of its group, in register w / 4 of its half.
template <class D, class A, class B, int kWords>
void finish_mma(cuda_on_host::Thread* lanes, cuda_on_host::Lanes present) {
  using Sum = std::conditional_t<std::is_integral<D>::value, s64, double>;
  constexpr int kDepth = kWords * 4 / sizeof(A);
  const auto of = [lanes](u32 i) { return *reinterpret_cast<const Product*>(static_cast<uintptr_t>(lanes[i].value)); };
  if (present != ~0u) cuda_on_host::trap("reaches mma.sync after a lane of its warp has ended", lanes[__builtin_ctz(present)].line);
  float a[16][kDepth], b[8][kDepth];
  u32 words[kWords];
  for (u32 row = 0; row < 16; ++row) {
    for (u32 w = 0; w < kWords; ++w) words[w] = of(row % 8 * 4 + w % 4).a[w / 4 * 2 + row / 8];
    for (u32 k = 0; k < kDepth; ++k) a[row][k] = static_cast<float>(operand_at<A>(words, k));
  }
  for (u32 column = 0; column < 8; ++column) {
    for (u32 w = 0; w < kWords; ++w) words[w] = of(column * 4 + w % 4).b[w / 4];
    for (u32 k = 0; k < kDepth; ++k) b[column][k] = static_cast<float>(operand_at<B>(words, k));
  }
  for (u32 i = 0; i < 32; ++i) {
    const Product one = of(i);
    D sums[4];
    memcpy(static_cast<void*>(sums), one.c, sizeof sums);
    for (u32 j = 0; j < 4; ++j) {
      const float *left = a[i / 4 + j / 2 * 8], *right = b[i % 4 * 2 + j % 2];
      Sum sum = std::is_integral<D>::value ? static_cast<Sum>(sums[j]) : static_cast<Sum>(static_cast<float>(sums[j]));
      for (u32 k = 0; k < kDepth; ++k) sum += static_cast<Sum>(left[k]) * static_cast<Sum>(right[k]);
      sums[j] = static_cast<D>(sum);
    }
    memcpy(one.d, static_cast<const void*>(sums), sizeof sums);
  }
}
template <class D, class A, class B, int kWords>
void mma(u32* d, const u32* a, const u32* b, const u32* c, int line) {
  if (cuda_on_host::lanes_in(cuda_on_host::lanes_of(current)) < 32) cuda_on_host::trap("calls mma.sync without a whole warp", line);
  Product mine = {a, b, c, d};
  cuda_on_host::in_warp("mma.sync", finish_mma<D, A, B, kWords>, ~0u, reinterpret_cast<uintptr_t>(&mine), 0, line);
}

}  // namespace on_host_ptx
