"""How numbers are stored in NumPy and CuPy, how far apart two are, and what all of them come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import inf, nan
from typing import Any, Literal

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
# Four roundings of float32, relative: so close to the middle between two codes, a product with an
# inverse falls on either side, whatever the kernel does.
HALFWAY = 2.0**-22
# Of so many elements one block makes short work, and of as many rows.
ROW = 1 << 12


def torch_name(dtype: str) -> str:
    return "float8_e4m3fn" if dtype == "float8_e4m3" else dtype


def storage_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(STORAGE.get(dtype, dtype))


def pieces(xp: Any, size: int) -> Iterator[slice]:
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


def codes_apart(xp: Any, raw: Array, reference: Array, dtype: str) -> Array:
    """Count the codes between stored values and their references.

    Of 8 bits, either neighbour of what lies halfway between them is right, within `HALFWAY`.
    """
    if storage_dtype(dtype).itemsize > 1:
        return _distance(xp, raw, reference, dtype)
    low, high = map(xp.asarray, rounded_to(dtype)[:2])
    codes = raw.view(xp.uint8)
    # NaN is in no interval, so that the slow way looks at it too.
    others = xp.flatnonzero(~((low[codes] <= reference) & (reference <= high[codes])))
    apart = xp.zeros(raw.size)
    if others.size:
        apart[others] = _distance(xp, raw[others], reference[others], dtype)
    return apart


def _distance(xp: Any, raw: Array, reference: Array, dtype: str) -> Array:
    stored = encode(xp, reference, dtype)
    distance = code_distance(xp, raw, stored, dtype).astype(xp.float64)
    if dtype not in FLOAT_DTYPES:
        return distance
    # NaN and infinity lie one code beyond the largest number, and are no rounding error of it.
    out, ref = decode(xp, raw, dtype), decode(xp, stored, dtype)
    other_kind = (xp.isnan(out) != xp.isnan(ref)) | (xp.isinf(out) != xp.isinf(ref))
    distance = xp.where(other_kind, xp.inf, distance)
    return xp.where(xp.isnan(out) & xp.isnan(ref), 0.0, distance)


@cache
def rounded_to(dtype: str) -> Array:
    """Give the bounds of what may be stored as each of 256 codes, and as one of its neighbours.

    They are NaN for codes that stand for no number.
    """
    every = np.arange(256, dtype=np.uint8).view(storage_dtype(dtype))
    values = decode(np, every, dtype)
    finite = np.unique(values[np.isfinite(values)])
    middles = (finite[:-1] + finite[1:]) / 2
    low = np.concatenate([[-inf], middles - HALFWAY * np.abs(middles)])
    high = np.concatenate([middles + HALFWAY * np.abs(middles), [inf]])
    if dtype not in FLOAT_DTYPES:  # those of floats saturate
        low[0], high[-1] = finite[0] - 0.5, finite[-1] + 0.5
    place = np.searchsorted(finite, values).clip(max=finite.size - 1)
    bounds = low, high, np.r_[low[0], low[:-1]], np.r_[high[1:], high[-1]]
    return np.stack([np.where(np.isfinite(values), one[place], nan) for one in bounds])


def reduce(xp: Any, how: Literal["all", "any", "max", "sum"], values: Array) -> Array:
    """Reduce all of an array to one number, which stays where the array lies."""
    # CuPy's own kernel gives each result to one block: one number of 67 million elements takes
    # 131,000 steps of 512 threads, and its other way, CUB, a second to compile.
    function, flat = getattr(xp, how), values.reshape(-1)
    rows = flat.size // ROW
    if xp.__name__ == "numpy" or rows < 2:
        reduced: Array = function(flat)
        return reduced
    parts = function(flat[: rows * ROW].reshape(rows, ROW), axis=1)
    rest = flat[rows * ROW :]
    if rest.size:
        parts = xp.concatenate([parts, function(rest).reshape(1)])
    return reduce(xp, how, parts)


def find_largest(xp: Any, values: Array) -> int:
    """Find the place of the largest element, the first of several, in an array without NaN."""
    flat = values.reshape(-1)
    rows = flat.size // ROW
    if xp.__name__ == "numpy" or rows < 2:
        return int(xp.argmax(flat))
    tops = xp.max(flat[: rows * ROW].reshape(rows, ROW), axis=1)
    first = int(xp.argmax(tops)) * ROW
    best = first + int(xp.argmax(flat[first : first + ROW]))
    rest = flat[rows * ROW :]
    if rest.size:
        other = rows * ROW + int(xp.argmax(rest))
        best = other if bool(flat[other] > flat[best]) else best
    return best


def is_all(xp: Any, values: Array) -> bool:
    return bool(reduce(xp, "all", values))


def is_any(xp: Any, values: Array) -> bool:
    return bool(reduce(xp, "any", values))


def count(xp: Any, values: Array) -> int:
    return int(reduce(xp, "sum", values))
