"""Small stand-ins for the headers that NVRTC lacks and CUDA sources include out of habit."""

from __future__ import annotations

_STDINT = """#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
#if defined(_WIN64) || defined(_WIN32)
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
#else
typedef long int64_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
#endif
typedef int64_t intmax_t;
typedef uint64_t uintmax_t;
#define INT8_MIN (-128)
#define INT8_MAX 127
#define UINT8_MAX 255
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define UINT16_MAX 65535
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295u
#define INT64_MIN (-9223372036854775807ll - 1)
#define INT64_MAX 9223372036854775807ll
#define UINT64_MAX 18446744073709551615ull
"""
_CSTDINT = """#pragma once
#include <stdint.h>
namespace std {
using ::int8_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::intptr_t;
using ::uint8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uintptr_t;
}
"""
_LIMITS = """#pragma once
#define CHAR_BIT 8
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define LLONG_MIN (-9223372036854775807ll - 1)
#define LLONG_MAX 9223372036854775807ll
#define ULLONG_MAX 18446744073709551615ull
"""
_FLOAT = """#pragma once
#define FLT_EPSILON 1.1920928955078125e-7f
#define FLT_MAX 3.402823466385288598e+38f
#define FLT_MIN 1.175494350822287508e-38f
#define DBL_EPSILON 2.220446049250313081e-16
#define DBL_MAX 1.797693134862315708e+308
#define DBL_MIN 2.225073858507201383e-308
"""
_MATH = """#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
#define M_2_SQRTPI 1.12837916709551257390
#endif
"""
_CMATH = """#pragma once
#include <math.h>
namespace std {
using ::abs;
using ::ceil;
using ::cos;
using ::erf;
using ::exp;
using ::fabs;
using ::floor;
using ::fma;
using ::fmax;
using ::fmin;
using ::isfinite;
using ::isinf;
using ::isnan;
using ::log;
using ::pow;
using ::sin;
using ::sqrt;
using ::tanh;
}
"""
# NVRTC declares on its own what these give to device code.
_BUILT_IN = "#pragma once\n"

SHIMS = {
    "assert.h": _BUILT_IN,
    "cassert": _BUILT_IN,
    "cfloat": _FLOAT,
    "climits": _LIMITS,
    "cmath": _CMATH,
    "cstddef": _BUILT_IN,
    "cstdint": _CSTDINT,
    "cstdio": _BUILT_IN,
    "cuda_runtime.h": _BUILT_IN,
    "cuda_runtime_api.h": _BUILT_IN,
    "device_launch_parameters.h": _BUILT_IN,
    "float.h": _FLOAT,
    "limits.h": _LIMITS,
    "math.h": _MATH,
    "stddef.h": _BUILT_IN,
    "stdint.h": _STDINT,
    "stdio.h": _BUILT_IN,
}
