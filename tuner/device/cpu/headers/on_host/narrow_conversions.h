// Conversions of bf16 and fp16.
#pragma once

#include "narrow_floats.h"

namespace cuda_on_host {

// The nearest code, or its neighbour where that lies on the wrong side (0: towards zero).
template <class T>
T directed(float x, int direction) {
  const T nearest(x);
  const float value = nearest;
  if (x != x || value == x) return nearest;
  const bool down = direction < 0 || (direction == 0 && x > 0);
  if (down ? value <= x : value >= x) return nearest;
  if ((nearest.code & 0x7FFF) == 0) return T::with_code(down ? 0x8001 : 0x0001);
  const bool shrink = (value > 0) == down;
  return T::with_code(shrink ? nearest.code - 1u : nearest.code + 1u);
}

}  // namespace cuda_on_host

#define ON_HOST_CONVERSIONS(ONE, TWO, NAME, NAME2, LONG, LONG2) \
  inline ONE __float2##LONG(float x) { return ONE(x); } \
  inline ONE __float2##LONG##_rn(float x) { return ONE(x); } \
  inline ONE __double2##LONG(double x) { return ONE(x); } \
  inline ONE __int2##LONG##_rn(int x) { return ONE(x); } \
  inline float __##LONG##2float(ONE x) { return x; } \
  inline int __##LONG##2int_rn(ONE x) { return __float2int_rn(x); } \
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
  inline ONE __uint2##LONG##_rn(unsigned x) { return ONE(x); } \
  inline ONE __short2##LONG##_rn(short x) { return ONE(x); } \
  inline ONE __ushort2##LONG##_rn(unsigned short x) { return ONE(x); } \
  inline ONE __ll2##LONG##_rn(long long x) { return ONE(x); } \
  inline ONE __float2##LONG##_rz(float x) { return cuda_on_host::directed<ONE>(x, 0); } \
  inline ONE __float2##LONG##_rd(float x) { return cuda_on_host::directed<ONE>(x, -1); } \
  inline ONE __float2##LONG##_ru(float x) { return cuda_on_host::directed<ONE>(x, 1); } \
  inline int __##LONG##2int_rz(ONE x) { return __float2int_rz(x); } \
  inline int __##LONG##2int_rd(ONE x) { return __float2int_rd(x); } \
  inline int __##LONG##2int_ru(ONE x) { return __float2int_ru(x); } \
  inline unsigned __##LONG##2uint_rn(ONE x) { return __float2uint_rn(x); } \
  inline unsigned __##LONG##2uint_rz(ONE x) { return __float2uint_rz(x); } \
  inline short __##LONG##2short_rn(ONE x) { return cuda_on_host::saturated<short>(nearbyint(x)); } \
  inline short __##LONG##2short_rz(ONE x) { return cuda_on_host::saturated<short>(trunc(x)); } \
  inline unsigned short __##LONG##2ushort_rn(ONE x) { return cuda_on_host::saturated<unsigned short>(nearbyint(x)); } \
  inline signed char __##LONG##2char_rz(ONE x) { return cuda_on_host::saturated<signed char>(trunc(x)); } \
  inline unsigned char __##LONG##2uchar_rz(ONE x) { return cuda_on_host::saturated<unsigned char>(trunc(x)); } \
  inline long long __##LONG##2ll_rn(ONE x) { return __float2ll_rn(x); } \
  inline TWO __low2##LONG2(TWO v) { return {v.x, v.x}; } \
  inline TWO __high2##LONG2(TWO v) { return {v.y, v.y}; } \
  inline TWO __lowhigh2highlow(TWO v) { return {v.y, v.x}; } \
  inline TWO __lows2##LONG2(TWO a, TWO b) { return {a.x, b.x}; } \
  inline TWO __highs2##LONG2(TWO a, TWO b) { return {a.y, b.y}; }
ON_HOST_CONVERSIONS(__nv_bfloat16, __nv_bfloat162, bf16, bf162, bfloat16, bfloat162)
ON_HOST_CONVERSIONS(__half, __half2, half, half2, half, half2)
#undef ON_HOST_CONVERSIONS
