"""Is the output right? Compare raw outputs with a float64 reference, in NumPy or CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter
from typing import Any

from tuner.device.encoding import (
    LARGEST,
    Array,
    codes_apart,
    count,
    decode,
    find_largest,
    pieces,
    storage_dtype,
)
from tuner.device.verify.on_gpu import largest_error
from tuner.model.kernel import FLOAT_DTYPES, Tolerance
from tuner.model.trial import Accuracy, Correctness

ZEROS_SAMPLE = 1 << 20
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
        rest, value, expected = self.worst
        for length in reversed(shape):
            rest, position = divmod(rest, length)
            place.append(position)
        where = ", ".join(map(str, reversed(place)))
        return f"{name}[{where}] is {value:.6g}, expected {expected:.6g} ({self.error:.3g} {TIMES})"


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


def compare_between(
    xp: Any, raw: Array, reference: Array, dtype: str, other: Array, tolerance: Tolerance
) -> Verdict:
    """Compare an output with what is nearest to it of all that lies between two answers."""
    out = decode(xp, raw.reshape(-1), dtype).reshape(reference.shape)
    nearest = xp.clip(out, xp.minimum(reference, other), xp.maximum(reference, other))
    # Where either is no number, or a wrong result is none, nothing lies between.
    nearest = xp.where(xp.isfinite(nearest), nearest, reference)
    return compare(xp, raw, nearest, dtype, tolerance)


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
        return codes_apart(xp, raw, reference, dtype)
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
    notes = [f"is off by up to {worst:.3g} times the tolerance"] * (worst > 1.0)
    if failed:
        kinds = ", ".join(kind for correctness in failed for kind in correctness.input_kinds)
        notes.append(f"fails {kinds}: {failed[0].reason}")
    return replace(whole, reason="; ".join(notes))
