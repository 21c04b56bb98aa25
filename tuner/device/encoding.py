"""How numbers are stored: what bits a dtype has for them, in NumPy and CuPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
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
# Bits of the exponent and the mantissa.
FORMATS: dict[str, tuple[int, int]] = {
    "float32": (8, 23),
    "bfloat16": (8, 7),
    "float16": (5, 10),
    "float8_e4m3": (4, 3),
    "float8_e5m2": (5, 2),
}

# Elements that are converted or compared at a time. On a GPU float64 temporaries stay near 128 MB
# each; on the CPU in its caches, and in memory that the system need not clear.
GPU_PIECE, CPU_PIECE = 1 << 24, 1 << 16

# Of CuPy's, one pass each: a layer of experts has 1.4 billion weights in fp8, and what `_encoded`
# makes of them on the way is 90 GB. CuPy compiles with float32's denormals flushed to zero: they
# are no more than zeros in fp8 either, and for bfloat16 only bits are looked at.
GPU_ENCODERS = """
__device__ unsigned char fp8_of(double value, int exponent_bits, int mantissa_bits,
                                double largest) {
  const int sign = signbit(value) ? 0x80 : 0;
  if (isnan(value)) return 0x7f | sign;
  const double magnitude = fmin(fabs(value), largest);
  // Below the smallest normal number codes are as far apart as at it.
  const int bias = (1 << (exponent_bits - 1)) - 1, least = 1 - bias;
  const int exponent = magnitude < ldexp(1.0, least) ? least : ilogb(magnitude);
  // The nearest code, ties to even; one beyond the mantissa's last is the next exponent's first.
  const int code = static_cast<int>(rint(ldexp(magnitude, mantissa_bits - exponent)));
  return (code + ((exponent - least) << mantissa_bits)) | sign;
}

__device__ unsigned short bfloat16_of(unsigned int bits) {
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
"""


def torch_name(dtype: str) -> str:
    """Name a dtype as PyTorch does."""
    return "float8_e4m3fn" if dtype == "float8_e4m3" else dtype


def storage_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(STORAGE.get(dtype, dtype))


def pieces(xp: Any, size: int) -> Iterator[slice]:
    """Cut so many elements into what is worked on at a time."""
    length = _piece(xp)
    return (slice(start, start + length) for start in range(0, size, length))


def multiply(xp: Any, values: Array, draw: Callable[[tuple[int, ...]], Array]) -> None:
    """Multiply a contiguous array, where it is, by factors that are drawn for a piece at a time."""
    flat = values.reshape(-1)
    for piece in pieces(xp, flat.size):
        flat[piece] *= draw(flat[piece].shape)


def _piece(xp: Any) -> int:
    return CPU_PIECE if xp.__name__ == "numpy" else GPU_PIECE


def decode(xp: Any, raw: Array, dtype: str) -> Array:
    """Turn stored bits into float64 values (integers into float64 as well)."""
    return _convert_pieces(
        xp, raw, np.dtype(np.float64), lambda piece: _decode_values(xp, piece, dtype)
    )


def encode(xp: Any, values: Array, dtype: str) -> Array:
    """Round float values to the nearest stored bits, ties to even; fp8 saturates."""
    if xp.__name__ != "numpy" and (encoder := _gpu_encoder(dtype, values.dtype.name)):
        return encoder(values)
    return _convert_pieces(
        xp, values, storage_dtype(dtype), lambda piece: _encode_values(xp, piece, dtype)
    )


def _convert_pieces(
    xp: Any, values: Array, to: np.dtype[Any], convert: Callable[[Array], Array]
) -> Array:
    if values.size <= _piece(xp):
        return convert(values)
    flat, converted = values.reshape(-1), xp.empty(values.size, to)
    for piece in pieces(xp, flat.size):
        converted[piece] = convert(flat[piece])
    return converted.reshape(values.shape)


@cache
def _gpu_encoder(dtype: str, given: str) -> Any:
    """Return CuPy's kernel for values of a dtype, None where there is none."""
    import cupy

    if dtype.startswith("float8") and given in ("float32", "float64"):
        formats = "{}, {}, {!r}".format(*FORMATS[dtype], LARGEST[dtype])
        call = f"code = fp8_of(value, {formats})"
        kernel = f"{given} value", "uint8 code", call, f"encode_{dtype}"
    elif (dtype, given) == ("bfloat16", "float32"):
        call = "code = bfloat16_of(__float_as_uint(value))"
        kernel = "float32 value", "uint16 code", call, "encode_bfloat16"
    else:
        return None
    return cupy.ElementwiseKernel(*kernel, preamble=GPU_ENCODERS)


def _decode_values(xp: Any, raw: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (raw.astype(xp.uint32) << 16).view(xp.float32).astype(xp.float64)
    if dtype in STORAGE:
        return xp.asarray(_fp8_values(dtype))[raw]
    return raw.astype(xp.float64)


def _encode_values(xp: Any, values: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        bits = values.astype(xp.float32).view(xp.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return xp.where(xp.isnan(values), xp.uint32(0x7FFF), rounded).astype(xp.uint16)
    if dtype in STORAGE:
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
    if dtype in FLOAT_DTYPES:
        return values.astype(dtype)
    # Rounding makes floats of whole numbers, which have not all of 64 bits.
    return (values if values.dtype.kind in "biu" else xp.rint(values)).astype(dtype)


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


@cache
def _fp8_values(dtype: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    exponent_bits, mantissa_bits = FORMATS[dtype]
    bias = (1 << (exponent_bits - 1)) - 1
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
