"""Twins: inputs that differ from others in as few numbers as show in the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.device.encoding import Array, encode, storage_dtype
from tuner.device.inputs import Prepared, draw_values, generator, round_to_dtype
from tuner.device.layout import UNCHANGED, InputChange, Layout, Patch, Slot, Varied
from tuner.device.verify.accuracy import Leeway
from tuner.device.verify.outputs import compare
from tuner.model.kernel import FLOAT_DTYPES, KernelSpec, Workload

# Elements of each input that are changed at first, and the factor by which more are until it shows.
TOUCHED, TOUCHED_MORE = 1, 8
# How many drawn changes have to show, where there is memory for as many references.
SHOWN = 3
# What is drawn: a timed call on a CPU meets one that no call before it met. On a GPU only calls
# that are judged do, which are few, and what changes make is computed once for all configs.
CHANGES, CHANGES_ON_GPU = 128, 8
MOST_PATCHED, MOST_BYTES = 1 << 16, 1 << 17
# A mean of a thousand million numbers shows no fewer: then all are drawn anew.
MOST_TOUCHED = 1 << 18


@dataclass(frozen=True, slots=True)
class Twins:
    """Draw twins of inputs of one layout; `refer` computes the reference of inputs, once.

    `leeway` judges the outputs whose tolerance is measured. Of how many elements a change has to be
    is known of the workloads in `touched`. `frugal`: no two references are held at a time.
    """

    xp: Any
    spec: KernelSpec
    layout: Layout
    refer: Callable[[Prepared], None]
    leeway: Leeway
    touched: dict[Workload, int]
    frugal: bool = False

    def of(
        self, before: Prepared, seed: int, *, given_too: bool = False
    ) -> tuple[Prepared, Patch] | None:
        """Draw changes of as few numbers as make other outputs, and the inputs with the first.

        Each lies at places of its own among all elements. Inputs that the reference file draws, and
        those in order or that add up to 1, stay as they are, for single numbers may depend on
        others. Where all are so, `given_too` lets floats among them take other values of their
        array. None where no other input shows. The patch is empty where a change would take more
        than `MOST_PATCHED` bytes.
        """
        self.refer(before)
        stored = self._store(before)
        if self.frugal:
            before.forget()
        slots = self.layout.with_role("input", "inout")
        mine = [slot for slot in slots if slot.name not in before.given]
        if given_too and not mine:
            mine = [slot for slot in slots if slot.dtype in FLOAT_DTYPES]
        largest = max((before.inputs[slot.name].size for slot in mine), default=0)
        draws = np.random.default_rng(seed), generator(self.xp, seed)
        known = self.touched.get(before.workload)
        shown = 1 if self.frugal else SHOWN
        count, wanted = (TOUCHED, shown) if known is None else (known, 1)
        best: list[tuple[InputChange, Prepared]] = []
        while count < min(largest * TOUCHED_MORE, MOST_TOUCHED + 1) and len(best) < wanted:
            found: list[tuple[InputChange, Prepared]] = []
            for change in self._draw(before, mine, wanted, count, *draws):
                twin = self.changed(before, change)
                self.refer(twin)
                if self._tells(stored, twin):
                    # The first one's reference serves again, those of others take memory.
                    found.append((change, found[0][1] if found else twin))
            if len(found) > len(best):
                best, self.touched[before.workload] = found, count
            count *= TOUCHED_MORE
        if not best:
            return None
        (first, twin), *_ = best
        size = len(first.offsets)
        if size > MOST_PATCHED:
            return twin, UNCHANGED
        most = CHANGES if self.xp is np else CHANGES_ON_GPU
        others = max(1, min(most, MOST_BYTES // size) - len(best))
        more = self._draw(before, mine, others, self.touched[before.workload], *draws)
        varied = tuple(_vary_slot(slot, self.touched[before.workload]) for slot in mine)
        return twin, Patch((first, *(change for change, _ in best[1:]), *more), varied)

    def changed(self, before: Prepared, change: InputChange) -> Prepared:
        """Give the inputs with a change; what it does not touch is shared."""
        twin = Prepared(before.workload, before.kind, before.seed, dict(before.inputs))
        offsets = np.array(change.offsets, np.int64)
        values = np.frombuffer(change.after, np.uint8)
        for slot in self.layout.with_role("input", "inout"):
            inside = (slot.offset <= offsets) & (offsets < slot.offset + slot.size_bytes)
            if inside.any():
                stored = twin.inputs[slot.name] = twin.inputs[slot.name].copy()
                places = self.xp.asarray(offsets[inside] - slot.offset)
                stored.reshape(-1).view(np.uint8)[places] = self.xp.asarray(values[inside])
        return twin

    def _draw(
        self,
        before: Prepared,
        slots: Sequence[Slot],
        changes: int,
        count: int,
        chance: Any,
        rng: Any,
    ) -> list[InputChange]:
        """Draw changes of up to `count` elements of each input, one in each part of it."""
        parts = [self._draw_of(before, slot, changes, count, chance, rng) for slot in slots]
        offsets, old, new = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
        rows = zip(offsets.tolist(), old, new, strict=True)
        return [InputChange(tuple(at), was.tobytes(), will.tobytes()) for at, was, will in rows]

    def _draw_of(
        self, before: Prepared, slot: Slot, changes: int, count: int, chance: Any, rng: Any
    ) -> tuple[Array, Array, Array]:
        """Draw where bytes of one input change, and what was and will be there: a row a change."""
        stored, varied = before.inputs[slot.name].reshape(-1), _vary_slot(slot, count)
        chosen, width = varied.draw(chance, (changes,)), varied.width_bytes
        argument, axes = self.spec.argument(slot.name), before.workload.values
        if slot.name in before.given:
            drawn = stored[self.xp.asarray(chance.integers(0, stored.size, chosen.size))]
        else:
            asked, spread = (argument, before.kind, (chosen.size,), axes), before.spreads
            values = draw_values(self.xp, rng, *asked, spread=spread.get(slot.name, 1.0))
            drawn = round_to_dtype(self.xp, slot.dtype, before.kind, values)
        pair = (stored[self.xp.asarray(chosen.reshape(-1))], drawn)
        found = (one if self.xp is np else one.get() for one in pair)
        old, new = (one.view(np.uint8).reshape(changes, -1) for one in found)
        offsets = slot.offset + chosen[..., np.newaxis] * width + np.arange(width)
        return offsets.reshape(changes, -1), old, new

    def _store(self, prepared: Prepared) -> dict[str, Array]:
        """Give the outputs of inputs as a right kernel would store them."""
        right = prepared.reference or {}
        with np.errstate(all="ignore"):
            return {
                slot.name: encode(self.xp, right[slot.name], slot.dtype)
                for slot in self.layout.with_role("output", "inout")
            }

    def _tells(self, outputs: Mapping[str, Array], other: Prepared) -> bool:
        """Say whether the outputs for some inputs would be wrong for others."""
        with np.errstate(all="ignore"):
            for slot in self.layout.with_role("output", "inout"):
                asked = self.xp, outputs[slot.name]
                if slot.name in self.leeway:
                    differ = self.leeway.tells(*asked, other, slot.name, slot.dtype)
                else:
                    right = (other.reference or {})[slot.name]
                    tolerance = self.spec.tolerances[slot.name]
                    differ = not compare(*asked, right, slot.dtype, tolerance).passed
                if differ:
                    return True
        return False


def _vary_slot(slot: Slot, count: int) -> Varied:
    width = storage_dtype(slot.dtype).itemsize
    size = slot.size_bytes // width
    return Varied(slot.offset, size, width, min(count, size))
