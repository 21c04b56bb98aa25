"""Is the output right? Compare raw outputs with a float64 reference, in NumPy or CuPy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf, nan
from operator import itemgetter
from typing import Any

import numpy as np

from tuner.device.encoding import (
    FORMATS,
    LARGEST,
    Array,
    code_distance,
    decode,
    encode,
    pieces,
    storage_dtype,
)
from tuner.device.verify.reductions import count, find_largest
from tuner.model.kernel import FLOAT_DTYPES, Tolerance
from tuner.model.trial import Accuracy, Correctness

ZEROS_SAMPLE = 1 << 20
# Four roundings of float32, relative: so close to the middle between two codes, a product with an
# inverse falls on either side, whatever the kernel does.
HALFWAY = 2.0**-22


TIMES = "times the tolerance"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far one output is from its reference, in units of the tolerance (above 1 fails).

    `worst` is the element that is furthest off, as its index, value and reference: only where the
    output fails, for fetching it from a GPU takes as long as the comparison.
    """

    error: float
    worst: tuple[int, float, float] | None = None

    @property
    def passed(self) -> bool:
        return self.error <= 1.0

    def describe(self, name: str, shape: tuple[int, ...]) -> str:
        """Say where the worst element is and how far off, for a trial's reason."""
        assert self.worst is not None
        place = []
        rest, found, expected = self.worst
        for length in reversed(shape):
            rest, position = divmod(rest, length)
            place.append(position)
        where = ", ".join(map(str, reversed(place)))
        return f"{name}[{where}] is {found:.6g}, expected {expected:.6g} ({self.error:.3g} {TIMES})"


def can_look_judge(dtype: str, tolerance: Tolerance) -> bool:
    """Tell whether `look` can judge an output: codes of 8 bits, and tolerances that are stated."""
    return not tolerance.measured and (
        tolerance.codes is None or storage_dtype(dtype).itemsize == 1
    )


def compare(xp: Any, raw: Array, reference: Array, dtype: str, tolerance: Tolerance) -> Verdict:
    """Compare an output's stored bits with float64 reference values of the same shape."""
    out, ref = raw.reshape(-1), reference.reshape(-1)
    if xp.__name__ == "cupy" and can_look_judge(dtype, tolerance):
        error = largest_error(out, ref, dtype, tolerance)
        if error <= 1.0:
            return Verdict(error)
    parts, changed = [], 0
    for piece in pieces(xp, out.size):
        error = _errors(xp, out[piece], ref[piece], dtype, tolerance)
        if tolerance.codes is not None:
            changed += count(xp, error > 0)
        worst = find_largest(xp, error)
        parts.append((float(error[worst]), piece.start + worst))
    error, index = max(parts, key=itemgetter(0))
    if tolerance.codes is not None:
        # Within the share that may differ, one code apart counts as right.
        changed_share = changed / int(out.size)
        share = changed_share / tolerance.codes if tolerance.codes else inf if changed else 0.0
        error = max(error - 1.0, 0.0) + share
    if error <= 1.0:
        return Verdict(error)
    found = float(decode(xp, out[index : index + 1], dtype)[0])
    return Verdict(error, (index, found, float(ref[index])))


def zeros_pass(xp: Any, raw: Array, reference: Array, dtype: str, tolerance: Tolerance) -> bool:
    """Tell whether zeros would pass for most elements that are not zero: a worthless check."""
    step = max(1, raw.size // ZEROS_SAMPLE)
    ref = reference.reshape(-1)[::step]
    error = _errors(xp, xp.zeros_like(raw.reshape(-1)[::step]), ref, dtype, tolerance)
    telling = ref != 0.0  # NaN too
    passing = telling & (error <= 1.0)
    told = count(xp, telling)
    return 2 * count(xp, passing) > told or not told


def _errors(xp: Any, raw: Array, reference: Array, dtype: str, tolerance: Tolerance) -> Array:
    if tolerance.codes is not None:
        # One code apart is within the tolerance; how many may be is checked over the whole.
        return _codes_apart(xp, raw, reference, dtype)
    out = decode(xp, raw, dtype)
    allowed = tolerance.absolute + tolerance.relative * xp.abs(reference)
    allowed = xp.where(xp.isfinite(allowed), allowed, 1.0)
    if tolerance.absolute == 0.0 and tolerance.relative == 0.0:
        error = xp.where(out == reference, 0.0, xp.inf)
    else:
        error = xp.abs(out - reference) / xp.maximum(allowed, 1e-300)
    if dtype in FLOAT_DTYPES:
        error = xp.where(same_overflow(xp, out, reference, dtype), 0.0, error)
    return xp.where(xp.isnan(error), xp.inf, error)


def same_overflow(xp: Any, out: Array, reference: Array, dtype: str) -> Array:
    """Whether both are NaN, or both so large that rounding decides between number and infinity."""
    largest = LARGEST[dtype]
    both_nan = xp.isnan(out) & xp.isnan(reference)
    beyond = xp.abs(reference) >= largest * (1 - 2.0**-9)
    same_sign = xp.signbit(out) == xp.signbit(reference)
    same = beyond & same_sign & (xp.abs(out) >= largest * (1 - 2.0**-7))
    if not dtype.startswith("float8"):  # which saturates: its largest number stands for infinity
        same &= ~xp.isinf(reference) | xp.isinf(out)
    return both_nan | same


def _codes_apart(xp: Any, raw: Array, reference: Array, dtype: str) -> Array:
    """Count the codes between stored values and their references.

    Of 8 bits, either neighbour of what lies halfway between them is right, within `HALFWAY`.
    """
    if storage_dtype(dtype).itemsize > 1:
        return _distance(xp, raw, reference, dtype)
    low, high = map(xp.asarray, _rounded_to(dtype)[:2])
    codes = raw.view(xp.uint8)
    # NaN is in no interval, so that the slow way looks at it too.
    others = xp.flatnonzero(~((low[codes] <= reference) & (reference <= high[codes])))
    apart = xp.zeros(raw.size)
    if others.size:
        apart[others] = _distance(xp, raw[others], reference[others], dtype)
    return apart


@cache
def _rounded_to(dtype: str) -> Array:
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

        arrays = (output.raw, output.reference, size, cupy.asarray(_rounded_to(dtype)), worst)
        _code_counter()((_BLOCKS,), (_THREADS,), arrays)
        return
    largest = LARGEST[dtype] if dtype in FLOAT_DTYPES else inf  # no integer overflows to it
    bounds = (tolerance.absolute, tolerance.relative, largest)
    numbers = (size, *map(np.float64, bounds))
    _kernel(dtype)((_BLOCKS,), (_THREADS,), (output.raw, output.reference, *numbers, worst))


@cache
def _kernel(dtype: str) -> Any:
    import cupy

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
    return cupy.RawKernel(head + decoded + _SOURCE, "largest_error")


@cache
def _code_counter() -> Any:
    import cupy

    return cupy.RawKernel(_CODES, "count_codes")


@cache
def _counting(word: str, kernel: str) -> Any:
    import cupy

    return cupy.RawModule(code=f"#define WORD {word}\n{_UNTOUCHED}").get_function(kernel)


def is_inexact(verdict: Correctness) -> bool:
    """Tell whether a program failed by the numbers in its outputs alone: it wrote nothing else."""
    return not verdict.passed and TIMES in verdict.reason


def merge_passes(verdicts: Sequence[Correctness]) -> Correctness:
    """Merge verdicts that all passed: every kind of input, and the largest errors."""
    worst: dict[str, float] = {}
    kinds: dict[str, None] = {}
    accuracy: dict[str, Accuracy] = {}
    for verdict in verdicts:
        kinds |= dict.fromkeys(verdict.input_kinds)
        worst |= {name: max(error, worst.get(name, 0.0)) for name, error in verdict.errors}
        accuracy |= {n: one.joined(accuracy.get(n, one)) for n, one in verdict.accuracy}
    measured = tuple(accuracy.items())
    return Correctness(True, tuple(kinds), tuple(worst.items()), accuracy=measured)


def merge_peer_verdicts(verdicts: Sequence[Correctness]) -> Correctness:
    """Merge what a peer did on all kinds of input; the reason says what it fails besides."""
    passed, failed = ([v for v in verdicts if v.passed is which] for which in (True, False))
    whole = merge_passes(passed)
    worst = max((error for _, error in whole.errors), default=0.0)
    notes = [f"is off by up to {worst:.2f} times the tolerance"] * (worst > 1.0)
    if failed:
        kinds = ", ".join(kind for one in failed for kind in one.input_kinds)
        notes.append(f"fails {kinds}: {failed[0].reason}")
    return replace(whole, reason="; ".join(notes))
