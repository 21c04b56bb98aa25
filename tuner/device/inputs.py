"""Random inputs for verification and timing, from a seed that the kernel cannot know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.device.layout import LARGEST, SMALLEST_NORMAL, Array, Patch
from tuner.model.errors import KernelError
from tuner.model.kernel import FLOAT_DTYPES, Argument, KernelSpec, Workload

NORMAL, NONFINITE = "normal", "nonfinite"
# Each must leave a correct kernel correct; `extreme` mixes in the ends of the dtype's range.
INPUT_KINDS = (NORMAL, "x3", "x0.01", "negated", "zeros", "extreme")
# What a model gives its kernels: the argument's own fill, larger, smaller and of the other sign.
ORDINARY = (NORMAL, "x3", "x0.01", "negated")
# Rows of an array that get NaN or infinities, and elements of such a row: the others must stay
# as right as before.
NONFINITE_SHARE = 0.25
# Rows that `zeros` leaves without any number.
EMPTY_ROWS = 0.25
_SCALE = {"x3": 3.0, "x0.01": 0.01, "negated": -1.0}
# A config sees a set once, so to its code the numbers are as new as freshly drawn ones.
USES = 32


def input_kinds_for(spec: KernelSpec) -> tuple[str, ...]:
    """List the kinds of input that the kernel is checked with, `normal` first."""
    special = any(argument.nonfinite for argument in spec.arguments)
    return (*INPUT_KINDS, NONFINITE) if special else INPUT_KINDS


def generator(xp: Any, seed: int) -> Any:
    if xp.__name__ == "numpy":
        return xp.random.default_rng(seed)
    # Philox is CuPy's counter-based generator: cheap to seed, unlike XORWOW's per-thread states.
    return xp.random.Generator(xp.random.Philox4x3210(seed))


def draw_values(xp: Any, rng: Any, argument: Argument, kind: str, shape: tuple[int, ...]) -> Any:
    """Draw float values for one input: the argument's own `fill`, varied as `kind` says."""
    fill, dtype = argument.fill, argument.dtype
    if fill == "normal":
        values = rng.standard_normal(shape, dtype=xp.float32)
    elif fill == "uniform":
        values = rng.random(shape, dtype=xp.float32)
    elif fill in ("zeros", "ones"):
        values = xp.full(shape, float(fill == "ones"), dtype=xp.float32)
    else:
        raise KernelError(
            f"unknown fill {fill!r}",
            remedy="use normal, uniform, zeros or ones, or define inputs(xp, rng, axes, fill) "
            "in the reference file",
        )
    if kind in _SCALE:
        values *= _SCALE[kind]
    if kind == "zeros":
        values *= rng.random(shape, dtype=xp.float32) < 0.5
        # Whole rows as well: what is divided by a row's sum is divided by zero there.
        rows = (*shape[:1], *(1 for _ in shape[1:]))
        values *= rng.random(rows, dtype=xp.float32) >= EMPTY_ROWS
    if kind == "extreme" and dtype in FLOAT_DTYPES:
        return _with_extremes(xp, rng, values, dtype)
    if kind == NONFINITE and argument.nonfinite:
        return _with_nonfinite(xp, rng, values)
    return values


def _with_extremes(xp: Any, rng: Any, values: Any, dtype: str) -> Any:
    large, small = LARGEST[dtype], SMALLEST_NORMAL[dtype]
    table = [large, -large, small, -small, small / 2, -small / 2, 0.0, -0.0, 1.0, -1.0]
    extremes = xp.asarray(table, dtype=xp.float64)
    choice = (rng.random(values.shape, dtype=xp.float32) * 2 * len(table)).astype(xp.int32)
    picked = extremes[xp.minimum(choice, len(table) - 1)]
    return xp.where(choice < len(table), picked, values)


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
    given: frozenset[str] = frozenset()  # inputs that the reference file drew
    twin: tuple[Prepared, Patch] | None = None  # slightly other inputs, and how they differ
    uses: int = 0

    @property
    def size_bytes(self) -> int:
        arrays = (*self.inputs.values(), *(self.reference or {}).values())
        twin = self.twin[0].size_bytes if self.twin else 0
        return twin + sum(int(array.nbytes) for array in arrays)


class InputCache:
    """Keep one prepared set of each kind for at most `USES` checks, within `limit_bytes` in all."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[str, Prepared] = {}

    def take(self, kind: str) -> Prepared | None:
        """Return the set of this kind, None where there is none or it is used up."""
        kept = self._kept.pop(kind, None)
        if kept is None or kept.reference is None or kept.uses >= USES:
            return None
        self.put(kept)
        return kept

    def put(self, prepared: Prepared) -> None:
        prepared.uses += 1
        others = sum(other.size_bytes for other in self._kept.values())
        if others + prepared.size_bytes <= self._limit_bytes:
            self._kept[prepared.kind] = prepared

    def clear(self) -> None:
        self._kept.clear()
