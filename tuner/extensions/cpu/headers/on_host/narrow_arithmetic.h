// Arithmetic, comparisons and functions of bf16 and fp16, one by one and in pairs.
#pragma once

#include "narrow_conversions.h"

namespace cuda_on_host {
template <class T>
T relu(T x) { return x > T(0.0f) ? x : x != x ? x : T(0.0f); }
}  // namespace cuda_on_host

#define ON_HOST_FUNCTION(ONE, TWO, NAME, VALUE)                            \
  inline ONE h##NAME(ONE a) { const float x = a; return ONE(VALUE); }      \
  inline TWO h2##NAME(TWO a) { return {h##NAME(a.x), h##NAME(a.y)}; }
#define ON_HOST_PAIRWISE(ONE, TWO, NAME, EACH) \
  inline TWO NAME(TWO a, TWO b) { return {ONE(float(EACH(a.x, b.x))), ONE(float(EACH(a.y, b.y)))}; }
#define ON_HOST_BOTH(TWO, NAME) \
  inline bool __hb##NAME##2(TWO a, TWO b) { return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y); }

#define ON_HOST_ARITHMETIC(ONE, TWO, NAME, NAME2, LONG, LONG2) \
  inline ONE __hadd(ONE a, ONE b) { return a + b; } \
  inline ONE __hsub(ONE a, ONE b) { return a - b; } \
  inline ONE __hmul(ONE a, ONE b) { return a * b; } \
  inline ONE __hdiv(ONE a, ONE b) { return a / b; } \
  inline ONE __hfma(ONE a, ONE b, ONE c) { return double(float(a)) * float(b) + float(c); } \
  inline ONE __hneg(ONE a) { return -a; } \
  inline ONE __habs(ONE a) { return ONE::with_code(a.code & 0x7FFF); } \
  inline ONE __hmax(ONE a, ONE b) { return fmaxf(a, b); } \
  inline ONE __hmin(ONE a, ONE b) { return fminf(a, b); } \
  inline bool __hlt(ONE a, ONE b) { return a < b; } \
  inline bool __hle(ONE a, ONE b) { return a <= b; } \
  inline bool __hgt(ONE a, ONE b) { return a > b; } \
  inline bool __hge(ONE a, ONE b) { return a >= b; } \
  inline bool __heq(ONE a, ONE b) { return a == b; } \
  inline bool __hisnan(ONE a) { return a != a; } \
  inline TWO __hadd2(TWO a, TWO b) { return a + b; } \
  inline TWO __hsub2(TWO a, TWO b) { return a - b; } \
  inline TWO __hmul2(TWO a, TWO b) { return a * b; } \
  inline TWO __h2div(TWO a, TWO b) { return a / b; } \
  inline TWO __hfma2(TWO a, TWO b, TWO c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline TWO __hneg2(TWO a) { return {-a.x, -a.y}; } \
  inline TWO __habs2(TWO a) { return {__habs(a.x), __habs(a.y)}; } \
  inline TWO __hmax2(TWO a, TWO b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; } \
  inline TWO __hmin2(TWO a, TWO b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; } \
  inline ONE __hadd_rn(ONE a, ONE b) { return a + b; } \
  inline ONE __hsub_rn(ONE a, ONE b) { return a - b; } \
  inline ONE __hmul_rn(ONE a, ONE b) { return a * b; } \
  inline ONE __hadd_sat(ONE a, ONE b) { return __saturatef(a + b); } \
  inline ONE __hsub_sat(ONE a, ONE b) { return __saturatef(a - b); } \
  inline ONE __hmul_sat(ONE a, ONE b) { return __saturatef(a * b); } \
  inline ONE __hfma_sat(ONE a, ONE b, ONE c) { return __saturatef(__hfma(a, b, c)); } \
  inline ONE __hfma_relu(ONE a, ONE b, ONE c) { return cuda_on_host::relu(__hfma(a, b, c)); } \
  inline ONE __hmax_nan(ONE a, ONE b) { return a != a ? a : b != b ? b : __hmax(a, b); } \
  inline ONE __hmin_nan(ONE a, ONE b) { return a != a ? a : b != b ? b : __hmin(a, b); } \
  inline bool __hne(ONE a, ONE b) { return a < b || b < a; } \
  inline bool __hequ(ONE a, ONE b) { return !__hne(a, b); } \
  inline bool __hneu(ONE a, ONE b) { return a != b; } \
  inline bool __hltu(ONE a, ONE b) { return !(a >= b); } \
  inline bool __hleu(ONE a, ONE b) { return !(a > b); } \
  inline bool __hgtu(ONE a, ONE b) { return !(a <= b); } \
  inline bool __hgeu(ONE a, ONE b) { return !(a < b); } \
  inline int __hisinf(ONE a) { return (a.code & 0x7FFF) == ONE::format::kInfinity ? (a.code & 0x8000 ? -1 : 1) : 0; } \
  ON_HOST_FUNCTION(ONE, TWO, exp, expf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, exp2, exp2f(x)) \
  ON_HOST_FUNCTION(ONE, TWO, exp10, __exp10f(x)) \
  ON_HOST_FUNCTION(ONE, TWO, log, logf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, log2, log2f(x)) \
  ON_HOST_FUNCTION(ONE, TWO, log10, log10f(x)) \
  ON_HOST_FUNCTION(ONE, TWO, sqrt, sqrtf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, rsqrt, rsqrtf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, rcp, 1.0f / x) \
  ON_HOST_FUNCTION(ONE, TWO, sin, sinf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, cos, cosf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, tanh, tanhf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, rint, rintf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, trunc, truncf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, floor, floorf(x)) \
  ON_HOST_FUNCTION(ONE, TWO, ceil, ceilf(x)) \
  ON_HOST_PAIRWISE(ONE, TWO, __hadd2_rn, __hadd) \
  ON_HOST_PAIRWISE(ONE, TWO, __hsub2_rn, __hsub) \
  ON_HOST_PAIRWISE(ONE, TWO, __hmul2_rn, __hmul) \
  ON_HOST_PAIRWISE(ONE, TWO, __hadd2_sat, __hadd_sat) \
  ON_HOST_PAIRWISE(ONE, TWO, __hsub2_sat, __hsub_sat) \
  ON_HOST_PAIRWISE(ONE, TWO, __hmul2_sat, __hmul_sat) \
  ON_HOST_PAIRWISE(ONE, TWO, __hmax2_nan, __hmax_nan) \
  ON_HOST_PAIRWISE(ONE, TWO, __hmin2_nan, __hmin_nan) \
  ON_HOST_PAIRWISE(ONE, TWO, __heq2, __heq) \
  ON_HOST_PAIRWISE(ONE, TWO, __hne2, __hne) \
  ON_HOST_PAIRWISE(ONE, TWO, __hlt2, __hlt) \
  ON_HOST_PAIRWISE(ONE, TWO, __hle2, __hle) \
  ON_HOST_PAIRWISE(ONE, TWO, __hgt2, __hgt) \
  ON_HOST_PAIRWISE(ONE, TWO, __hge2, __hge) \
  ON_HOST_BOTH(TWO, eq) \
  ON_HOST_BOTH(TWO, ne) \
  ON_HOST_BOTH(TWO, lt) \
  ON_HOST_BOTH(TWO, le) \
  ON_HOST_BOTH(TWO, gt) \
  ON_HOST_BOTH(TWO, ge) \
  inline TWO __hisnan2(TWO a) { return {ONE(float(__hisnan(a.x))), ONE(float(__hisnan(a.y)))}; } \
  inline TWO __hfma2_relu(TWO a, TWO b, TWO c) { return {__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)}; } \
  inline TWO __hfma2_sat(TWO a, TWO b, TWO c) { return {__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y)}; }
ON_HOST_ARITHMETIC(__nv_bfloat16, __nv_bfloat162, bf16, bf162, bfloat16, bfloat162)
ON_HOST_ARITHMETIC(__half, __half2, half, half2, half, half2)
#undef ON_HOST_ARITHMETIC
#undef ON_HOST_FUNCTION
#undef ON_HOST_PAIRWISE
#undef ON_HOST_BOTH
