"""Twins: a few other numbers, as many as show, and how the one's bytes become the other's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tuner.device.encoding import Array, decode
from tuner.device.inputs import NORMAL, Prepared, round_to_dtype
from tuner.device.layout import UNCHANGED, lay_out
from tuner.device.verify import twins
from tuner.device.verify.accuracy import Leeway
from tuner.device.verify.twins import Twins
from tuner.model.kernel import KernelSpec, Workload

MakeSpec = Callable[..., KernelSpec]
WORKLOAD = Workload.of({"T": 300})
ARGUMENTS = (
    ("y", "float32", ("T",), "output"),
    ("x", "float32", ("T",), "input"),
    ("w", "float32", ("T",), "input"),
)


class Bench:
    """Inputs to draw twins of, and the reference, which `outputs` computes."""

    def __init__(self, spec: KernelSpec, outputs: Callable[[Array, Array], Array]) -> None:
        self.layout = lay_out(spec, WORKLOAD.values)
        self.outputs, self.referred = outputs, 0
        self.twins = Twins(np, spec, self.layout, self.refer, Leeway(spec), {})

    def refer(self, prepared: Prepared) -> None:
        if prepared.reference is None:
            self.referred += 1
            x, w = (decode(np, prepared.inputs[name], "float32") for name in ("x", "w"))
            prepared.reference = {"y": np.asarray(self.outputs(x, w), np.float64)}

    def drawn(self, *given: str) -> Prepared:
        rng = np.random.default_rng(1)
        inputs = {
            name: round_to_dtype(np, "float32", NORMAL, rng.standard_normal(300))
            for name in ("x", "w")
        }
        return Prepared(WORKLOAD, NORMAL, 1, inputs, given=frozenset(given))


@pytest.fixture
def make(make_spec: MakeSpec) -> Callable[..., Bench]:
    return lambda outputs=lambda x, w: x + w: Bench(make_spec(*ARGUMENTS), outputs)


def differing(before: Prepared, after: Prepared) -> dict[str, int]:
    return {name: int((before.inputs[name] != after.inputs[name]).sum()) for name in ("x", "w")}


def test_where_memory_is_short_no_two_references_are_held(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.twins = replace(bench.twins, frugal=True)
    before = bench.drawn()
    found = bench.twins.of(before, 2)
    assert found is not None
    twin, patch = found
    assert (before.reference, twin.reference is None) == (None, False)
    assert differing(before, twin) == {"x": 1, "w": 1}
    assert len(patch.changes) > 1


def test_one_number_of_each_input_is_another_where_that_shows(make: Callable[..., Bench]) -> None:
    bench = make()
    before = bench.drawn()
    kept = {name: values.copy() for name, values in before.inputs.items()}
    found = bench.twins.of(before, 2)
    assert found is not None
    twin, patch = found
    assert differing(before, twin) == {"x": 1, "w": 1}
    assert (twin.seed, twin.kind, twin.workload) == (1, NORMAL, WORKLOAD)
    assert len(patch.changes[0].offsets) == 2 * 4
    assert all(np.array_equal(before.inputs[name], kept[name]) for name in kept)


def test_the_patch_makes_one_of_the_other(make: Callable[..., Bench]) -> None:
    bench = make()
    before = bench.drawn()
    twin, patch = bench.twins.of(before, 2) or pytest.fail("there is a twin")
    arena = np.zeros(bench.layout.total_bytes, np.uint8)
    first = patch.changes[0]
    for values, wanted in ((first.before, before), (first.after, twin)):
        for slot in bench.layout.with_role("input"):
            piece = arena[slot.offset : slot.offset + slot.size_bytes]
            piece[...] = before.inputs[slot.name].view(np.uint8)
        arena[list(first.offsets)] = np.frombuffer(values, np.uint8)
        for slot in bench.layout.with_role("input"):
            piece = arena[slot.offset : slot.offset + slot.size_bytes]
            assert np.array_equal(piece.view("float32"), wanted.inputs[slot.name].view("float32"))


def test_more_are_changed_until_it_shows(make: Callable[..., Bench]) -> None:
    bench = make(lambda x, w: np.sign(x[:60].sum()) * w[0] + np.round(x.mean(), 1) * np.ones(300))
    before = bench.drawn("w")
    twin, _ = bench.twins.of(before, 2) or pytest.fail("there is a twin")
    changed = differing(before, twin)
    assert changed["w"] == 0, "single numbers of what the reference file draws do not change"
    assert changed["x"] > 1
    assert bench.referred > 2


def test_there_is_none_where_no_other_input_shows(make: Callable[..., Bench]) -> None:
    assert make(lambda x, w: np.ones(300)).twins.of(make().drawn(), 2) is None
    assert make().twins.of(make().drawn("x", "w"), 2) is None


def test_too_many_bytes_are_not_patched(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twins, "MOST_PATCHED", 7)
    bench = make()
    before = bench.drawn()
    twin, patch = bench.twins.of(before, 2) or pytest.fail("there is a twin")
    assert patch == UNCHANGED
    assert differing(before, twin) == {"x": 1, "w": 1}


def test_each_change_lies_somewhere_else_among_all_elements(make: Callable[..., Bench]) -> None:
    bench = make()
    before = bench.drawn()
    twin, patch = bench.twins.of(before, 2) or pytest.fail("there is a twin")
    assert len(patch.changes) == twins.CHANGES
    x = bench.layout.slot("x")
    places = {(one.offsets[0] - x.offset) // 4 for one in patch.changes}
    assert len(places) > 90, "of 300, drawn 128 times"
    assert max(places) > 280
    assert min(places) < 20
    for change in patch.changes[:9]:
        found = bench.twins.changed(before, change)
        assert differing(before, found) == {"x": 1, "w": 1}
        stored = before.inputs["x"].view(np.uint8)[(change.offsets[0] - x.offset) :][:4]
        assert change.before[:4] == bytes(stored)
    assert differing(bench.twins.changed(before, patch.changes[0]), twin) == {"x": 0, "w": 0}


def test_how_many_numbers_show_is_learnt_once_for_a_workload(make: Callable[..., Bench]) -> None:
    bench = make(lambda x, w: np.round(x.sum() / 30) * np.ones(300))
    _, first = bench.twins.of(bench.drawn(), 2) or pytest.fail("there is a twin")
    referred = bench.referred
    _, second = bench.twins.of(bench.drawn(), 3) or pytest.fail("there is a twin")
    assert bench.referred - referred < referred
    assert len(second.changes[0].offsets) >= len(first.changes[0].offsets) > 2 * 4


def test_floats_that_the_reference_drew_take_others_of_their_array(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    before = bench.drawn("x", "w")
    assert bench.twins.of(before, 2) is None
    twin, patch = bench.twins.of(before, 2, given_too=True) or pytest.fail("there is a twin")
    assert differing(before, twin) == {"x": 1, "w": 1}
    x = before.inputs["x"].view("float32")
    (changed,) = np.flatnonzero(twin.inputs["x"].view("float32") != x)
    assert twin.inputs["x"].view("float32")[changed] in x
    assert len(patch.changes) == twins.CHANGES


def test_where_only_most_of_the_numbers_would_show_few_references_are_asked(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twins, "MOST_TOUCHED", 8)
    bench = make(lambda x, w: np.round(x.mean() / 1000) * np.ones(300))
    assert bench.twins.of(bench.drawn(), 2) is None
    assert bench.referred == 1 + 2 * twins.SHOWN
