// The arithmetic that CUDA knows without a header.
//
// Fast approximations (`__expf`) are computed as exactly as the CPU's own functions do.
#pragma once

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
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline void sincospif(float x, float* s, float* c) {
  *s = static_cast<float>(sin(3.14159265358979323846 * x));
  *c = static_cast<float>(cos(3.14159265358979323846 * x));
}
inline float sinpif(float x) { return static_cast<float>(sin(3.14159265358979323846 * x)); }
inline float cospif(float x) { return static_cast<float>(cos(3.14159265358979323846 * x)); }
inline float erfcxf(float x) { return static_cast<float>(exp(double(x) * x) * erfc(double(x))); }
inline float norm3df(float x, float y, float z) { return static_cast<float>(sqrt(double(x) * x + double(y) * y + double(z) * z)); }
inline float rhypotf(float x, float y) { return static_cast<float>(1.0 / hypot(x, y)); }
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
ON_HOST_CONVERT(float, ull, unsigned long long)
ON_HOST_CONVERT(double, int, int)
ON_HOST_CONVERT(double, uint, unsigned)
ON_HOST_CONVERT(double, ll, long long)
ON_HOST_CONVERT(double, ull, unsigned long long)
#undef ON_HOST_CONVERT


// What rounds otherwise than to nearest is computed in the runtime, which may change the mode.
namespace cuda_on_host {
enum class Rounding { nearest, zero, down, up };
enum class Operation { add, sub, mul, div, sqrt };
#pragma GCC visibility push(hidden)
float rounded(Rounding rounding, Operation operation, float a, float b);
double rounded(Rounding rounding, Operation operation, double a, double b);
float rounded_fma(Rounding rounding, float a, float b, float c);
double rounded_fma(Rounding rounding, double a, double b, double c);
float to_float(Rounding rounding, double x);
float to_float(Rounding rounding, long long x);
float to_float(Rounding rounding, unsigned long long x);
#pragma GCC visibility pop
}  // namespace cuda_on_host

#define ON_HOST_ROUNDED_OF(T, P, SUFFIX, MODE)                                                  \
  inline T __##P##add_##SUFFIX(T a, T b) { return ON_HOST_OPERATION(T, MODE, add, a, b); }      \
  inline T __##P##sub_##SUFFIX(T a, T b) { return ON_HOST_OPERATION(T, MODE, sub, a, b); }      \
  inline T __##P##mul_##SUFFIX(T a, T b) { return ON_HOST_OPERATION(T, MODE, mul, a, b); }      \
  inline T __##P##div_##SUFFIX(T a, T b) { return ON_HOST_OPERATION(T, MODE, div, a, b); }      \
  inline T __##P##sqrt_##SUFFIX(T a) { return ON_HOST_OPERATION(T, MODE, sqrt, a, T(0)); }      \
  inline T __##P##rcp_##SUFFIX(T a) { return ON_HOST_OPERATION(T, MODE, div, T(1), a); }
#define ON_HOST_OPERATION(T, MODE, NAME, A, B) \
  cuda_on_host::operate<T, cuda_on_host::Rounding::MODE, cuda_on_host::Operation::NAME>(A, B)
#define ON_HOST_ROUNDED(SUFFIX, MODE)                                                           \
  ON_HOST_ROUNDED_OF(float, f, SUFFIX, MODE)                                                    \
  ON_HOST_ROUNDED_OF(double, d, SUFFIX, MODE)                                                   \
  inline float __fmaf_##SUFFIX(float a, float b, float c) {                                     \
    return cuda_on_host::rounded_fma(cuda_on_host::Rounding::MODE, a, b, c);                    \
  }                                                                                             \
  inline double __fma_##SUFFIX(double a, double b, double c) {                                  \
    return cuda_on_host::rounded_fma(cuda_on_host::Rounding::MODE, a, b, c);                    \
  }                                                                                             \
  ON_HOST_TO_FLOAT(int, int, long long, SUFFIX, MODE)                                           \
  ON_HOST_TO_FLOAT(uint, unsigned, long long, SUFFIX, MODE)                                     \
  ON_HOST_TO_FLOAT(ll, long long, long long, SUFFIX, MODE)                                      \
  ON_HOST_TO_FLOAT(ull, unsigned long long, unsigned long long, SUFFIX, MODE)                   \
  ON_HOST_TO_FLOAT(double, double, double, SUFFIX, MODE)
#define ON_HOST_TO_FLOAT(NAME, FROM, WIDE, SUFFIX, MODE)                                        \
  inline float __##NAME##2float_##SUFFIX(FROM x) {                                              \
    return cuda_on_host::to_float(cuda_on_host::Rounding::MODE, static_cast<WIDE>(x));          \
  }

namespace cuda_on_host {
template <class T, Rounding kRounding, Operation kOperation>
__forceinline__ T operate(T a, T b) {
  if constexpr (kRounding != Rounding::nearest) return rounded(kRounding, kOperation, a, b);
  if constexpr (kOperation == Operation::add) return a + b;
  if constexpr (kOperation == Operation::sub) return a - b;
  if constexpr (kOperation == Operation::mul) return a * b;
  if constexpr (kOperation == Operation::div) return a / b;
  return std::sqrt(a);
}
}  // namespace cuda_on_host
ON_HOST_ROUNDED(rn, nearest)
ON_HOST_ROUNDED(rz, zero)
ON_HOST_ROUNDED(rd, down)
ON_HOST_ROUNDED(ru, up)
#undef ON_HOST_ROUNDED
#undef ON_HOST_ROUNDED_OF
#undef ON_HOST_OPERATION
#undef ON_HOST_TO_FLOAT

inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }

namespace cuda_on_host {
// From 64 bits, all of which a long double holds.
inline double to_double(long double x, Rounding rounding) {
  const double nearest = static_cast<double>(x);
  if (rounding == Rounding::nearest || nearest == x) return nearest;
  const bool down = rounding == Rounding::down || (rounding == Rounding::zero && x > 0);
  if (down ? nearest < x : nearest > x) return nearest;
  return nextafter(nearest, down ? -__builtin_inf() : __builtin_inf());
}
}  // namespace cuda_on_host
#define ON_HOST_TO_DOUBLE(NAME, FROM, SUFFIX, MODE)                                     \
  inline double __##NAME##2double_##SUFFIX(FROM x) {                                    \
    return cuda_on_host::to_double(x, cuda_on_host::Rounding::MODE);                    \
  }
#define ON_HOST_TO_DOUBLES(NAME, FROM)        \
  ON_HOST_TO_DOUBLE(NAME, FROM, rn, nearest)  \
  ON_HOST_TO_DOUBLE(NAME, FROM, rz, zero)     \
  ON_HOST_TO_DOUBLE(NAME, FROM, rd, down)     \
  ON_HOST_TO_DOUBLE(NAME, FROM, ru, up)
ON_HOST_TO_DOUBLES(ll, long long)
ON_HOST_TO_DOUBLES(ull, unsigned long long)
#undef ON_HOST_TO_DOUBLES
#undef ON_HOST_TO_DOUBLE
inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double(static_cast<long long>(
      static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32 | static_cast<unsigned>(low)));
}
