"""Probes: the same rows of a problem at every size, in places of their own, among random others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tuner.device.inputs import NORMAL, same_seed
from tuner.device.layout import lay_out
from tuner.device.verify.bits import (
    PROBES,
    TURNS,
    count_probes,
    count_turns,
    join_digests,
    place_probes,
)
from tuner.device.verify.verifier import HostMemory, Verifier
from tuner.model.kernel import Invariance, KernelSpec, Workload

MakeSpec = Callable[..., KernelSpec]
ARGUMENTS = (
    ("y", "float32", ("T",), "output"),
    ("total", "float32", ("4", "T"), "output"),
    ("x", "float32", ("T", "4"), "input"),
    ("w", "float32", ("4",), "input"),
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 33, 2048])
def test_each_probe_has_a_row_the_first_and_last_rows_have_some_and_turns_differ(size: int) -> None:
    probes = 16
    turns = [place_probes(size, n, probes, 7) for n in range(max(TURNS, -(-probes // size)))]
    assert {probe for places in turns for probe in places} == {*range(probes)}
    for places in turns:
        assert len(places) == len({*places.values()}) == min(size, probes)
        assert {0, size - 1} <= {*places.values()} <= {*range(size)}
    assert len({tuple(places.items()) for places in turns}) == len(turns) >= TURNS
    assert turns == [place_probes(size, n, probes, 7) for n in range(len(turns))]
    assert turns != [place_probes(size, n, probes, 8) for n in range(len(turns))]


def test_there_are_no_more_probes_than_the_file_lists_rows(make_spec: MakeSpec) -> None:
    rows, few, many = Invariance("T", ("y",), 1), Workload.of({"T": 8}), Workload.of({"T": 300})
    spec = replace(make_spec(*ARGUMENTS), invariant=rows, tuned=(few,))
    assert count_probes(rows, spec) == count_turns(rows, spec, Workload.of({"T": 1})) == 8
    spec = replace(spec, edge_cases=(many,))
    assert count_probes(rows, spec) == PROBES
    assert [count_turns(rows, spec, one) for one in (few, many)] == [PROBES // 4, TURNS]


class Rows:
    """A verifier of rows, on workloads of any size."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = replace(spec, invariant=Invariance("T", ("y", "total"), 1))
        self.memory = HostMemory(cache_bytes=1 << 20)
        self.verifier = Verifier(self.memory, self.spec, {})

    def stored(self, name: str) -> np.ndarray:
        slot = self.layout.slot(name)
        piece = self.memory.data[slot.offset : slot.offset + slot.size_bytes]
        return piece.view(np.float32).reshape(slot.shape)

    def told(
        self, size: int, kernel: Callable[[Rows], None], seed: int | None = None
    ) -> list[dict[int, str]]:
        workload = Workload.of({"T": size})
        self.layout = lay_out(self.spec, workload.values)
        self.verifier.open_arena(workload, self.layout)
        turns = []
        assert self.spec.invariant is not None
        for turn in range(count_turns(self.spec.invariant, self.spec, workload)):
            self.verifier.prepare_same(workload, NORMAL, seed, turn)
            kernel(self)
            turns.append(dict(self.verifier.digest()))
        return turns


def multiply(rows: Rows) -> None:
    rows.stored("y")[...] = (rows.stored("x") * rows.stored("w")).sum(axis=1, dtype=np.float32)
    rows.stored("total")[...] = rows.stored("x").T


def look_at_the_next(rows: Rows) -> None:
    multiply(rows)
    rows.stored("y")[...] += np.roll(rows.stored("x")[:, 0], 1)


def joined(turns: list[dict[int, str]]) -> str:
    told: dict[int, str] = {}
    for turn in turns:
        for probe, bits in turn.items():
            assert told.setdefault(probe, bits) == bits
    return join_digests(told[probe] for probe in sorted(told))


def test_rows_have_the_same_bits_at_all_sizes_where_they_stand_alone(make_spec: MakeSpec) -> None:
    rows = Rows(make_spec(*ARGUMENTS))
    digests = {joined(rows.told(size, multiply)) for size in (1, 2, 7, 8, 33, 300)}
    assert len(digests) == 1
    assert joined(rows.told(8, multiply, seed=5)) not in digests
    assert joined(rows.told(8, multiply, seed=5)) == joined(rows.told(9, multiply, seed=5))


def test_a_row_that_depends_on_its_neighbour_has_other_bits_in_another_turn(
    make_spec: MakeSpec,
) -> None:
    rows = Rows(make_spec(*ARGUMENTS))
    with pytest.raises(AssertionError):
        joined(rows.told(8, look_at_the_next))


def test_rows_of_several_elements_and_of_padded_arrays_are_found(make_spec: MakeSpec) -> None:
    y, (_, dtype, _, role), *inputs = ARGUMENTS
    arguments = (y, ("total", dtype, ("4", "4 * ceil_div(T, 4)"), role), *inputs)
    flat = (*arguments[:2], ("x", dtype, ("4 * T",), "input"), arguments[3])

    def multiply(rows: Rows) -> None:
        x = rows.stored("x").reshape(-1, 4)
        rows.stored("y")[...] = (x * rows.stored("w")).sum(axis=1, dtype=np.float32)
        rows.stored("total")[:, : len(x)] = x.T

    for found in (arguments, flat):
        rows = Rows(make_spec(*found))
        assert len({joined(rows.told(size, multiply)) for size in (1, 2, 7, 8, 33)}) == 1


def test_a_changed_bit_of_one_probe_in_either_output_is_seen(make_spec: MakeSpec) -> None:
    rows = Rows(make_spec(*ARGUMENTS))
    right = joined(rows.told(8, multiply))
    for name in ("y", "total"):

        def off(rows: Rows, name: str = name) -> None:
            multiply(rows)
            flat = rows.stored(name)
            flat[...] = np.nextafter(flat, np.float32(np.inf))

        assert joined(rows.told(8, off)) != right


def test_weights_are_shared_and_neighbours_are_not(make_spec: MakeSpec) -> None:
    rows, seen = Rows(make_spec(*ARGUMENTS)), []

    def keep(rows: Rows) -> None:
        multiply(rows)
        seen.append((rows.stored("w").copy(), rows.stored("x").copy()))

    rows.told(90, keep)
    rows.told(80, keep)
    assert all(np.array_equal(a[0], b[0]) for a, b in pairwise(seen))
    first, last = seen[0][1], seen[-1][1]
    places = place_probes(90, 0, PROBES, same_seed(Workload(()))).values()
    others = [row for n, row in enumerate(first) if n not in places]
    assert not any((row == last).all(axis=1).any() for row in others)


def test_probes_are_drawn_at_a_size_that_the_file_lists(make_spec: MakeSpec) -> None:
    reference = """
def inputs(xp, rng, axes, fill):
    assert axes["T"] in (8, 12), axes
    return {}

def reference(xp, inputs, axes):
    return {}
"""
    spec = make_spec(*ARGUMENTS, reference=reference)
    rows = Rows(replace(spec, tuned=(Workload.of({"T": 12}), Workload.of({"T": 8}))))
    assert joined(rows.told(8, multiply)) == joined(rows.told(12, multiply))
