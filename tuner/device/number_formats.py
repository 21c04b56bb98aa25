"""Numbers as the kernel stores them: raw bits to float64 and back, in NumPy or CuPy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tuner.model.kernel import FLOAT_DTYPES

Array = Any  # numpy.ndarray or cupy.ndarray: the same code runs on both

# The types NumPy lacks are stored as the unsigned integer of their size.
STORAGE: dict[str, str] = {
    "bfloat16": "uint16",
    "float8_e4m3": "uint8",
    "float8_e5m2": "uint8",
}

# Largest finite value: IEEE 754 for NumPy's types, OCP 8-bit floating point for fp8.
LARGEST: dict[str, float] = {
    "float16": 65504.0,
    "bfloat16": float(np.array(0x7F7F0000, np.uint32).view(np.float32)),
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
    "float8_e4m3": 448.0,
    "float8_e5m2": 57344.0,
}
SMALLEST_NORMAL: dict[str, float] = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
    "float8_e4m3": 2.0**-6,
    "float8_e5m2": 2.0**-14,
}


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """Name the NumPy type that holds the bits of `dtype`."""
    return np.dtype(STORAGE.get(dtype, dtype))


def decode(xp: Any, raw: Array, dtype: str) -> Array:
    """Turn stored bits into float64 values (integers into float64 as well)."""
    if dtype == "bfloat16":
        return (raw.astype(xp.uint32) << 16).view(xp.float32).astype(xp.float64)
    if dtype in STORAGE:
        return xp.asarray(_fp8_values(dtype))[raw]
    return raw.astype(xp.float64)


def encode(xp: Any, values: Array, dtype: str) -> Array:
    """Round float values to the nearest stored bits, ties to even; fp8 saturates."""
    if dtype == "bfloat16":
        bits = values.astype(xp.float32).view(xp.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return xp.where(xp.isnan(values), xp.uint32(0x7FFF), rounded).astype(xp.uint16)
    if dtype in STORAGE:
        return _encode_fp8(xp, values, dtype)
    if dtype in FLOAT_DTYPES:
        return values.astype(dtype)
    return xp.rint(values).astype(dtype)


def code_distance(xp: Any, a: Array, b: Array, dtype: str) -> Array:
    """Count the representable values between two stored arrays (0 where they are equal)."""
    return xp.abs(_ordinal(xp, a, dtype) - _ordinal(xp, b, dtype))


def _ordinal(xp: Any, raw: Array, dtype: str) -> Array:
    if dtype not in FLOAT_DTYPES:
        return raw.astype(xp.int64)
    size = storage_dtype(dtype).itemsize
    bits = raw.view(f"i{size}").astype(xp.int64)
    magnitude = bits & (2 ** (8 * size - 1) - 1)
    return xp.where(bits < 0, -magnitude, magnitude)


@lru_cache
def _fp8_values(dtype: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if dtype == "float8_e4m3" else (5, 2, 15)
    code = np.arange(256)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = (1.0 + mantissa) * 2.0 ** (exponent - bias)
    values = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), normal)
    if dtype == "float8_e4m3":  # the "fn" variant: no infinity, one NaN a sign
        values[(code & 0x7F) == 0x7F] = np.nan
    else:
        top = exponent == 31
        values[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    return np.where(code & 0x80, -values, values)


def _encode_fp8(xp: Any, values: Array, dtype: str) -> Array:
    table = _fp8_values(dtype)[:0x80]
    finite = xp.asarray(table[np.isfinite(table)])
    magnitude = xp.minimum(xp.abs(values.astype(xp.float64)), finite[-1])
    above = xp.clip(xp.searchsorted(finite, magnitude), 1, len(finite) - 1)
    low, high = finite[above - 1], finite[above]
    middle = (low + high) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    code = xp.where(up, above, above - 1)
    code = xp.where(xp.isnan(values), 0x7F, code)
    return (code | xp.where(xp.signbit(values), 0x80, 0)).astype(xp.uint8)
