"""On a GPU each copy of the arrays differs from the others at places of its own in each replay.

The kernel that writes them is run in Python, on memory that stands for a GPU's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from ptx_runner import DeviceMemory

from tuner.device.cuda import device_patch, replays
from tuner.device.cuda.buffers import Buffers
from tuner.device.cuda.device_patch import DevicePatch
from tuner.device.cuda.replays import Results
from tuner.device.layout import UNCHANGED, InputChange, Layout, Patch, Slot, Varied
from tuner.device.timing import JUDGED_ON_GPU

# A float32 array of 40 elements and one of 24 in 16 bits, in a set of 512 bytes.
WIDE, NARROW, SET_BYTES, SETS = Varied(64, 40, 4, 2), Varied(256, 24, 2, 1), 512, 6
FIELDS = (WIDE, NARROW)


def change(seed: int) -> InputChange:
    chance, places = np.random.default_rng(seed), list[int]()
    for one in FIELDS:
        for element in one.draw(chance, ()):
            begin = one.offset + int(element) * one.width_bytes
            places += range(begin, begin + one.width_bytes)
    return InputChange(tuple(places), b"", chance.bytes(len(places)))


PATCH = Patch(tuple(map(change, range(5))), FIELDS)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> DeviceMemory:
    memory = DeviceMemory()
    for module in (device_patch, replays):
        for name in ("call", "allocate"):
            monkeypatch.setattr(module, name, getattr(memory, name))
    monkeypatch.setattr(device_patch, "load_kernel", memory.load_kernel)
    monkeypatch.setattr(device_patch, "_BLOCKS", 2)
    return memory


class Sets:
    """Copies of pristine inputs, and the patch that changes them."""

    def __init__(self, memory: DeviceMemory, patch: Patch) -> None:
        self.memory, self.pristine = memory, memory.allocate(SET_BYTES)
        self.content = np.random.default_rng(1).bytes(SET_BYTES)
        memory.bytes[self.pristine : self.pristine + SET_BYTES] = self.content
        self.base = memory.allocate(SETS * SET_BYTES)
        self.patch = DevicePatch(patch, self.pristine)
        self.fill()

    def fill(self) -> None:
        self.memory.bytes[self.base : self.base + SETS * SET_BYTES] = self.content * SETS
        self.patch.forget()

    def replay(self, *judged: tuple[int, int] | None) -> list[list[bytes]]:
        """Apply the patch before so many replays; what the sets hold in each."""
        buffers = cast("Buffers", SimpleNamespace(base=self.base, set_bytes=SET_BYTES, sets=SETS))
        found = []
        for one in judged:
            self.patch.apply(one, buffers, None)
            begins = range(self.base, self.base + SETS * SET_BYTES, SET_BYTES)
            found.append([bytes(self.memory.bytes[at : at + SET_BYTES]) for at in begins])
        return found

    def changed(self, content: bytes, one: Varied) -> list[int]:
        """List which elements of an input differ from the pristine ones."""
        width = one.width_bytes
        begins = [one.offset + k * width for k in range(one.size)]
        pairs = (content[at : at + width] == self.content[at : at + width] for at in begins)
        return [k for k, same in enumerate(pairs) if not same]


def test_each_set_differs_at_places_of_its_own_and_no_longer_where_it_did(
    memory: DeviceMemory,
) -> None:
    sets = Sets(memory, PATCH)
    met: list[tuple[int, ...]] = []
    for content in (each for replay in sets.replay(None, None, None) for each in replay):
        for one in FIELDS:
            changed = sets.changed(content, one)
            assert len(changed) <= one.elements
            values = {
                sets.content[one.offset + k * one.width_bytes :][: one.width_bytes]
                for k in range(one.size)
            }
            for k in changed:
                at = one.offset + k * one.width_bytes
                assert content[at : at + one.width_bytes] in values, "another one of its array"
        met.append(tuple(sets.changed(content, WIDE)))
        outside = [*range(64), *range(64 + 160, 256), *range(256 + 48, SET_BYTES)]
        assert all(content[k] == sets.content[k] for k in outside)
    assert len(set(met)) > len(met) * 2 / 3


def test_a_judged_call_meets_its_change_and_nothing_else(memory: DeviceMemory) -> None:
    sets = Sets(memory, PATCH)
    judged = [(2, 4), None, (2, 1), (5, 5)]
    for batch in range(3):
        for replay, content in enumerate(sets.replay(*judged)):
            if (one := judged[replay]) is None:
                continue
            chosen, variant = one
            wanted = bytearray(sets.content)
            for place, value in zip(
                PATCH.of(variant).offsets, PATCH.of(variant).after, strict=True
            ):
                wanted[place] = value
            assert content[chosen] == bytes(wanted), (batch, replay)
    sets.fill()
    (first,) = sets.replay((0, 3))
    assert sets.changed(first[1], WIDE) != sets.changed(first[0], WIDE)


def test_without_changes_nothing_is_written(memory: DeviceMemory) -> None:
    sets = Sets(memory, UNCHANGED)
    assert sets.replay(None, None) == [[sets.content] * SETS] * 2


def test_kept_results_are_some_of_all_and_bits_are_compared_on_the_same_variant(
    memory: DeviceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def compare(stream: Any, first: int, second: int, size: int, flag: int) -> None:
        compared.append((first, second))

    monkeypatch.setattr(replays, "compare_bytes", compare)
    monkeypatch.setattr(replays, "read_flag", lambda flag: False)
    slot = Slot("y", "float32", (16,), "output", 128, 64)
    layout = Layout((slot,), ("y",), SET_BYTES, ("y",))
    results = Results(layout, 2, frozenset({"y"}), 4)
    results.renew(PATCH, 2)
    base, variants = memory.allocate(SET_BYTES), dict[int, int]()
    for turn in range(60):
        judging = results.plan(1)
        if judging is None:
            continue
        memory.bytes[base : base + SET_BYTES] = bytes([turn]) * SET_BYTES
        before = len(compared)
        results.take(1, judging, base, None)
        if judging.place is None:
            assert len(compared) == before + 1
        else:
            variants[judging.place] = judging.variant
    assert results.show(0, 0, base) is None
    for place, variant in variants.items():
        assert results.show(1, place, base) == (variant, True)
    assert set(variants) == set(range(JUDGED_ON_GPU))


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("places", [1, 3, 4, 99])
def test_where_memory_is_short_some_programs_results_are_kept(places: int) -> None:
    layout = Layout((), (), SET_BYTES, ())
    results, judged = Results(layout, 3, frozenset(), places), set[int]()
    most = min(places, 3 * JUDGED_ON_GPU)
    for programs in (3, 1):
        for _ in range(40):
            results.renew(PATCH, programs)
            kept = [call._judged for call in results._calls]
            assert sum(kept) == min(places, programs * JUDGED_ON_GPU)
            assert max(kept) - min(kept) <= 1
            spots = [results._address(k, n) for k, count in enumerate(kept) for n in range(count)]
            assert len({*spots}) == len(spots)
            assert max(spots) < results._base + most * SET_BYTES
            judged |= {index for index, count in enumerate(kept) if count}
    assert judged == {0, 1, 2}, "whose nobody foresees"
