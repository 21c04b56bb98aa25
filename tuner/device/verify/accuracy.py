"""How accurate is an output? Its distance from the reference, counted in roundings.

One rounding is what an element changes by when every input moves by one unit of roundoff: the
reference is computed again on such inputs. So a deep sum, a product or a norm each have the scale
of their own arithmetic, and nobody has to guess it from a dtype (Higham, "Accuracy and Stability of
Numerical Algorithms", 2nd ed., section 1.6: forward error against condition number times roundoff).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf, prod
from operator import itemgetter
from typing import Any

import numpy as np

from tuner.device.encoding import (
    FORMATS,
    Array,
    decode,
    encode,
    find_largest,
    is_all,
    multiply,
    pieces,
    storage_dtype,
)
from tuner.device.inputs import NORMAL, Prepared, generator
from tuner.device.verify.on_gpu import count_roundings, count_small, find_scales
from tuner.device.verify.outputs import Verdict, same_overflow
from tuner.model.kernel import FLOAT_DTYPES, KernelSpec, Workload
from tuner.model.trial import Accuracy

# Neighbours whose mean is compared: a single element's change is now and then near 0 by chance.
BLOCK = 64
# An element's scale is at least this share of its block's, for the same reason.
SHARE_OF_BLOCK = 1 / 8
# In which sums of floats up to 32 bits are kept, and of float64.
SINGLE, DOUBLE = 2.0**-24, 2.0**-53
# Denormal numbers may be flushed to zero in float32, as `--use_fast_math` does.
_LEAST = {SINGLE: 2.0**-126, DOUBLE: 2.0**-1022}
_MANTISSA_BITS = {"float64": 52} | {name: bits for name, (_, bits) in FORMATS.items()}
_LEAST_EXPONENT = {"float64": -1022, "float32": -126, "bfloat16": -126, "float16": -14}

# Sums in another order are as right as the baseline's: what one thread adds up alone is off by 0.2
# roundings times the root of the number of terms (test_accuracy.py), so by 64 for 100,000.
FLOOR = 64.0
# A candidate may be so many times as far off as the baseline: three bits. Factors of TF32 and half
# precision are 3,700 roundings of float32 off, those of bfloat16 28,000, however deep the sum.
FACTOR = 8.0
# What a baseline may be off by, in roundings of float32 (or float64): a thousandth of a number, or
# 64 roundings of the coarsest dtype that it has; less where zeros would pass for most elements.
CAP = {"float64": 2.0**14, "float32": 2.0**14, "float16": 2.0**19, "bfloat16": 2.0**21}
# Of so many elements of an output the baseline is measured, over several draws of its inputs where
# one has fewer: the largest error of 192 elements in bf16 is 0 on one draw and 370 roundings on
# the next. Of kernels of one to four roundings up to 22 % of verdicts were refused after one draw
# of 192 elements, and 0 to 0.6 % of runs of 160 verdicts after so many (simulated). No more draws
# than these, nor for large inputs.
SAMPLED_ELEMENTS, SAMPLED_DRAWS, SAMPLED_INPUTS = 2**14, 16, 2**22
# A workload, a kind of input and an output.
_Place = tuple[Workload, str, str]
# By how much more single elements may differ than their block.
OF_AN_ELEMENT = 32.0


def unit_of(spec: KernelSpec) -> float:
    """Give the unit roundoff of the kernel's sums: float64's only where an array is float64."""
    dtypes = {argument.dtype for argument in spec.arguments if not argument.is_scalar}
    return DOUBLE if "float64" in dtypes else SINGLE


def cap_of(spec: KernelSpec) -> float:
    """Give what the baseline may be off by, in roundings."""
    dtypes = {
        argument.dtype for argument in spec.arguments if not argument.is_scalar
    } & FLOAT_DTYPES
    coarse = {CAP.get(dtype, CAP["bfloat16"]) for dtype in dtypes}
    return max(coarse, default=CAP["float32"])


def draws_of(spec: KernelSpec, workload: Workload) -> int:
    """Give on how many draws of each kind of input the baseline's accuracy is measured."""
    arrays = [a for a in spec.arguments if a.role != "scratch" and not a.is_scalar]
    sizes = {a.name: prod(a.dimensions(workload.values)) for a in arrays}
    measured = [sizes[name] for name, tolerance in spec.tolerances.items() if tolerance.measured]
    drawn = sum(sizes[a.name] for a in arrays if a.role != "output")
    wanted = -(-SAMPLED_ELEMENTS // max(1, min(measured, default=SAMPLED_ELEMENTS)))
    return max(1, min(wanted, SAMPLED_DRAWS, SAMPLED_INPUTS // max(1, drawn)))


def nudge(xp: Any, rng: Any, values: Array, unit: float) -> None:
    """Move each number of a contiguous array, where it is, by one unit of roundoff, up or down."""
    # In float64 half of all numbers move by a unit of 2**-53, and the others by none: two of them.
    step = max(unit, 2.0**-52)

    def draw(shape: tuple[int, ...]) -> Array:
        return xp.where(rng.random(shape, dtype=xp.float32) < 0.5, 1.0 - step, 1.0 + step)

    multiply(xp, values, draw)  # of 6 GB of inputs each copy is 13 GB


def scale_of(xp: Any, reference: Array, nearby: Array, unit: float) -> Array:
    """Give what one rounding is of each element, in the place of the reference of nudged inputs."""
    reference, nearby = map(xp.ascontiguousarray, (reference, nearby))
    if xp is not np:
        find_scales(reference, nearby, unit, _LEAST[unit])
        return nearby
    flat, refs = nearby.reshape(-1), reference.reshape(-1)
    for piece in pieces(np, flat.size):
        size = np.abs(refs[piece])
        found = np.maximum(np.abs(flat[piece] - refs[piece]), unit * size)
        # Where the reference itself is at the end of float64 nothing is known but its size.
        found = np.where(np.isfinite(found), found, np.where(np.isfinite(size), size, 1.0))
        flat[piece] = np.maximum(found, _LEAST[unit])
    return nearby


def _own(xp: Any, values: Array, others: Iterable[Array]) -> Array:
    """Give an array that may be written to: a copy where another one may lie in its memory."""
    return values.copy() if any(xp.may_share_memory(values, other) for other in others) else values


class Leeway:
    """Judge the outputs whose tolerance is measured, by what the baseline was seen to be off by.

    That is known by the kind of input: one on which the baseline is far off excuses no other. Until
    it is known of a workload, what a baseline may be off by is allowed.
    """

    def __init__(self, spec: KernelSpec) -> None:
        self._names = {name for name, tolerance in spec.tolerances.items() if tolerance.measured}
        self.floats = {a.name: a.dtype for a in spec.arguments if a.dtype in FLOAT_DTYPES}
        self.unit = unit_of(spec)
        cap = cap_of(spec)
        self._most = Accuracy(cap, cap * OF_AN_ELEMENT)
        self._seen: dict[_Place, Accuracy] = {}
        # Outputs that the baseline always gave exactly: copies, and maxima.
        self._copied: set[_Place] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __bool__(self) -> bool:
        return bool(self._names)

    def find_scales(
        self,
        xp: Any,
        prepared: Prepared,
        inputs: dict[str, Array],
        compute: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    ) -> None:
        """Compute the reference again on inputs that one rounding has moved: they are used up."""
        rng, known = generator(xp, prepared.seed), prepared.reference or {}
        for name in [name for name in inputs if name in self.floats]:
            # A reference that copies may have given the input itself.
            inputs[name] = _own(xp, xp.ascontiguousarray(inputs[name]), known.values())
            nudge(xp, rng, inputs[name], self.unit)
        nearby = compute(inputs)
        inputs.clear()
        with np.errstate(all="ignore"):
            self._note_scales(xp, prepared, known, nearby)

    def _note_scales(
        self, xp: Any, prepared: Prepared, known: Mapping[str, Array], nearby: Mapping[str, Array]
    ) -> None:
        # A reference of another shape is told where it is compared.
        pairs = {n: (known[n], nearby[n]) for n in self._names if n in known and n in nearby}
        same = {name: two for name, two in pairs.items() if two[0].shape == two[1].shape}
        for name, (values, near) in same.items():
            others = *known.values(), *(one for n, one in nearby.items() if n != name)
            own = _own(xp, near, others)
            prepared.scales[name] = scale_of(xp, values, own, self.unit)
        held = (n for n, (values, _) in same.items() if is_copied(xp, values, self.floats[n]))
        prepared.copied = frozenset(held)
        if prepared.kind == NORMAL:
            for name, (values, _) in same.items():
                asked = (xp, values, prepared.scales[name], self.floats[name])
                prepared.limits[name] = self._limit_of(*asked)

    def judge(
        self, xp: Any, raw: Array, prepared: Prepared, name: str, dtype: str, *, baseline: bool
    ) -> tuple[Verdict, Accuracy]:
        """Judge an output's stored bits; of the `baseline` it is noted how accurate it is."""
        error, accuracy = self._measure(xp, raw, prepared, name, dtype, baseline=baseline)
        if error <= 1.0:
            if baseline:
                self._note_baseline(prepared, name, accuracy)
            return Verdict(error), accuracy
        assert prepared.reference is not None
        asked = raw.reshape(-1), prepared.reference[name].reshape(-1), prepared.scales[name]
        return Verdict(error, _find_worst(xp, *asked, dtype)), accuracy

    def tells(self, xp: Any, raw: Array, prepared: Prepared, name: str, dtype: str) -> bool:
        """Tell whether an output is wrong for some inputs."""
        error, _ = self._measure(xp, raw, prepared, name, dtype, baseline=False)
        return error > 1.0

    def _measure(
        self, xp: Any, raw: Array, prepared: Prepared, name: str, dtype: str, *, baseline: bool
    ) -> tuple[float, Accuracy]:
        """Measure how accurate an output is, and how many times what is allowed it is off."""
        assert prepared.reference is not None
        reference, scale = prepared.reference[name], prepared.scales[name]
        copied = name in prepared.copied
        accuracy = measure(xp, raw, reference, scale, dtype, copied=copied)
        place = prepared.workload, prepared.kind, name
        most = self._most_of(prepared, name)
        allowed = most if baseline else self._limit_others(place, most)
        if copied and not baseline and place in self._copied:
            allowed = Accuracy()
        shares = _share(accuracy.block, allowed.block), _share(accuracy.element, allowed.element)
        return max(shares), accuracy

    def _note_baseline(self, prepared: Prepared, name: str, accuracy: Accuracy) -> None:
        place = prepared.workload, prepared.kind, name
        # Of a few elements all may be exact by chance, but not of every draw.
        exact = name in prepared.copied and accuracy == Accuracy()
        always = exact and (place in self._copied or place not in self._seen)
        self._copied = self._copied | {place} if always else self._copied - {place}
        self._seen[place] = accuracy.joined(self._seen.get(place, accuracy))

    def is_fair(
        self,
        xp: Any,
        dtype: str,
        exact: Array,
        own: Array,
        nearby: Array,
        others: Iterable[Array] = (),
    ) -> bool:
        """Tell whether a right kernel can pass: another library does, and rounding decides little.

        `own` is what that library gives, `nearby` the reference of inputs that rounding has moved,
        which is used up unless it lies where one of the `others` does.
        """
        scale = scale_of(xp, exact, _own(xp, nearby, (exact, *others)), self.unit)
        accuracy = measure(xp, encode(xp, own, dtype), exact, scale, dtype)
        limit = self._limit_of(xp, exact, scale, dtype)
        return accuracy.block <= limit and accuracy.element <= limit * OF_AN_ELEMENT

    def _limit_of(self, xp: Any, reference: Array, scale: Array, dtype: str) -> float:
        """Give what a baseline may be off by on which zeros fail for most elements; 0: nothing.

        They fail as a whole too: single elements may be most of their blocks' scale.
        """
        limit = self._most.block
        nothing = xp.zeros(reference.shape, storage_dtype(dtype))
        zeros = measure(xp, nothing, reference, scale, dtype)
        while True:
            told, small = _count_small(xp, reference, scale, _LEAST[self.unit], limit)
            fail = zeros.block > limit or zeros.element > limit * OF_AN_ELEMENT
            if not told or (2 * small < told and fail):
                return limit
            if limit <= FLOOR:
                return 0.0
            limit = max(FLOOR, limit / FACTOR)

    def _most_of(self, prepared: Prepared, name: str) -> Accuracy:
        limit = prepared.limits.get(name, self._most.block)
        return Accuracy(limit, limit * OF_AN_ELEMENT)

    def explain(self, name: str, accuracy: Accuracy, prepared: Prepared, *, baseline: bool) -> str:
        """Say how far off an output is in roundings, and what was allowed."""
        seen = self._seen.get((prepared.workload, prepared.kind, name))
        if baseline or seen is None:
            most = self._most_of(prepared, name)
            return f"{accuracy.block:.2g} roundings; a baseline may have {most.block:.2g}"
        return f"{accuracy.block:.2g} roundings, where the baseline has {seen.block:.2g}"

    def _limit_others(self, place: _Place, most: Accuracy) -> Accuracy:
        seen = self._seen.get(place)
        if seen is None:
            return most
        return Accuracy(
            min(max(FLOOR, FACTOR * seen.block), most.block),
            min(max(FLOOR * OF_AN_ELEMENT, FACTOR * seen.element), most.element),
        )


def _find_worst(
    xp: Any, raw: Array, reference: Array, scale: Array, dtype: str
) -> tuple[int, float, float]:
    """Find the element that is off by most of its roundings: its place, value and reference."""
    scales, tops = scale.reshape(-1), []
    for piece in pieces(xp, raw.size):
        out, ref = decode(xp, raw[piece], dtype), reference[piece]
        apart = xp.where(same_overflow(xp, out, ref, dtype), 0.0, xp.abs(out - ref))
        shares = xp.nan_to_num(apart, nan=inf) / scales[piece]
        place = find_largest(xp, shares)
        tops.append(
            (float(shares[place]), piece.start + place, float(out[place]), float(ref[place]))
        )
    return max(tops, key=itemgetter(0))[1:]


def _count_small(
    xp: Any, reference: Array, scale: Array, least: float, limit: float
) -> tuple[int, int]:
    # Of what no float holds, as long products end in, zeros are the right results.
    if xp is not np:
        return count_small(reference, scale, least, limit)
    size = np.abs(reference)
    telling = size >= least
    return int(telling.sum()), int((telling & (size <= scale * limit)).sum())


def _share(found: float, allowed: float) -> float:
    return found / allowed if allowed else inf if found else 0.0


def is_copied(xp: Any, reference: Array, dtype: str) -> bool:
    """Tell whether an output's dtype holds all that is expected as it is: it may be a copy."""
    flat = reference.reshape(-1)
    return all(
        is_all(xp, decode(xp, encode(xp, flat[piece], dtype), dtype) == flat[piece])
        for piece in pieces(xp, flat.size)
    )


def measure(
    xp: Any, raw: Array, reference: Array, scale: Array, dtype: str, *, copied: bool = False
) -> Accuracy:
    """Measure how far an output's stored bits are from its reference, in roundings.

    Storing the exact result costs nothing: half a unit in the last place of the output's dtype,
    nor does one factor that right kernels round to 16 bits or fewer before they multiply by it.
    There is nothing to round of what is `copied`.
    """
    if xp is not np:
        asked = raw, reference, scale, dtype, _storing(dtype), SHARE_OF_BLOCK
        return Accuracy(*count_roundings(*asked, copied=copied))
    out, ref, scales = raw.reshape(-1), reference.reshape(-1), scale.reshape(-1)
    found = [
        _measure_piece(decode(np, out[piece], dtype), ref[piece], scales[piece], dtype, copied)
        for piece in pieces(np, out.size)
    ]
    block, element = (float(one) for one in np.stack(found).max(axis=0))
    return Accuracy(block, element)


def _measure_piece(out: Array, reference: Array, scale: Array, dtype: str, copied: bool) -> Array:
    stored = 0.0 if copied else _stored_for_nothing(reference, dtype)
    error = np.maximum(np.abs(out - reference) - stored, 0.0)
    error = np.where(same_overflow(np, out, reference, dtype), 0.0, error)
    error = np.where(np.isnan(error), inf, error)
    whole = -(-error.size // BLOCK) * BLOCK
    blocks = [np.zeros(whole), np.zeros(whole)]
    for block, values in zip(blocks, (error, scale), strict=True):
        block[: error.size] = values / BLOCK
    errors, scales = (block.reshape(-1, BLOCK).sum(axis=1) for block in blocks)
    spread = np.repeat(scales, BLOCK)[: error.size] * SHARE_OF_BLOCK
    if error.size % BLOCK:  # the mean of the last one is over fewer
        spread[-(error.size % BLOCK) :] *= BLOCK / (error.size % BLOCK)
    return np.stack([(errors / scales).max(), (error / np.maximum(scale, spread)).max()])


def _storing(dtype: str) -> tuple[int, int, float]:
    """Give a dtype's bits of mantissa, its least exponent, and what of a factor it may round."""
    bits = _MANTISSA_BITS[dtype]
    unit = 0.0 if bits >= _MANTISSA_BITS["float32"] else 2.0 ** -(bits + 1)
    return bits, _LEAST_EXPONENT[dtype], unit * (1.0 + unit)


def _stored_for_nothing(reference: Array, dtype: str) -> Array:
    """Give what storing the exact number in a dtype may cost."""
    bits, least, factor = _storing(dtype)
    number = np.where(np.isfinite(reference), reference, 0.0)
    _, exponent = np.frexp(number)
    half = np.ldexp(np.ones_like(reference), np.maximum(exponent - 1, least) - bits - 1)
    return half + np.abs(number) * factor
