"""Rows of one problem that every size and config gets, among others that are drawn for each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

from tuner.device.encoding import Array
from tuner.device.inputs import Prepared
from tuner.device.layout import lay_out
from tuner.device.verify.answers import Answers
from tuner.device.verify.bits import DIGEST_DIGITS
from tuner.model.kernel import Invariance, KernelSpec, Workload

# Each is the first row of a turn, the last of another, and lies between others in the rest.
PROBES = 4


def place_probes(size: int, turn: int, seed: int) -> dict[int, int]:
    """Say which probes stand in which rows in a turn; of a few rows, there is room for as many."""
    chance = random.Random(f"{size} {turn} {seed}")  # noqa: S311 - to be drawn again elsewhere
    between = chance.sample(range(1, size - 1), max(0, min(size, PROBES) - 2))
    places = dict.fromkeys((0, size - 1, *between))
    return {(turn + n) % PROBES: place for n, place in enumerate(places)}


def draw_probes(
    answers: Answers, spec: KernelSpec, workload: Workload, kind: str, seed: int, others: Prepared
) -> Prepared:
    """Take what rows share, and the probes, from one draw for all sizes, `others` from their own.

    The draw has a size that the file lists, where one has room: `inputs()` may refuse others.
    """
    assert spec.invariant is not None
    rows = spec.invariant
    listed = (*spec.workloads, *spec.edge_cases)
    sizes = [one.values[rows.axis] for one in listed if one.values[rows.axis] >= PROBES]
    few = rows.sized(workload, min(sizes, default=PROBES))
    drawn = answers.draw(few, kind, seed, lay_out(spec, few.values)).inputs
    found = {name: rows.dimension(spec.argument(name)) for name in drawn}
    shared = {name: drawn[name] for name, dimension in found.items() if dimension is None}
    probes = {name: drawn[name] for name in drawn if name not in shared}
    return replace(others, seed=seed, inputs=others.inputs | shared, probes=probes)


def placed(prepared: Prepared, spec: KernelSpec, places: Mapping[int, int]) -> Prepared:
    """Put probes into their rows."""
    assert spec.invariant is not None
    inputs = dict(prepared.inputs)
    for name, drawn in prepared.probes.items():
        inputs[name] = inputs[name].copy()
        for probe, place in places.items():
            row_of(spec.invariant, spec, name, inputs[name], place)[...] = row_of(
                spec.invariant, spec, name, drawn, probe
            )
    return replace(prepared, inputs=inputs)


def row_of(rows: Invariance, spec: KernelSpec, name: str, values: Array, place: int) -> Array:
    """View one row of an array, in the dimension that counts them."""
    dimension = rows.dimension(spec.argument(name))
    assert dimension is not None
    return values[(*(slice(None),) * dimension, slice(place, place + 1))]


def join_digests(rows: Mapping[int, str]) -> str:
    """Make one digest of those of all probes."""
    told = "".join(rows[probe] for probe in sorted(rows))
    return sha256(told.encode()).hexdigest()[:DIGEST_DIGITS]
