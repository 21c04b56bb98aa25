// Atomics, loads with hints, and the arithmetic that CUDA knows without a header.
//
// Fast approximations (`__expf`) are computed as exactly as the CPU's own functions do.
#pragma once

// Blocks and threads run in turn and switch only at barriers, so plain accesses are atomic.
#define ON_HOST_ATOMIC(NAME, AFTER)                                                \
  template <class T>                                                               \
  inline T NAME(T* address, std::common_type_t<T> value) {                         \
    const T before = *address;                                                     \
    *address = static_cast<T>(AFTER);                                              \
    return before;                                                                 \
  }                                                                                \
  template <class T>                                                               \
  inline T NAME##_block(T* address, std::common_type_t<T> value) {                 \
    return NAME(address, value);                                                   \
  }                                                                                \
  template <class T>                                                               \
  inline T NAME##_system(T* address, std::common_type_t<T> value) {                \
    return NAME(address, value);                                                   \
  }
ON_HOST_ATOMIC(atomicAdd, before + value)
ON_HOST_ATOMIC(atomicSub, before - value)
ON_HOST_ATOMIC(atomicExch, value)
ON_HOST_ATOMIC(atomicMin, value < before ? value : before)
ON_HOST_ATOMIC(atomicMax, before < value ? value : before)
ON_HOST_ATOMIC(atomicAnd, before & value)
ON_HOST_ATOMIC(atomicOr, before | value)
ON_HOST_ATOMIC(atomicXor, before ^ value)
ON_HOST_ATOMIC(atomicInc, before >= value ? 0 : before + 1)
ON_HOST_ATOMIC(atomicDec, before == 0 || before > value ? value : before - 1)
#undef ON_HOST_ATOMIC

template <class T>
inline T atomicCAS(T* address, std::common_type_t<T> expected, std::common_type_t<T> desired) {
  const T before = *address;
  if (before == expected) {
    *address = desired;
  } else {
    cuda_on_host::let_others_run();  // a loop that waits for a lock must not wait forever
  }
  return before;
}

#define ON_HOST_LOAD(NAME) \
  template <class T>       \
  inline T NAME(const T* address) { return *address; }
ON_HOST_LOAD(__ldg)
ON_HOST_LOAD(__ldca)
ON_HOST_LOAD(__ldcg)
ON_HOST_LOAD(__ldcs)
ON_HOST_LOAD(__ldcv)
ON_HOST_LOAD(__ldlu)
#undef ON_HOST_LOAD

#define ON_HOST_STORE(NAME) \
  template <class T>        \
  inline void NAME(T* address, std::common_type_t<T> value) { *address = value; }
ON_HOST_STORE(__stcg)
ON_HOST_STORE(__stcs)
ON_HOST_STORE(__stwb)
ON_HOST_STORE(__stwt)
#undef ON_HOST_STORE

#define ON_HOST_ARITHMETIC \
  class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>
template <ON_HOST_ARITHMETIC>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) {
    return std::fmax(static_cast<T>(a), static_cast<T>(b));
  } else {
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
  }
}
template <ON_HOST_ARITHMETIC>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) {
    return std::fmin(static_cast<T>(a), static_cast<T>(b));
  } else {
    return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
  }
}
#undef ON_HOST_ARITHMETIC

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return static_cast<float>(pow(10.0, x)); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }

// CUDA documents 0, or NaN for an infinite dividend, where the divisor is above 2^126.
inline float __fdividef(float x, float y) {
  const float size = fabsf(y);
  if (size > 0x1p126f && size <= 0x1.fffffep127f) return x * 0.0f;
  return x / y;
}
inline float fdividef(float x, float y) { return x / y; }

#define ON_HOST_REINTERPRET(NAME, TO, FROM) \
  inline TO NAME(FROM value) { TO result; memcpy(&result, &value, sizeof result); return result; }
ON_HOST_REINTERPRET(__float_as_int, int, float)
ON_HOST_REINTERPRET(__float_as_uint, unsigned, float)
ON_HOST_REINTERPRET(__int_as_float, float, int)
ON_HOST_REINTERPRET(__uint_as_float, float, unsigned)
ON_HOST_REINTERPRET(__double_as_longlong, long long, double)
ON_HOST_REINTERPRET(__longlong_as_double, double, long long)
#undef ON_HOST_REINTERPRET

namespace cuda_on_host {
// CUDA's conversions saturate, and turn NaN into 0.
template <class To>
To saturated(double x) {
  constexpr int bits = sizeof(To) * 8 - std::is_signed<To>::value;
  using Unsigned = std::make_unsigned_t<To>;
  const To highest = static_cast<To>(static_cast<Unsigned>(~Unsigned(0)) >> (sizeof(To) * 8 - bits));
  const To lowest = std::is_signed<To>::value ? static_cast<To>(~highest) : To(0);
  if (x != x) return 0;
  if (x >= ldexp(1.0, bits)) return highest;
  return x <= static_cast<double>(lowest) ? lowest : static_cast<To>(x);
}
}  // namespace cuda_on_host
#define ON_HOST_CONVERT(FROM, NAME, TO)                                                        \
  inline TO __##FROM##2##NAME##_rn(FROM x) { return cuda_on_host::saturated<TO>(nearbyint(x)); } \
  inline TO __##FROM##2##NAME##_rz(FROM x) { return cuda_on_host::saturated<TO>(trunc(x)); }   \
  inline TO __##FROM##2##NAME##_rd(FROM x) { return cuda_on_host::saturated<TO>(floor(x)); }   \
  inline TO __##FROM##2##NAME##_ru(FROM x) { return cuda_on_host::saturated<TO>(ceil(x)); }
ON_HOST_CONVERT(float, int, int)
ON_HOST_CONVERT(float, uint, unsigned)
ON_HOST_CONVERT(float, ll, long long)
ON_HOST_CONVERT(double, int, int)
ON_HOST_CONVERT(double, uint, unsigned)
ON_HOST_CONVERT(double, ll, long long)
#undef ON_HOST_CONVERT
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
  return result;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = x | static_cast<unsigned long long>(y) << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> (4 * i);
    unsigned byte = bytes >> (8 * (choice & 7)) & 0xFF;
    if (choice & 8) byte = byte & 0x80 ? 0xFF : 0;
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i)
    c += static_cast<signed char>(a >> (8 * i)) * static_cast<signed char>(b >> (8 * i));
  return c;
}
