"""The judge's own kernels: one pass over an output, and one answer fetched from the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

import numpy as np

from tuner.device.encoding import FORMATS, LARGEST, Array, rounded_to, storage_dtype
from tuner.model.kernel import FLOAT_DTYPES, Tolerance

_BLOCKS, _THREADS = 1056, 256
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

__device__ bool same_overflow(double out, double ref, double largest) {
  if (isnan(out) && isnan(ref)) return true;
  return fabs(ref) >= largest * (1 - 1.0 / 512) && signbit(out) == signbit(ref) &&
         fabs(out) >= largest * (1 - 1.0 / 128) && (!CHECK_INFINITY || !isinf(ref) || isinf(out));
}

__device__ double error_of(double out, double ref, double absolute, double relative,
                           double largest) {
  if (same_overflow(out, ref, largest)) return 0.0;
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

// What is beyond what storing the exact number may cost, as `accuracy.stored_for_nothing` has it.
__device__ double beyond_storing(double out, double ref, int bits, int least, double factor,
                                 bool copied, double largest) {
  if (same_overflow(out, ref, largest)) return 0.0;
  double stored = 0.0;
  if (!copied) {
    const double number = isfinite(ref) ? ref : 0.0;
    int exponent;
    frexp(number, &exponent);
    stored = ldexp(1.0, max(exponent - 1, least) - bits - 1) + fabs(number) * factor;
  }
  const double error = fabs(out - ref) - stored;
  return isnan(error) ? kInfinity : fmax(error, 0.0);
}

__device__ double warp_sum(double value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
  return value;
}

// A warp has a block of 64 neighbours at a time: how far off are their mean, and each of them?
extern "C" __global__ void count_roundings(const STORED* raw, const double* reference,
                                           const double* scale, long long count, int bits,
                                           int least, double factor, int copied, double largest,
                                           double share, unsigned long long* worst) {
  const int lane = threadIdx.x % 32;
  const long long warps = static_cast<long long>(gridDim.x) * blockDim.x / 32;
  double mean = 0.0, single = 0.0;
  for (long long block = (blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x) / 32;
       block * 64 < count; block += warps) {
    double errors[2] = {}, scales[2] = {};
    for (int half = 0; half < 2; ++half) {
      const long long i = block * 64 + 32 * half + lane;
      if (i >= count) continue;
      errors[half] = beyond_storing(DECODED(raw[i]), reference[i], bits, least, factor,
                                    copied != 0, largest);
      scales[half] = scale[i];
    }
    const double error = warp_sum(errors[0] + errors[1]);
    const double whole = warp_sum(scales[0] + scales[1]);
    const long long left = count - block * 64;
    const double least_scale = whole / (left < 64 ? left : 64) * share;
    mean = fmax(mean, error / whole);
    for (int half = 0; half < 2; ++half)
      if (errors[half] > 0.0)
        single = fmax(single, errors[half] / fmax(scales[half], least_scale));
  }
  for (int lanes = 16; lanes > 0; lanes /= 2)
    single = fmax(single, __shfl_down_sync(0xffffffff, single, lanes));
  if (lane != 0) return;
  if (mean > 0.0) atomicMax(worst, __double_as_longlong(mean));
  if (single > 0.0) atomicMax(worst + 1, __double_as_longlong(single));
}
"""
# Of references alone: what one rounding is of each element (`accuracy.scale_of`), and how many are
# not 0, and of these at most `limit` roundings.
ROUNDINGS = """
extern "C" __global__ void find_scales(const double* reference, const double* nearby,
                                       long long count, double unit, double least,
                                       double* scale) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
       i += stride) {
    const double size = fabs(reference[i]), apart = fabs(nearby[i] - reference[i]);
    // fmax would take the number of a pair with NaN.
    double found = isnan(apart) ? apart : fmax(apart, unit * size);
    if (!isfinite(found)) found = isfinite(size) ? size : 1.0;
    scale[i] = fmax(found, least);
  }
}

extern "C" __global__ void count_small(const double* reference, const double* scale,
                                       long long count, double least, double limit,
                                       unsigned long long* found) {
  unsigned long long told = 0, small = 0;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
       i += stride) {
    const double size = fabs(reference[i]);
    told += size >= least;
    small += size >= least && size <= scale[i] * limit;
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    told += __shfl_down_sync(0xffffffff, told, lanes);
    small += __shfl_down_sync(0xffffffff, small, lanes);
  }
  if (threadIdx.x % 32) return;
  if (told) atomicAdd(found, told);
  if (small) atomicAdd(found + 1, small);
}
"""
_CODES = """
extern "C" __global__ void count_codes(const unsigned char* raw, const double* reference,
                                       long long count, const double* bounds,
                                       unsigned long long* changed) {
  __shared__ double shared[4 * 256];
  for (int i = threadIdx.x; i < 4 * 256; i += blockDim.x) shared[i] = bounds[i];
  __syncthreads();
  unsigned long long others = 0;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
       i += stride) {
    const double* of = shared + raw[i];
    const double value = reference[i];
    if (of[0] <= value && value <= of[256]) continue;
    ++others;
    // The top bit: one is further than a code away.
    if (!(of[512] <= value && value <= of[768])) atomicOr(changed, 1ull << 63);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2)
    others += __shfl_down_sync(0xffffffff, others, lanes);
  if (threadIdx.x % 32 == 0 && others) atomicAdd(changed, others);
}
"""
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
_STORED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
PROBE_BYTES = 1 << 29
PROBE_REPEATS = 20


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
    errors = tuple(map(_error_found, outputs, answer[1:]))
    return int(answer.view(np.uint32)[0]) == 0, errors


def largest_error(raw: Array, reference: Array, dtype: str, tolerance: Tolerance) -> float:
    """Find the largest error in units of the tolerance, as `verify.compare` defines it."""
    import cupy

    worst = cupy.zeros(1, cupy.float64)
    output = Output(raw, reference, dtype, tolerance)
    _find_largest(output, worst)
    return _error_found(output, worst.get()[0])


def count_roundings(
    raw: Array,
    reference: Array,
    scale: Array,
    dtype: str,
    storing: tuple[int, int, float],
    share: float,
    *,
    copied: bool,
) -> tuple[float, float]:
    """Count how far an output is off, as `accuracy.measure` does: of blocks, and of elements.

    `storing` is what the exact number may lose in this dtype: bits of mantissa, the least exponent,
    and the share of a factor that is rounded.
    """
    import cupy

    bits, least, factor = storing
    worst = cupy.zeros(2, cupy.float64)
    arrays = raw.reshape(-1), reference.reshape(-1), scale.reshape(-1), np.int64(raw.size)
    kind = np.int32(bits), np.int32(least), np.float64(factor), np.int32(copied)
    bounds = np.float64(LARGEST[dtype]), np.float64(share)
    _kernel(dtype, "count_roundings")((_BLOCKS,), (_THREADS,), (*arrays, *kind, *bounds, worst))
    block, element = worst.get().tolist()
    return block, element


def find_scales(reference: Array, nearby: Array, unit: float, least: float) -> None:
    """Put in the place of `nearby` what one rounding is, as `accuracy.scale_of` does."""
    numbers = np.int64(reference.size), np.float64(unit), np.float64(least)
    arrays = reference, nearby, *numbers, nearby
    _of_references("find_scales")((_BLOCKS,), (_THREADS,), arrays)


def count_small(reference: Array, scale: Array, least: float, limit: float) -> tuple[int, int]:
    """Count the elements of at least `least`, and those of them that `limit` roundings reach."""
    import cupy

    found = cupy.zeros(2, cupy.uint64)
    numbers = np.int64(reference.size), np.float64(least), np.float64(limit)
    _of_references("count_small")((_BLOCKS,), (_THREADS,), (reference, scale, *numbers, found))
    told, small = found.get().tolist()
    return told, small


@cache
def _of_references(name: str) -> Any:
    import cupy

    return cupy.RawModule(code=ROUNDINGS).get_function(name)


def _error_found(output: Output, answer: Any) -> float:
    codes = output.tolerance.codes
    if codes is None:
        return float(answer)
    changed = int(np.asarray(answer).view(np.uint64))
    if changed >> 63:
        return inf
    share = changed / int(output.raw.size)
    return share / codes if codes else inf if changed else 0.0


def _find_largest(output: Output, worst: Array) -> None:
    dtype, tolerance = output.dtype, output.tolerance
    size = np.int64(output.raw.size)
    if tolerance.codes is not None:
        import cupy

        arrays = (output.raw, output.reference, size, cupy.asarray(rounded_to(dtype)), worst)
        _code_counter()((_BLOCKS,), (_THREADS,), arrays)
        return
    largest = LARGEST[dtype] if dtype in FLOAT_DTYPES else inf  # no integer overflows to it
    bounds = (tolerance.absolute, tolerance.relative, largest)
    numbers = (size, *map(np.float64, bounds))
    _kernel(dtype, "largest_error")(
        (_BLOCKS,), (_THREADS,), (output.raw, output.reference, *numbers, worst)
    )


@cache
def _kernel(dtype: str, name: str) -> Any:
    return _module(dtype).get_function(name)


@cache
def _module(dtype: str) -> Any:
    import cupy

    return cupy.RawModule(code=source_for(dtype))


def source_for(dtype: str) -> str:
    """Write the kernels for outputs of one dtype."""
    stored = np.dtype(storage_dtype(dtype))
    if dtype in FORMATS:
        kind = _STORED[stored.itemsize]
        decoded = "decoded(bits, {}, {})".format(*FORMATS[dtype])
    else:
        kind = "double" if dtype == "float64" else _STORED[stored.itemsize]
        if stored.kind == "i":
            kind = kind.replace("unsigned", "signed")
        decoded = "static_cast<double>(bits)"
    # An 8-bit float saturates: its largest number stands for infinity.
    infinity = int(dtype in FLOAT_DTYPES and not dtype.startswith("float8"))
    head = f"#define STORED {kind}\n#define CHECK_INFINITY {infinity}\n#define DECODED(bits) "
    return head + decoded + _SOURCE


@cache
def _code_counter() -> Any:
    import cupy

    return cupy.RawKernel(_CODES, "count_codes")


@cache
def _counting(word: str, kernel: str) -> Any:
    import cupy

    return cupy.RawModule(code=f"#define WORD {word}\n{_UNTOUCHED}").get_function(kernel)


def streaming_gbps(cupy: Any) -> float:
    """Measure the rate of reading two large arrays and writing one, in GB/s."""

    def rate(dtype: str) -> float:
        count = PROBE_BYTES // cupy.dtype(dtype).itemsize
        a, b, c = (cupy.ones(count, dtype) for _ in range(3))
        times = []
        for _ in range(PROBE_REPEATS):
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            cupy.add(a, b, out=c)
            stop.record()
            stop.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, stop))
        return 3 * PROBE_BYTES / float(np.median(times[3:])) / 1e6

    # 8 or 16 bytes an access: which of them is better depends on the GPU.
    return max(map(rate, ("float64", "complex128")))
