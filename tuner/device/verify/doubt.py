"""Elements that a rounding decides: what is over a computed threshold, which of two is larger.

There the exact answer is one of several right ones. Nothing is lost on elements that no rounding
decides, and a copy, a count or an index among equal numbers stays exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.device.encoding import Array, decode
from tuner.device.inputs import Prepared
from tuner.device.verify.accuracy import FLOOR, OF_AN_ELEMENT
from tuner.device.verify.reductions import count, is_any

# Of so many elements a rounding may decide: more say that the reference is no answer.
MOST_IN_DOUBT = 0.01
# What spreads the bits of a number: 2**64 over the golden ratio.
_SPREAD = 0x9E3779B97F4A7C15
# A jump is so many roundings' worth: it is allowed where sums in any order are.
_JUMP = FLOOR / 2

# What the reference gives for inputs that were moved one way, and the other.
Moved = Sequence[Mapping[str, Array]]


def move(xp: Any, values: Array, roundings: float, unit: float) -> Array:
    """Move numbers by so many roundings, half of them up; equal ones alike, so that ties stay."""
    bits = xp.ascontiguousarray(values, dtype=xp.float64).view(xp.uint64)
    odd = (bits * xp.uint64(_SPREAD)) >> xp.uint64(63)
    return values * (1.0 + roundings * unit * (2.0 * odd - 1.0))


def compute_moved(
    xp: Any,
    inputs: Mapping[str, Array],
    floats: Iterable[str],
    unit: float,
    compute: Callable[[Mapping[str, Array]], Mapping[str, Array]],
) -> Moved:
    """Compute the reference on inputs moved one way and the other, as far as sums may be off."""
    names = {*floats}
    return tuple(
        compute({n: move(xp, v, way, unit) if n in names else v for n, v in inputs.items()})
        for way in (FLOOR, -FLOOR)
    )


def is_either(
    xp: Any, raw: Array, reference: Array, dtype: str, moved: Callable[[], Moved], name: str
) -> bool:
    """Tell whether whole numbers are what the reference gives for the inputs or the moved ones."""
    out = decode(xp, raw.reshape(-1), dtype)
    wrong = out != reference.reshape(-1)
    if not _few(xp, wrong):
        return False
    for one in moved():
        wrong &= out != one[name].reshape(-1)
    return not is_any(xp, wrong)


def widen(
    xp: Any, raw: Array, dtype: str, prepared: Prepared, name: str, moved: Callable[[], Moved]
) -> Prepared | None:
    """Give what is expected with the jumps of an output allowed.

    Return None where so many elements are wrong, or jump, that rounding is no excuse.
    """
    assert prepared.reference is not None
    reference, scale = prepared.reference[name], prepared.scales[name]
    apart = xp.abs(decode(xp, raw, dtype) - reference)
    if not _few(xp, ~(apart <= FLOOR * OF_AN_ELEMENT * scale)):
        return None
    jump = scale
    for one in moved():
        apart = xp.abs(one[name] - reference)
        jump = xp.maximum(jump, xp.where(xp.isfinite(apart), apart, 0.0) / _JUMP)
    # Where an output is no steeper than a rounding says, both are about the same.
    if not _few(xp, jump > 4.0 * scale):
        return None
    return replace(prepared, scales={**prepared.scales, name: jump})


def _few(xp: Any, wrong: Array) -> bool:
    return count(xp, wrong) <= max(1, int(MOST_IN_DOUBT * wrong.size))
