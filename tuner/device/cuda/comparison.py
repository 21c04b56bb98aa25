"""The verifier's comparisons as single passes on the GPU; equal to those in NumPy, tested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tuner.device.layout import LARGEST, Array, storage_dtype
from tuner.model.kernel import FLOAT_DTYPES, Tolerance

_BLOCKS, _THREADS = 1056, 256
_NO_FLOAT = float("inf")  # as the largest number: no integer overflows to infinity
# CuPy compiles with denormals flushed to zero, so floats are taken apart as integers.
_SOURCE = """
#define kInfinity __longlong_as_double(0x7ff0000000000000ll)

__device__ double decoded(unsigned long long bits, int exponent_bits, int mantissa_bits) {
  const unsigned long long mantissa = bits & ((1ull << mantissa_bits) - 1);
  const int top = (1 << exponent_bits) - 1, bias = top >> 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & top;
  const bool negative = bits >> (exponent_bits + mantissa_bits) & 1;
  // In e4m3 only the last code is no number, and there is no infinity (OCP 8-bit floating point).
  const bool e4m3 = exponent_bits == 4 && mantissa_bits == 3;
  if (e4m3 ? (bits & 0x7f) == 0x7f : exponent == top && mantissa) return nan("");
  double value;
  if (exponent == top && !e4m3) {
    value = kInfinity;
  } else if (exponent) {
    value = ldexp(static_cast<double>(mantissa | 1ull << mantissa_bits),
                  exponent - bias - mantissa_bits);
  } else {
    value = ldexp(static_cast<double>(mantissa), 1 - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

__device__ double error_of(double out, double ref, double absolute, double relative,
                           double largest) {
  if (isnan(out) && isnan(ref)) return 0.0;
  if (fabs(ref) >= largest * (1 - 1.0 / 512) && signbit(out) == signbit(ref) &&
      fabs(out) >= largest * (1 - 1.0 / 128) && (!CHECK_INFINITY || !isinf(ref) || isinf(out)))
    return 0.0;
  double error;
  if (absolute == 0.0 && relative == 0.0) {
    error = out == ref ? 0.0 : kInfinity;
  } else {
    double allowed = absolute + relative * fabs(ref);
    if (!isfinite(allowed)) allowed = 1.0;
    error = fabs(out - ref) / fmax(allowed, 1e-300);
  }
  return isnan(error) ? kInfinity : error;
}

extern "C" __global__ void largest_error(const STORED* raw, const double* reference,
                                         long long count, double absolute, double relative,
                                         double largest, unsigned long long* worst) {
  double error = 0.0;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
       i += stride)
    error = fmax(error, error_of(DECODED(raw[i]), reference[i], absolute, relative, largest));
  for (int lanes = 16; lanes > 0; lanes /= 2)
    error = fmax(error, __shfl_down_sync(0xffffffff, error, lanes));
  // Positive doubles are ordered as their bits are.
  if (threadIdx.x % 32 == 0 && error > 0.0) atomicMax(worst, __double_as_longlong(error));
}
"""
# Bits of exponent and mantissa.
_FLOATS = {
    "float32": (8, 23),
    "bfloat16": (8, 7),
    "float16": (5, 10),
    "float8_e4m3": (4, 3),
    "float8_e5m2": (5, 2),
}
_STORED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


@dataclass(frozen=True, slots=True)
class Output:
    """One output as it is stored, its reference, and how far apart they may be."""

    raw: Array
    reference: Array
    dtype: str
    tolerance: Tolerance


def look(
    data: Array,
    guards: Array,
    guard: int,
    pairs: Iterable[tuple[Array, Array]],
    outputs: Sequence[Output],
) -> tuple[bool, tuple[float, ...]]:
    """Verify everything at once, with one answer fetched from the GPU.

    The first part tells whether all bytes of `data` in the ranges `guards` are `guard`, and each
    pair of arrays has equal bytes; the second is each output's `largest_error`.
    """
    import cupy

    found = cupy.zeros(1 + len(outputs), cupy.float64)
    changes = found.view(cupy.uint32)
    numbers = (guards, np.int32(guard), changes)
    _counting(_STORED[1], "count_others")((len(guards),), (1024,), (data, *numbers))
    for now, before in pairs:
        wide = now.nbytes % 8 == 0
        words = np.int64(now.nbytes // 8 if wide else now.nbytes)
        kernel = _counting(_STORED[8] if wide else _STORED[1], "count_changes")
        kernel((_BLOCKS,), (_THREADS,), (now, before, words, changes))
    for index, output in enumerate(outputs, start=1):
        _find_largest(output, found[index:])
    answer = found.get()
    return int(answer.view(np.uint32)[0]) == 0, tuple(map(float, answer[1:]))


def largest_error(raw: Array, reference: Array, dtype: str, tolerance: Tolerance) -> float:
    """Find the largest error in units of the tolerance, as `verify.compare` defines it."""
    import cupy

    worst = cupy.zeros(1, cupy.float64)
    _find_largest(Output(raw, reference, dtype, tolerance), worst)
    return float(worst.get()[0])


def _find_largest(output: Output, worst: Array) -> None:
    dtype, tolerance = output.dtype, output.tolerance
    largest = LARGEST[dtype] if dtype in FLOAT_DTYPES else _NO_FLOAT
    bounds = (tolerance.absolute, tolerance.relative, largest)
    numbers = (np.int64(output.raw.size), *map(np.float64, bounds))
    _kernel(dtype)((_BLOCKS,), (_THREADS,), (output.raw, output.reference, *numbers, worst))


@cache
def _kernel(dtype: str) -> Any:
    import cupy

    stored = np.dtype(storage_dtype(dtype))
    if dtype in _FLOATS:
        kind = _STORED[stored.itemsize]
        decoded = "decoded(bits, {}, {})".format(*_FLOATS[dtype])
    else:
        kind = "double" if dtype == "float64" else _integer(stored)
        decoded = "static_cast<double>(bits)"
    # An 8-bit float saturates: its largest number stands for infinity.
    infinity = int(dtype in FLOAT_DTYPES and not dtype.startswith("float8"))
    head = f"#define STORED {kind}\n#define CHECK_INFINITY {infinity}\n#define DECODED(bits) "
    return cupy.RawKernel(head + decoded + _SOURCE, "largest_error")


_UNTOUCHED = """
extern "C" __global__ void count_others(const unsigned char* data, const long long* ranges,
                                        int expected, unsigned int* others) {
  const long long start = ranges[2 * blockIdx.x], stop = ranges[2 * blockIdx.x + 1];
  bool other = false;
  for (long long i = start + threadIdx.x; i < stop; i += blockDim.x) other |= data[i] != expected;
  if (other) atomicAdd(others, 1u);
}

extern "C" __global__ void count_changes(const WORD* bytes, const WORD* before, long long words,
                                         unsigned int* changes) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  bool changed = false;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < words;
       i += stride)
    changed |= bytes[i] != before[i];
  if (changed) atomicAdd(changes, 1u);
}
"""


@cache
def _counting(word: str, kernel: str) -> Any:
    import cupy

    return cupy.RawModule(code=f"#define WORD {word}\n{_UNTOUCHED}").get_function(kernel)


def _integer(stored: np.dtype[Any]) -> str:
    unsigned = _STORED[stored.itemsize]
    return unsigned if stored.kind in "ub" else unsigned.replace("unsigned", "signed")
