"""What a reference draws and what it expects, whichever array library the judge works with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from tuner.device.either import EitherLibrary
from tuner.device.encoding import Array, decode
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
from tuner.device.verify.accuracy import Leeway
from tuner.device.verify.doubt import Moved, compute_moved
from tuner.model.kernel import COUPLED_FILLS, KernelSpec, Workload

# What a verdict says behind a kind of input that a problem has none of: PyTorch is wrong on it.
ORDINARY_INSTEAD = " (ordinary ones in its place)"


class Answers:
    """Draw inputs as a search space and its reference say, and compute what is right for them."""

    def __init__(
        self, xp: Any, spec: KernelSpec, operators: Mapping[str, str], leeway: Leeway
    ) -> None:
        self._xp, self._spec, self.operators, self._leeway = xp, spec, dict(operators), leeway
        self.reference = reference_of(spec)
        self._computing, self._drawing = EitherLibrary(), EitherLibrary()

    def draw(self, workload: Workload, kind: str, seed: int, layout: Layout) -> Prepared:
        """Draw one set of inputs, as they are stored."""
        rng = generator(self._xp, seed)
        slots = {slot.name: slot for slot in layout.with_role("input", "inout")}
        given = self._draw_own(workload, kind, seed, rng)
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
                values = draw_values(self._xp, rng, argument, kind, slot.shape, workload.values)
            stored = round_to_dtype(self._xp, slot.dtype, kind, values)
            inputs[name] = stored.reshape(slot.shape)
        told = f"{kind}{ORDINARY_INSTEAD}" if self.reference.replaced() else kind
        return Prepared(workload, kind, seed, inputs, given=frozenset(coupled), told=told)

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

    def names(self) -> tuple[str, ...]:
        """Name what a reference returns."""
        return tuple(a.name for a in self._spec.arguments if a.role in ("output", "inout"))

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

    def _compute(self, workload: Workload, inputs: Mapping[str, Array]) -> dict[str, Array]:
        def compute(xp: Any, given: Mapping[str, Array]) -> Mapping[str, Array]:
            return self.reference.compute(xp, given, workload.values, **self.operators)

        # An overflow to infinity is an answer like others, and NumPy would print a warning of it.
        quiet = np.errstate(all="ignore")
        with quiet, blamed_on(self._spec.reference, f"fails on {workload}"):
            computed = self._computing.call(self._xp, compute, inputs)
            require_dict(self._spec.reference, "reference", computed, self.names())
            return {
                name: self._xp.ascontiguousarray(values, dtype=self._xp.float64)
                for name, values in computed.items()
            }
