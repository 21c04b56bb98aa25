"""Random inputs for verification and timing, from a seed that the kernel cannot know."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tuner.device.layout import LARGEST, SMALLEST_NORMAL, Array
from tuner.model.errors import KernelError
from tuner.model.kernel import FLOAT_DTYPES, Argument, KernelSpec, Workload

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

NORMAL, NONFINITE = "normal", "nonfinite"
# Each must leave a correct kernel correct; `extreme` mixes in the ends of the dtype's range.
INPUT_KINDS = (NORMAL, "x3", "x0.01", "negated", "zeros", "extreme")
# Rows of an array that get NaN or infinities, and elements of such a row: the others must stay
# as right as before.
NONFINITE_SHARE = 0.25
# Rows that the fill `zeros` leaves without any number.
EMPTY_ROWS = 0.25
_SCALE = {"x3": 3.0, "x0.01": 0.01, "negated": -1.0}

Inputs = dict[str, Array]
ReferenceFunction = Callable[..., Mapping[str, Array]]
InputsFunction = Callable[[Any, Any, Mapping[str, int], str], Mapping[str, Array]]
CanonicalFunction = Callable[[Any, Mapping[str, Array], Mapping[str, int]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Reference:
    """The independent float64 reference and, where the operator needs them, its own inputs.

    `canonical` brings outputs of which several are right into the form that the reference gives.
    """

    compute: ReferenceFunction
    inputs: InputsFunction | None = None
    canonical: CanonicalFunction | None = None


def load_reference(path: Path) -> Reference:
    """Import a kernel's reference file; raise `KernelError` where it cannot serve.

    The file defines `reference(xp, inputs, axes, **operator)` and may define
    `inputs(xp, rng, axes, fill)`, which returns values for the arguments it names, and
    `canonical(xp, outputs, axes)`, which returns stored outputs in the reference's order.
    """
    module = load_module(path)
    compute = getattr(module, "reference", None)
    if not callable(compute):
        raise KernelError(
            "defines no `reference` function",
            path=path,
            remedy="define reference(xp, inputs, axes, **operator) -> {output name: array}",
        )
    own = (getattr(module, name, None) for name in ("inputs", "canonical"))
    return Reference(compute, *own)


def load_module(path: Path) -> ModuleType:
    """Import a reference file; raise `KernelError` at the line where that fails."""
    module_spec = importlib.util.spec_from_file_location(f"reference_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise KernelError("is not a Python file", path=path)
    module = importlib.util.module_from_spec(module_spec)
    with blamed_on(path, "cannot be imported"):
        module_spec.loader.exec_module(module)
    return module


@contextmanager
def blamed_on(path: Path, what: str) -> Iterator[None]:
    """Turn whatever code of the user's file raises into one `KernelError` at its line."""
    try:
        yield
    except (KernelError, MemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        message = f"{what}: {type(error).__name__}: {error}"
        raise KernelError(message, path=path, line=line) from error


def input_kinds_for(spec: KernelSpec) -> tuple[str, ...]:
    """List the fills that the kernel is checked with, `normal` first."""
    special = any(argument.nonfinite for argument in spec.arguments)
    return (*INPUT_KINDS, NONFINITE) if special else INPUT_KINDS


def generator(xp: Any, seed: int) -> Any:
    """Make a random generator of the array library."""
    if xp.__name__ == "numpy":
        return xp.random.default_rng(seed)
    # Philox is CuPy's counter-based generator: cheap to seed, unlike XORWOW's per-thread states.
    return xp.random.Generator(xp.random.Philox4x3210(seed))


def fill_values(xp: Any, rng: Any, argument: Argument, fill: str, shape: tuple[int, ...]) -> Any:
    """Draw float values for one input: the argument's own fill, varied by `fill`."""
    values = _base(xp, rng, argument.fill, shape)
    dtype = argument.dtype
    if fill in _SCALE:
        values *= _SCALE[fill]
    if fill == "zeros":
        values *= rng.random(shape, dtype=xp.float32) < 0.5
        # Whole rows as well: what is divided by a row's sum is divided by zero there.
        rows = (*shape[:1], *(1 for _ in shape[1:]))
        values *= rng.random(rows, dtype=xp.float32) >= EMPTY_ROWS
    if fill == "extreme" and dtype in FLOAT_DTYPES:
        return _with_extremes(xp, rng, values, dtype)
    if fill == NONFINITE and argument.nonfinite:
        return _with_nonfinite(xp, rng, values)
    return values


def _base(xp: Any, rng: Any, kind: str, shape: tuple[int, ...]) -> Any:
    if kind == "normal":
        return rng.standard_normal(shape, dtype=xp.float32)
    if kind == "uniform":
        return rng.random(shape, dtype=xp.float32)
    if kind in ("zeros", "ones"):
        return xp.full(shape, float(kind == "ones"), dtype=xp.float32)
    raise KernelError(
        f"unknown fill {kind!r}",
        remedy="use normal, uniform, zeros or ones, or define inputs(xp, rng, axes, fill) "
        "in the reference file",
    )


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


# A config sees a set once, so to its code the numbers are as new as freshly drawn ones.
USES = 32


@dataclass(slots=True)
class Prepared:
    """Inputs as they are stored, their float64 reference once computed, and a run's outputs."""

    workload: Workload
    fill: str
    seed: int
    inputs: dict[str, Array]
    reference: Mapping[str, Array] | None = None
    first_output: dict[str, Array] | None = None
    telling: set[str] = field(default_factory=set)  # outputs that zeros were seen not to pass

    @property
    def size_bytes(self) -> int:
        """Bytes of inputs and reference."""
        arrays = (*self.inputs.values(), *(self.reference or {}).values())
        return sum(int(array.nbytes) for array in arrays)


class InputCache:
    """Keep one prepared set of each fill for at most `USES` checks, within `limit_bytes` in all."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[str, tuple[Prepared, int]] = {}

    def take(self, fill: str) -> Prepared | None:
        """Return the set of this fill, None where there is none or it is used up."""
        kept = self._kept.pop(fill, None)
        if kept is None or kept[0].reference is None or kept[1] >= USES:
            return None
        prepared, uses = kept
        self._keep(prepared, uses + 1)
        return prepared

    def put(self, prepared: Prepared) -> None:
        """Keep a set that was drawn and is about to be used."""
        self._keep(prepared, 1)

    def clear(self) -> None:
        """Forget everything: another workload follows."""
        self._kept.clear()

    def _keep(self, prepared: Prepared, uses: int) -> None:
        others = sum(other.size_bytes for other, _ in self._kept.values())
        if others + prepared.size_bytes <= self._limit_bytes:
            self._kept[prepared.fill] = (prepared, uses)
