"""Twins: inputs that differ from others in as few numbers as show in the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.device.encoding import Array, encode, storage_dtype
from tuner.device.inputs import Prepared, draw_values, generator, round_to_dtype
from tuner.device.layout import UNCHANGED, Layout, Patch, Slot
from tuner.device.verify.accuracy import Leeway
from tuner.device.verify.outputs import compare
from tuner.model.kernel import KernelSpec

# Elements of each input that are changed at first, and the factor by which more are until it shows.
TOUCHED, TOUCHED_MORE = 1, 8
MOST_PATCHED = 1 << 16


@dataclass(frozen=True, slots=True)
class Twins:
    """Draw twins of inputs of one layout; `refer` computes the reference of inputs, once.

    `leeway` judges the outputs whose tolerance is measured.
    """

    xp: Any
    spec: KernelSpec
    layout: Layout
    refer: Callable[[Prepared], None]
    leeway: Leeway

    def of(self, before: Prepared, seed: int) -> tuple[Prepared, Patch] | None:
        """Draw inputs with as few other numbers as make other outputs, and say how they differ.

        Inputs that the reference file draws, and those in order or that add up to 1, stay as they
        are, for single numbers may depend on others. None where no other input shows. The patch is
        empty where it would take more than `MOST_PATCHED` bytes.
        """
        self.refer(before)
        slots = self.layout.with_role("input", "inout")
        mine = [slot for slot in slots if slot.name not in before.given]
        largest = max((before.inputs[slot.name].size for slot in mine), default=0)
        chance, rng = np.random.default_rng(seed), generator(self.xp, seed)
        count = TOUCHED
        while count < largest * TOUCHED_MORE:
            twin = Prepared(before.workload, before.kind, seed, dict(before.inputs))
            places = {}
            for slot in mine:
                chosen = np.unique(chance.integers(0, before.inputs[slot.name].size, count))
                places[slot.name] = chosen
                self._change(twin, slot, chosen, rng)
            self.refer(twin)
            if self._tells(before, twin):
                return twin, self._patch(before, twin, places)
            count *= TOUCHED_MORE
        return None

    def _change(self, twin: Prepared, slot: Slot, chosen: Array, rng: Any) -> None:
        argument, axes = self.spec.argument(slot.name), twin.workload.values
        others = draw_values(self.xp, rng, argument, twin.kind, chosen.shape, axes)
        twin.inputs[slot.name] = twin.inputs[slot.name].copy()
        flat, at = twin.inputs[slot.name].reshape(-1), self.xp.asarray(chosen)
        flat[at] = round_to_dtype(self.xp, slot.dtype, twin.kind, others)

    def _patch(self, before: Prepared, after: Prepared, places: Mapping[str, Array]) -> Patch:
        offsets: list[int] = []
        values: tuple[list[bytes], list[bytes]] = ([], [])
        for slot in self.layout.with_role("input", "inout"):
            if slot.name not in places:
                continue
            for place in places[slot.name]:
                width = storage_dtype(slot.dtype).itemsize
                start = slot.offset + int(place) * width
                offsets += range(start, start + width)
            for prepared, found in zip((before, after), values, strict=True):
                chosen = prepared.inputs[slot.name].reshape(-1)[self.xp.asarray(places[slot.name])]
                found.append(bytes(chosen if self.xp is np else chosen.get()))
        if len(offsets) > MOST_PATCHED:
            return UNCHANGED
        return Patch(tuple(offsets), (b"".join(values[0]), b"".join(values[1])))

    def _tells(self, before: Prepared, after: Prepared) -> bool:
        """Say whether the outputs for some inputs would be wrong for the others."""
        with np.errstate(all="ignore"):
            for slot in self.layout.with_role("output", "inout"):
                old, new = (one.reference[slot.name] for one in (before, after) if one.reference)
                stored = encode(self.xp, old, slot.dtype)
                tolerance = self.spec.tolerances[slot.name]
                if slot.name in self.leeway:
                    other = self.leeway.tells(self.xp, stored, after, slot.name, slot.dtype)
                else:
                    other = not compare(self.xp, stored, new, slot.dtype, tolerance).passed
                if other:
                    return True
        return False
