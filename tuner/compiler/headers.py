"""Where CUDA's headers come from: NVRTC's own bundle, or a toolkit for an NVRTC without one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from cuda import pathfinder
from cuda.bindings import nvrtc

# Older NVRTCs bring no headers.
FIRST_WITH_BUNDLE = (13, 3)

_VERSION = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")


def include_dirs(version: tuple[int, int], cache_dir: Path) -> list[Path]:
    """Return the include folders for NVRTC `version`; none where no header can be found."""
    if version >= FIRST_WITH_BUNDLE and hasattr(nvrtc, "nvrtcInstallBundledHeaders"):
        bundle = _bundled(version, cache_dir)
        return [bundle, bundle / "cccl"]
    toolkit = _toolkit(version)
    if toolkit is None:
        return []
    cccl = toolkit / "cccl"
    elsewhere = None if cccl.is_dir() else pathfinder.find_nvidia_header_directory("cccl")
    return [toolkit, Path(elsewhere) if elsewhere else cccl]


def identity(folders: list[Path]) -> str:
    """Name the headers' origin and state, for the cache key."""
    if not folders:
        return "no headers"
    root = folders[0]
    if (root / ".nvrtc_headers_version").exists():
        return "bundled"
    marker = root / "cuda_runtime_api.h"
    return f"{root} {_cudart_version(root)} {marker.stat().st_mtime_ns}"


def _bundled(version: tuple[int, int], cache_dir: Path) -> Path:
    folder = cache_dir / f"headers-{version[0]}.{version[1]}"
    if folder.is_dir():
        return folder
    # Extracted beside and renamed: a killed process leaves no half-filled folder in use.
    cache_dir.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix="headers-", dir=cache_dir))
    try:
        result, log = nvrtc.nvrtcInstallBundledHeaders(os.fsencode(beside), 0)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise OSError(f"NVRTC could not extract its headers to {beside}: {result} {log}")
        beside.chmod(0o755)
        beside.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _toolkit(version: tuple[int, int]) -> Path | None:
    found = [root for root in _toolkit_candidates() if (root / "cuda_runtime_api.h").is_file()]
    wanted = version[0] * 1000 + version[1] * 10
    return min(found, key=lambda root: _distance(_cudart_version(root), wanted), default=None)


def _toolkit_candidates() -> list[Path]:
    candidates = [pathfinder.find_nvidia_header_directory("cudart")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        candidates.append(str(Path(nvcc).resolve().parent.parent / "include"))
    candidates += [
        str(Path(os.environ[name], "include"))
        for name in ("CUDA_HOME", "CUDA_PATH")
        if os.environ.get(name)
    ]
    candidates.append("/usr/local/cuda/include")
    return [Path(candidate) for candidate in candidates if candidate]


def _cudart_version(root: Path) -> int:
    match = _VERSION.search((root / "cuda_runtime_api.h").read_text(errors="replace"))
    return int(match[1]) if match else 0


def _distance(found: int, wanted: int) -> tuple[bool, int]:
    return found // 1000 != wanted // 1000, abs(found - wanted)


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
