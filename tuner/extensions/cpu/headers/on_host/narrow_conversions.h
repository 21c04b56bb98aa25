// Conversions of bf16 and fp16.
#pragma once

#include "narrow_floats.h"

namespace cuda_on_host {

// The nearest code, or its neighbour where that lies on the wrong side (0: towards zero).
template <class T>
T directed(double x, int direction) {
  const T nearest(x);
  const double value = static_cast<float>(nearest);
  if (x != x || value == x) return nearest;
  const bool down = direction < 0 || (direction == 0 && x > 0);
  if (down ? value <= x : value >= x) return nearest;
  if ((nearest.code & 0x7FFF) == 0) return T::with_code(down ? 0x8001 : 0x0001);
  const bool shrink = (value > 0) == down;
  return T::with_code(shrink ? nearest.code - 1u : nearest.code + 1u);
}

}  // namespace cuda_on_host

#define ON_HOST_TO_NARROW(ONE, LONG, NAME, FROM) \
  inline ONE __##NAME##2##LONG##_rn(FROM x) { return ONE(static_cast<double>(x)); } \
  inline ONE __##NAME##2##LONG##_rz(FROM x) { return cuda_on_host::directed<ONE>(static_cast<double>(x), 0); } \
  inline ONE __##NAME##2##LONG##_rd(FROM x) { return cuda_on_host::directed<ONE>(static_cast<double>(x), -1); } \
  inline ONE __##NAME##2##LONG##_ru(FROM x) { return cuda_on_host::directed<ONE>(static_cast<double>(x), 1); }
#define ON_HOST_FROM_NARROW(ONE, LONG, NAME, TO) \
  inline TO __##LONG##2##NAME##_rn(ONE x) { return cuda_on_host::saturated<TO>(nearbyint(x)); } \
  inline TO __##LONG##2##NAME##_rz(ONE x) { return cuda_on_host::saturated<TO>(trunc(x)); } \
  inline TO __##LONG##2##NAME##_rd(ONE x) { return cuda_on_host::saturated<TO>(floor(x)); } \
  inline TO __##LONG##2##NAME##_ru(ONE x) { return cuda_on_host::saturated<TO>(ceil(x)); }
#define ON_HOST_INTEGERS(ONE, LONG, NAME, TYPE) \
  ON_HOST_TO_NARROW(ONE, LONG, NAME, TYPE) \
  ON_HOST_FROM_NARROW(ONE, LONG, NAME, TYPE)
#define ON_HOST_CONVERSIONS(ONE, TWO, NAME, NAME2, LONG, LONG2) \
  inline ONE __float2##LONG(float x) { return ONE(x); } \
  inline ONE __float2##LONG##_rn(float x) { return ONE(x); } \
  inline ONE __double2##LONG(double x) { return ONE(x); } \
  inline ONE __float2##LONG##_rz(float x) { return cuda_on_host::directed<ONE>(x, 0); } \
  inline ONE __float2##LONG##_rd(float x) { return cuda_on_host::directed<ONE>(x, -1); } \
  inline ONE __float2##LONG##_ru(float x) { return cuda_on_host::directed<ONE>(x, 1); } \
  ON_HOST_INTEGERS(ONE, LONG, int, int) \
  ON_HOST_INTEGERS(ONE, LONG, uint, unsigned) \
  ON_HOST_INTEGERS(ONE, LONG, short, short) \
  ON_HOST_INTEGERS(ONE, LONG, ushort, unsigned short) \
  ON_HOST_INTEGERS(ONE, LONG, ll, long long) \
  ON_HOST_INTEGERS(ONE, LONG, ull, unsigned long long) \
  inline float __##LONG##2float(ONE x) { return x; } \
  inline TWO __float2##LONG2##_rn(float x) { return {ONE(x), ONE(x)}; } \
  inline TWO __floats2##LONG2##_rn(float x, float y) { return {ONE(x), ONE(y)}; } \
  inline TWO __float22##LONG2##_rn(float2 v) { return {ONE(v.x), ONE(v.y)}; } \
  inline float2 __##LONG2##2float2(TWO v) { return {float(v.x), float(v.y)}; } \
  inline TWO __##LONG##2##LONG2(ONE x) { return {x, x}; } \
  inline TWO __halves2##LONG2(ONE x, ONE y) { return {x, y}; } \
  inline TWO make_##LONG2(ONE x, ONE y) { return {x, y}; } \
  inline ONE __low2##LONG(TWO v) { return v.x; } \
  inline ONE __high2##LONG(TWO v) { return v.y; } \
  inline unsigned short __##LONG##_as_ushort(ONE x) { return x.code; } \
  inline ONE __ushort_as_##LONG(unsigned short x) { return ONE::with_code(x); } \
  inline short __##LONG##_as_short(ONE x) { return static_cast<short>(x.code); } \
  inline ONE __short_as_##LONG(short x) { return ONE::with_code(static_cast<unsigned short>(x)); } \
  inline float __low2float(TWO v) { return v.x; } \
  inline float __high2float(TWO v) { return v.y; } \
  inline float __##LONG##2float_rn(ONE x) { return x; } \
  inline signed char __##LONG##2char_rz(ONE x) { return cuda_on_host::saturated<signed char>(trunc(x)); } \
  inline unsigned char __##LONG##2uchar_rz(ONE x) { return cuda_on_host::saturated<unsigned char>(trunc(x)); } \
  inline TWO __low2##LONG2(TWO v) { return {v.x, v.x}; } \
  inline TWO __high2##LONG2(TWO v) { return {v.y, v.y}; } \
  inline TWO __lowhigh2highlow(TWO v) { return {v.y, v.x}; } \
  inline TWO __lows2##LONG2(TWO a, TWO b) { return {a.x, b.x}; } \
  inline TWO __highs2##LONG2(TWO a, TWO b) { return {a.y, b.y}; }
ON_HOST_CONVERSIONS(__nv_bfloat16, __nv_bfloat162, bf16, bf162, bfloat16, bfloat162)
ON_HOST_CONVERSIONS(__half, __half2, half, half2, half, half2)
#undef ON_HOST_CONVERSIONS
#undef ON_HOST_INTEGERS
#undef ON_HOST_FROM_NARROW
#undef ON_HOST_TO_NARROW
