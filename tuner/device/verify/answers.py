"""What is right for a reference's inputs, whichever array library the judge works with.

A rounding decides what is over a computed threshold, or which of two is larger: there the exact
answer is one of several right ones. Nothing is lost on elements that no rounding decides, and a
copy, a count or an index among equal numbers stays exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tuner.device.encoding import Array, count, decode, is_any
from tuner.device.inputs import (
    Prepared,
    draw_values,
    generator,
    round_to_dtype,
    split_kind,
)
from tuner.device.layout import Layout
from tuner.device.problems import reference_of
from tuner.device.reference import blamed_on, misfit, require_dict
from tuner.device.verify.accuracy import FLOOR, OF_AN_ELEMENT, Leeway
from tuner.model.errors import KernelError
from tuner.model.kernel import COUPLED_FILLS, KernelSpec, Workload

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
    for expected in moved():
        wrong &= out != expected[name].reshape(-1)
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
    for expected in moved():
        apart = xp.abs(expected[name] - reference)
        jump = xp.maximum(jump, xp.where(xp.isfinite(apart), apart, 0.0) / _JUMP)
    # Where an output is no steeper than a rounding says, both are about the same.
    if not _few(xp, jump > 4.0 * scale):
        return None
    return replace(prepared, scales={**prepared.scales, name: jump})


def _few(xp: Any, wrong: Array) -> bool:
    return count(xp, wrong) <= max(1, int(MOST_IN_DOUBT * wrong.size))


# What CuPy raises for a function, method or argument that it has not, and for an array of NumPy's.
LACKS = (AttributeError, NotImplementedError, TypeError)


class EitherLibrary:
    """Call a function with the memory's array library, or with NumPy once only that has worked."""

    def __init__(self) -> None:
        self._with_numpy = False

    def call(
        self,
        xp: Any,
        function: Callable[[Any, Mapping[str, Array]], Any],
        inputs: Mapping[str, Array],
    ) -> Any:
        """Return what `function(xp, inputs)` gives, arrays of `xp`; what NumPy raises is raised."""
        if xp is np:
            return function(np, inputs)
        if not self._with_numpy:
            try:
                return function(xp, inputs)
            except LACKS:
                pass  # NumPy says what is wrong, if more is wrong than that it is CuPy
        given = {name: xp.asnumpy(values) for name, values in inputs.items()}
        results = function(np, given)
        self._with_numpy = True
        if not isinstance(results, Mapping):
            return results
        return {n: xp.asarray(v) if isinstance(v, np.ndarray) else v for n, v in results.items()}


# What a verdict says behind a kind of input that a problem has none of: PyTorch is wrong on it.
ORDINARY_INSTEAD = " (ordinary ones in its place)"


class Answers:
    """Draw inputs as a search space and its reference say, and compute what is right for them."""

    def __init__(
        self, xp: Any, spec: KernelSpec, operators: Mapping[str, str], leeway: Leeway
    ) -> None:
        self._xp, self._spec, self.operators, self._leeway = xp, spec, dict(operators), leeway
        self.reference = reference_of(spec)
        if self.reference.rounded is None and any(t.tf32 for t in spec.tolerances.values()):
            raise KernelError(
                "`tf32` in a tolerance needs a reference in PyTorch, and this one is none",
                path=spec.path,
                remedy=f"compute with rounded operands in {spec.reference.name}, or widen the "
                "tolerance",
            )
        self._computing, self._drawing = EitherLibrary(), EitherLibrary()

    def draw(self, workload: Workload, kind: str, seed: int, layout: Layout) -> Prepared:
        """Draw one set of inputs, as they are stored."""
        rng = generator(self._xp, seed)
        slots = {slot.name: slot for slot in layout.with_role("input", "inout")}
        given = self._draw_own(workload, kind, seed, rng)
        spreads = self.reference.spreads(workload.values)
        require_dict(self._spec.reference, "inputs", given, slots)
        for name, values in given.items():
            shape = getattr(values, "shape", None)  # of what is no array there is none
            if name in slots and shape is not None and tuple(shape) == slots[name].shape:
                continue
            wanted = f"needs {slots[name].shape}" if name in slots else "is no input"
            what = f"a value of type {type(values).__name__}"
            found = what if shape is None else f"shape {tuple(shape)}"
            wrong = f"`inputs` returns {found} for {name!r}, which {wanted}"
            raise misfit(self._spec.reference, "inputs", wrong, f"inputs: {', '.join(slots)}")
        inputs: dict[str, Array] = {}
        coupled = {*given}
        for name, slot in slots.items():
            values = given.get(name)
            if values is None:
                argument = self._spec.argument(name)
                coupled |= {name} if argument.fill in COUPLED_FILLS else set()
                asked, spread = (kind, slot.shape, workload.values), spreads.get(name, 1.0)
                values = draw_values(self._xp, rng, argument, *asked, spread=spread)
            stored = round_to_dtype(self._xp, slot.dtype, kind, values)
            inputs[name] = stored.reshape(slot.shape)
        told = f"{kind}{ORDINARY_INSTEAD}" if self.reference.replaced() else kind
        fixed = frozenset(coupled)
        return Prepared(workload, kind, seed, inputs, given=fixed, spreads=spreads, told=told)

    def refer(self, prepared: Prepared, layout: Layout) -> None:
        """Compute what is expected, and what a rounding is of it, unless that is known."""
        if prepared.reference is not None:
            return
        decoded = self._decode(prepared, layout)
        prepared.reference = self._compute(prepared.workload, decoded)
        if self._leeway:
            compute = partial(self._compute, prepared.workload)
            try:
                self._leeway.find_scales(self._xp, prepared, decoded, compute)
            except MemoryError:
                prepared.reference = None  # as another attempt has to find it
                raise

    def move(self, prepared: Prepared, layout: Layout) -> Moved:
        """Compute what is expected of the inputs as roundings could move them."""
        if self.reference.fixed:
            return ()
        compute = partial(self._compute, prepared.workload)
        asked = self._decode(prepared, layout), self._leeway.floats, self._leeway.unit, compute
        return compute_moved(self._xp, *asked)

    def refer_rounded(self, prepared: Prepared, layout: Layout) -> Mapping[str, Array]:
        """Compute, once, what is expected of operands that are rounded to TF32."""
        if not prepared.rounded:
            decoded = self._decode(prepared, layout)
            prepared.rounded = self._compute(prepared.workload, decoded, rounded=True)
        return prepared.rounded

    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self._spec.outputs)

    def _decode(self, prepared: Prepared, layout: Layout) -> dict[str, Array]:
        return {
            slot.name: decode(self._xp, prepared.inputs[slot.name], slot.dtype)
            for slot in layout.with_role("input", "inout")
        }

    def _draw_own(self, workload: Workload, kind: str, seed: int, rng: Any) -> Mapping[str, Array]:
        asked = workload.values, split_kind(kind)[0], self.operators

        def draw(xp: Any, _: Mapping[str, Array]) -> Mapping[str, Array]:
            chance = rng if xp is self._xp else generator(xp, seed)
            return self.reference.drawn(xp, chance, *asked)

        with blamed_on(self._spec.reference, f"`inputs` fails on {workload}"):
            given: Mapping[str, Array] = self._drawing.call(self._xp, draw, {})
            return given

    def _compute(
        self, workload: Workload, inputs: Mapping[str, Array], *, rounded: bool = False
    ) -> dict[str, Array]:
        reference = self.reference.rounded if rounded else self.reference.compute
        assert reference is not None

        def compute(xp: Any, given: Mapping[str, Array]) -> Mapping[str, Array]:
            return reference(xp, given, workload.values, **self.operators)

        # An overflow to infinity is an answer like others, and NumPy would print a warning of it.
        quiet = np.errstate(all="ignore")
        with quiet, blamed_on(self._spec.reference, f"fails on {workload}"):
            computed = self._computing.call(self._xp, compute, inputs)
            require_dict(self._spec.reference, "reference", computed, self.names())
            return {
                name: self._xp.ascontiguousarray(values, dtype=self._xp.float64)
                for name, values in computed.items()
            }
