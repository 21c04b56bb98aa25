"""Is the output right? Compare raw outputs with a float64 reference, in NumPy or CuPy."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from tuner.device.layout import LARGEST, Array, code_distance, decode, encode
from tuner.model.kernel import FLOAT_DTYPES, Tolerance

# Keeps the float64 temporaries of one comparison near 128 MB each.
CHUNK_ELEMENTS = 1 << 24
ZEROS_SAMPLE = 1 << 20


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
        return (
            f"{name}[{where}] is {found:.6g}, expected {expected:.6g} "
            f"({self.error:.3g} times the tolerance)"
        )


def compare(xp: Any, raw: Array, reference: Array, dtype: str, tolerance: Tolerance) -> Verdict:
    """Compare an output's stored bits with float64 reference values of the same shape."""
    out, ref = raw.reshape(-1), reference.reshape(-1)
    if xp.__name__ == "cupy" and tolerance.codes is None:
        error = largest_error(out, ref, dtype, tolerance)
        if error <= 1.0:
            return Verdict(error)
    return _compared(xp, out, ref, dtype, tolerance)


def zeros_pass(xp: Any, raw: Array, reference: Array, dtype: str, tolerance: Tolerance) -> bool:
    """Tell whether zeros in an output stored like `raw` would mostly pass: a worthless check.

    That is so if they pass for over half of the elements that are not zero, of up to a million.
    """
    step = max(1, raw.size // ZEROS_SAMPLE)
    ref = reference.reshape(-1)[::step]
    error = _errors(xp, xp.zeros_like(raw.reshape(-1)[::step]), ref, dtype, tolerance)
    telling = ref != 0.0  # NaN too
    passing = telling & (error <= 1.0)
    return bool(2 * passing.sum() > telling.sum()) or not bool(telling.any())


def _compared(xp: Any, out: Array, ref: Array, dtype: str, tolerance: Tolerance) -> Verdict:
    parts = []
    for start in range(0, out.size, CHUNK_ELEMENTS):
        piece = slice(start, start + CHUNK_ELEMENTS)
        error = _errors(xp, out[piece], ref[piece], dtype, tolerance)
        worst = xp.argmax(error)
        parts.append(xp.stack([error[worst], worst + float(start)]))
    table = xp.stack(parts)
    if xp.__name__ != "numpy":
        table = table.get()
    worst = table[table[:, 0].argmax()]
    error = float(worst[0])
    if tolerance.codes is not None:
        changed = _share_of_changed_codes(xp, out, ref, dtype)
        # Within the share that may differ, one code apart counts as right.
        share = changed / tolerance.codes if tolerance.codes else inf if changed else 0.0
        error = max(error - 1.0, 0.0) + share
    if error <= 1.0:
        return Verdict(error)
    index = int(worst[1])
    found = float(decode(xp, out[index : index + 1], dtype)[0])
    return Verdict(error, (index, found, float(ref[index])))


def _errors(xp: Any, raw: Array, reference: Array, dtype: str, tolerance: Tolerance) -> Array:
    """Errors of the output in units of the tolerance; NaN where a number belongs is infinite."""
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
        error = xp.where(_same_overflow(xp, out, reference, dtype), 0.0, error)
    return xp.where(xp.isnan(error), xp.inf, error)


def _same_overflow(xp: Any, out: Array, reference: Array, dtype: str) -> Array:
    """Whether both are NaN, or both so large that rounding decides between number and infinity."""
    largest = LARGEST[dtype]
    both_nan = xp.isnan(out) & xp.isnan(reference)
    beyond = xp.abs(reference) >= largest * (1 - 2.0**-9)
    same_sign = xp.signbit(out) == xp.signbit(reference)
    same = beyond & same_sign & (xp.abs(out) >= largest * (1 - 2.0**-7))
    if not dtype.startswith("float8"):  # which saturates: its largest number stands for infinity
        same &= ~xp.isinf(reference) | xp.isinf(out)
    return both_nan | same


def _share_of_changed_codes(xp: Any, raw: Array, reference: Array, dtype: str) -> float:
    changed = 0
    for start in range(0, raw.size, CHUNK_ELEMENTS):
        piece = slice(start, start + CHUNK_ELEMENTS)
        changed += int((_codes_apart(xp, raw[piece], reference[piece], dtype) > 0).sum())
    return changed / int(raw.size)


def _codes_apart(xp: Any, raw: Array, reference: Array, dtype: str) -> Array:
    stored = encode(xp, reference, dtype)
    distance = code_distance(xp, raw, stored, dtype).astype(xp.float64)
    if dtype not in FLOAT_DTYPES:
        return distance
    # NaN and infinity lie one code beyond the largest number, and are no rounding error of it.
    out, ref = decode(xp, raw, dtype), decode(xp, stored, dtype)
    other_kind = (xp.isnan(out) != xp.isnan(ref)) | (xp.isinf(out) != xp.isinf(ref))
    distance = xp.where(other_kind, xp.inf, distance)
    return xp.where(xp.isnan(out) & xp.isnan(ref), 0.0, distance)
