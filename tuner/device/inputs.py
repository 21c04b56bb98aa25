"""Random inputs for verification and timing, from a seed that the kernel cannot know."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf, prod
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.device.encoding import LARGEST, SMALLEST_NORMAL, Array, encode
from tuner.device.layout import Patch
from tuner.model.errors import KernelError
from tuner.model.kernel import (
    DTYPE_BYTES,
    FILLS,
    FLOAT_DTYPES,
    WHOLE_FILLS,
    Argument,
    KernelSpec,
    Workload,
)

if TYPE_CHECKING:
    from tuner.model.expressions import Value

_T = TypeVar("_T")
NORMAL, EXTREME, NONFINITE = "normal", "extreme", "nonfinite"
# Each must leave a correct kernel correct; `extreme` mixes in the ends of the dtype's range.
INPUT_KINDS = (NORMAL, "x3", "x0.01", "negated", "zeros", EXTREME)
# Of numbers of 64 bits: float64 adds some of such exactly.
_MOST_BITS = 44
# What a model gives its kernels: the argument's own fill, larger, smaller and of the other sign.
ORDINARY = (NORMAL, "x3", "x0.01", "negated")
# Rows of an array that get NaN or infinities, and elements of such a row: the others must stay
# as right as before.
NONFINITE_SHARE = 0.25
# Rows that `zeros` leaves without any number.
EMPTY_ROWS = 0.25
# Stands between `extreme` and the number where these extremes end.
_UP_TO, LEFT_OUT = " up to ", " left out"
# Where extremes end on which a baseline is tried that is wrong with larger ones: squares of the
# first stay in float32's range, then those of sums, exponentials, and what is near 1.
EXTREMES = (1e18, 1e9, 1e4, 80.0, 8.0)
_SCALE = {"x3": 3.0, "x0.01": 0.01, "negated": -1.0}
# The power that makes probabilities nearly those of one certain choice.
_SHARPEST = 30.0
# A config sees a set once, so to its code the numbers are as new as freshly drawn ones.
USES = 32


def input_kinds_for(spec: KernelSpec) -> tuple[str, ...]:
    """List the kinds of input that the kernel is checked with, `normal` first.

    `extreme` is none of them where the file leaves it out for every input that could have it.
    """
    read = [a for a in spec.arguments if a.is_read and not a.is_scalar]
    floats = [argument for argument in read if argument.dtype in FLOAT_DTYPES]
    none = floats and all(a.extreme is not None and a.extreme.largest is None for a in floats)
    kinds = tuple(kind for kind in INPUT_KINDS if kind != EXTREME or not none)
    special = any(argument.nonfinite for argument in spec.arguments)
    return (*kinds, NONFINITE) if special else kinds


def limit_extremes(largest: float) -> str:
    return f"{EXTREME}{_UP_TO}{largest:g}"


def split_kind(kind: str) -> tuple[str, float]:
    """Take a kind of input apart: what it is, and where its extremes end."""
    name, _, largest = kind.partition(_UP_TO)
    return name, float(largest or inf)


def same_seed(workload: Workload) -> int:
    """Give the seed of the inputs by which configs of a workload are told apart by their bits.

    It is no secret, unlike those of verification: nothing is proved right by these inputs.
    """
    return int.from_bytes(hashlib.sha256(workload.key.encode()).digest()[:7], "big")


def generator(xp: Any, seed: int) -> Any:
    if xp.__name__ == "numpy":
        return xp.random.default_rng(seed)
    # Philox is CuPy's counter-based generator: cheap to seed, unlike XORWOW's per-thread states.
    return xp.random.Generator(xp.random.Philox4x3210(seed))


def draw_values(
    xp: Any,
    rng: Any,
    argument: Argument,
    kind: str,
    shape: tuple[int, ...],
    names: Mapping[str, Value] | None = None,
    *,
    spread: float = 1.0,
) -> Any:
    """Draw float values for one input: the argument's own `fill`, varied as `kind` says.

    What the fill promises holds for every kind; `names` are the axes that its numbers depend on.
    The `spread` of plain normal numbers is their deviation.
    Raises `KernelError` where it cannot be kept.
    """
    bounds = tuple(float(bound.evaluate(names or {})) for bound in argument.fill_bounds)
    kind, largest = split_kind(kind)
    if argument.fill in WHOLE_FILLS:
        return _whole(xp, rng, argument, kind, shape, int(bounds[0]))
    if argument.fill == "probabilities":
        return _probabilities(xp, rng, kind, shape, int(bounds[0]) if bounds else -1)
    whole = argument.dtype not in FLOAT_DTYPES
    if whole and argument.fill == "normal":
        return _any_whole(xp, rng, argument.dtype, kind, shape)
    drawn = _plain(xp, rng, argument.fill, shape, bounds, "float64" if whole else "float32")
    if spread != 1.0:
        drawn *= spread
    values = _vary_values(xp, rng, drawn, argument, kind, largest)
    if argument.dtype.startswith("uint"):  # what is negative would be near their largest number
        values = xp.abs(values)
    if argument.fill == "positive":
        least = SMALLEST_NORMAL.get(argument.dtype, 1.0)
        values = xp.maximum(xp.abs(values), least)
    elif argument.fill == "sorted":
        values = xp.sort(values, axis=-1)
    elif bounds:
        low, high = bounds
        values = xp.clip(low + high - values if kind == "negated" else values, low, high)
    if kind == NONFINITE and argument.nonfinite:
        return _with_nonfinite(xp, rng, values)
    return values


def _any_whole(xp: Any, rng: Any, dtype: str, kind: str, shape: tuple[int, ...]) -> Any:
    """Draw from all that a dtype of whole numbers holds; of 64 bits what float64 can add exactly.

    Small ones alone are the kind `x0.01`.
    """
    bits = 1 if dtype == "bool" else min(8 * DTYPE_BYTES[dtype], _MOST_BITS)
    signed = dtype.startswith("int")
    least, count = (-(2 ** (bits - 1)) if signed else 0), 2**bits
    if kind == "x0.01":
        small = xp.rint(3 * rng.standard_normal(shape, dtype=xp.float32))
        return xp.clip(small if signed else xp.abs(small), least, least + count - 1)
    values = least + xp.floor(rng.random(shape) * count)
    if kind == "zeros":
        return xp.where(rng.random(shape) < 0.5, 0.0, values)
    if kind == EXTREME:
        ends = xp.asarray([least, least + count - 1, 0, 1, -1 if signed else 1], dtype=xp.float64)
        choice = (rng.random(shape, dtype=xp.float32) * 2 * len(ends)).astype(xp.int32)
        return xp.where(choice < len(ends), ends[xp.minimum(choice, len(ends) - 1)], values)
    return 2 * least + count - 1 - values if kind == "negated" else values


def _plain(
    xp: Any, rng: Any, fill: str, shape: tuple[int, ...], bounds: tuple[float, ...], dtype: str
) -> Any:
    if fill in ("normal", "positive", "sorted"):
        return rng.standard_normal(shape, dtype=xp.float32)
    if fill == "uniform":
        values = rng.random(shape, dtype=dtype)  # float32 has not all numbers of 32 bits
        return bounds[0] + (bounds[1] - bounds[0]) * values if bounds else values
    if fill in ("zeros", "ones"):
        return xp.full(shape, float(fill == "ones"), dtype=xp.float32)
    raise KernelError(
        f"unknown fill {fill!r}",
        remedy=f"use one of {', '.join(FILLS)}, or define inputs(xp, rng, axes, fill) in the "
        "reference file",
    )


def _vary_values(
    xp: Any, rng: Any, values: Any, argument: Argument, kind: str, largest: float
) -> Any:
    if kind == "negated" and len(argument.fill_bounds) == 2:
        return values
    if kind in _SCALE:
        return values * _SCALE[kind]
    if kind == "zeros":
        kept = rng.random(values.shape, dtype=xp.float32) < 0.5
        # Whole rows as well: what is divided by a row's sum is divided by zero there.
        rows = (*values.shape[:1], *(1 for _ in values.shape[1:]))
        return values * kept * (rng.random(rows, dtype=xp.float32) >= EMPTY_ROWS)
    if kind == EXTREME and argument.dtype in FLOAT_DTYPES:
        large, small = min(LARGEST[argument.dtype], largest), SMALLEST_NORMAL[argument.dtype]
        if argument.extreme is not None:
            if argument.extreme.largest is None:
                return values
            large = min(large, argument.extreme.largest)
        table = [large, -large, small, -small, small / 2, -small / 2, 0.0, -0.0, 1.0, -1.0]
        extremes = xp.asarray(table, dtype=xp.float64)
        choice = (rng.random(values.shape, dtype=xp.float32) * 2 * len(table)).astype(xp.int32)
        picked = xp.clip(extremes[xp.minimum(choice, len(table) - 1)], -large, large)
        return xp.where(choice < len(table), picked, values)
    return values


def _whole(
    xp: Any, rng: Any, argument: Argument, kind: str, shape: tuple[int, ...], below: int
) -> Any:
    size = prod(shape)
    if below < 1 or (argument.fill == "distinct" and below < size):
        raise KernelError(
            f"the fill of {argument.name!r} asks for {size} numbers below {below}",
            remedy="give it a larger number, or leave the workload out",
        )
    if argument.fill == "distinct":
        return xp.argsort(rng.random(below))[:size].reshape(shape).astype(xp.float64)
    # Where they end: offsets reach the number itself.
    end = below + 1 if argument.fill == "offsets" else below
    share = rng.random(shape)
    if kind in ("x3", "negated"):  # many low ones, or many high ones
        share = share**3
    if kind == "x0.01":
        share = share / 100
    if kind == EXTREME:
        share = xp.where(share < 0.5, 0.0, 1.0)
    if kind == "zeros":
        share = xp.where(rng.random(shape) < 0.5, 0.0, share)
    numbers = xp.minimum(xp.floor(share * end), end - 1)
    if kind == "negated":
        numbers = end - 1 - numbers
    if argument.fill == "offsets":
        numbers = xp.sort(numbers, axis=-1)
        numbers[..., :1], numbers[..., -1:] = 0, below
    return numbers


def _probabilities(xp: Any, rng: Any, kind: str, shape: tuple[int, ...], axis: int) -> Any:
    weights = -xp.log(1.0 - rng.random(shape)) + SMALLEST_NORMAL["float32"]
    if kind in ("x3", "x0.01", EXTREME):  # nearer to one certain choice, or to equal ones
        weights = weights ** _SCALE.get(kind, _SHARPEST)
    if kind == "zeros":
        largest = weights == weights.max(axis=axis, keepdims=True)
        weights = weights * (largest | (rng.random(shape) < 0.5))
    return weights / weights.sum(axis=axis, keepdims=True)


def _with_nonfinite(xp: Any, rng: Any, values: Any) -> Any:
    rows = values.reshape(len(values), -1)
    spoiled = rng.random((len(rows), 1), dtype=xp.float32) < NONFINITE_SHARE
    spoiled[:1] |= ~spoiled.any()
    chosen = spoiled & (rng.random(rows.shape, dtype=xp.float32) < NONFINITE_SHARE)
    # One kind a row, or all of them: a NaN hides what becomes of an infinity beside it.
    kinds = xp.asarray([xp.nan, xp.inf, -xp.inf])
    of_row = (rng.random((len(rows), 1), dtype=xp.float32) * 4).astype(xp.int32)
    of_element = (rng.random(rows.shape, dtype=xp.float32) * 3).astype(xp.int32)
    kind = xp.where(of_row < len(kinds), of_row, of_element)
    return xp.where(chosen, kinds[xp.minimum(kind, len(kinds) - 1)], rows).reshape(values.shape)


def round_to_dtype(xp: Any, dtype: str, kind: str, values: Array) -> Array:
    """Round drawn values to those of a dtype, as they lie in memory."""
    if kind == NORMAL and dtype in FLOAT_DTYPES:
        # What is timed may be written anew by a product, which has no sums of -0.
        values = values + 0.0
    return encode(xp, values, dtype)


@dataclass(slots=True)
class Prepared:
    """Inputs as they are stored, their float64 reference once computed, and a run's outputs."""

    workload: Workload
    kind: str
    seed: int
    inputs: dict[str, Array]
    reference: Mapping[str, Array] | None = None
    first_output: dict[str, Array] | None = None
    telling: set[str] = field(default_factory=set)  # outputs that zeros were seen not to pass
    given: frozenset[str] = frozenset()  # inputs of which no number changes alone
    spreads: Mapping[str, float] = field(default_factory=dict)  # deviations that are not 1
    twin: tuple[Prepared, Patch] | None = None  # slightly other inputs, and how they differ
    changed: dict[int, Prepared] = field(default_factory=dict)  # others yet, by their variants
    moved: Sequence[Mapping[str, Array]] = ()  # the reference of inputs that rounding has moved
    rounded: Mapping[str, Array] = field(default_factory=dict)  # that with operands of TF32
    # Rows that stand among others (`verify.rows`).
    probes: Mapping[str, Array] = field(default_factory=dict)
    uses: int = 0
    told: str = ""  # what a verdict calls the kind, where that says too much
    # Of outputs whose tolerance is measured: what a rounding is of each element, how many of them
    # a baseline may be off by, 0 where zeros would pass, and which hold nothing that is rounded.
    scales: dict[str, Array] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    copied: frozenset[str] = frozenset()

    def forget(self) -> None:
        """Leave what is computed of the inputs to be computed again: that is most of the memory."""
        self.reference, self.scales, self.moved, self.rounded = None, {}, (), {}

    @property
    def size_bytes(self) -> int:
        held = (self, *([self.twin[0]] if self.twin else []), *self.changed.values())
        kept = [v for p in held for v in (p.inputs, p.reference or {}, p.scales, p.rounded)]
        kept += [values for prepared in held for values in prepared.moved]
        arrays = (array for values in kept for array in values.values())
        # A twin shares what it does not change: the weights of a layer are most of its inputs.
        return sum(int(array.nbytes) for array in {id(a): a for a in arrays}.values())


class InputCache:
    """Keep one prepared set of each kind, within `limit_bytes` in all.

    Those of `normal` are asked for by their seed, any other serves for at most `USES` checks.
    `trim` gives back what the libraries keep of freed memory, each for itself.
    """

    def __init__(self, limit_bytes: int, trim: Callable[[], None]) -> None:
        self._limit_bytes, self._trim = limit_bytes, trim
        self._kept: dict[str, Prepared] = {}

    def take(self, kind: str, seed: int) -> Prepared | None:
        """Return the set of this kind, None where there is none or it is used up."""
        kept = self._kept.pop(kind, None)
        if kept is None or kept.reference is None:
            return None
        if kept.seed != seed and (kind == NORMAL or kept.uses >= USES):
            return None
        self.put(kept)
        return kept

    def put(self, prepared: Prepared) -> None:
        prepared.uses += 1
        others = sum(other.size_bytes for other in self._kept.values())
        if others + prepared.size_bytes <= self._limit_bytes:
            self._kept[prepared.kind] = prepared

    def making_room(self, attempt: Callable[[], _T]) -> _T:
        """Try once more, without all that is kept, where memory ends: it only saves time."""
        # Not in an `except`: the error's frames hold what it had made so far.
        with suppress(MemoryError):
            return attempt()
        self.clear()
        self._trim()
        return attempt()

    def clear(self) -> None:
        self._kept.clear()
