"""Rows of one problem that every size and config gets, among others that are drawn for each."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from tuner.device.encoding import Array
from tuner.device.inputs import Prepared
from tuner.device.layout import lay_out
from tuner.device.verify.answers import Answers
from tuner.model.kernel import Invariance, KernelSpec, Workload

# So many rows are the same for all, in at least so many turns. Of an output in 16 bits few elements
# show another order: of an rmsnorm's, which scales a row by one number, one in 30,000.
PROBES, TURNS = 64, 4


def count_probes(rows: Invariance, spec: KernelSpec) -> int:
    """Say how many rows are probes: no more than the largest size that the file lists has."""
    sizes = [one.values[rows.axis] for one in (*spec.workloads, *spec.edge_cases)]
    return min(PROBES, max(sizes, default=PROBES))


def count_turns(rows: Invariance, spec: KernelSpec, workload: Workload) -> int:
    """Say in how many turns every probe has had two rows, or one where it is alone."""
    size = workload.values[rows.axis]
    turns = -(-count_probes(rows, spec) // size)
    return turns if size == 1 else max(TURNS, 2 * turns)


def draw_sizes(known: Collection[int], chance: random.Random) -> list[int]:
    """Draw a size between powers of two that none is known between, and one above the largest."""
    most = max(known)
    octaves = [(1 << n, (2 << n) - 1) for n in range(most.bit_length() - 1)]
    empty = (one for one in octaves if not any(one[0] <= size <= one[1] for size in known))
    return [chance.randint(*one) for one in (*empty, (most + 1, 2 * most))]


def place_probes(size: int, turn: int, probes: int, seed: int) -> dict[int, int]:
    """Say which probes stand in which rows in a turn: the first, the last, and any between."""
    room = min(size, probes)
    turns = -(-probes // room)
    order = random.Random(f"{size} {turn // turns} {seed}").sample(range(probes), probes)  # noqa: S311
    chance = random.Random(f"{size} {turn} {seed}")  # noqa: S311 - to be drawn again elsewhere
    between = chance.sample(range(1, size - 1), max(0, room - 2))
    places = dict.fromkeys((0, size - 1, *between))
    first = turn % turns * room
    return {order[(first + n) % probes]: place for n, place in enumerate(places)}


def draw_probes(
    xp: Any, answers: Answers, spec: KernelSpec, others: Prepared, kind: str, seed: int
) -> Prepared:
    """Take what rows share, and the probes, from one draw for all sizes, `others` from their own.

    Their kinds may differ. The draw has a size that the file lists: `inputs()` may refuse others.
    """
    assert spec.invariant is not None
    rows, probes = spec.invariant, count_probes(spec.invariant, spec)
    listed = {one.values[rows.axis] for one in (*spec.workloads, *spec.edge_cases)} or {probes}
    few = rows.sized(others.workload, min(n for n in listed if n >= probes))
    drawn = answers.draw(few, kind, seed, lay_out(spec, few.values)).inputs
    shared = {n: a for n, a in drawn.items() if rows.dimension(spec.argument(n)) is None}
    of_rows = {n: rows_of(xp, spec, few, n, a) for n, a in drawn.items() if n not in shared}
    own = {n: a[:probes].copy() for n, a in of_rows.items()}
    return replace(others, kind=kind, seed=seed, inputs=others.inputs | shared, probes=own)


def placed(xp: Any, prepared: Prepared, spec: KernelSpec, places: Mapping[int, int]) -> Prepared:
    """Put probes into their rows."""
    inputs, (probes, rows) = (
        dict(prepared.inputs),
        map(xp.asarray, zip(*places.items(), strict=True)),
    )
    for name, drawn in prepared.probes.items():
        inputs[name] = inputs[name].copy()
        rows_of(xp, spec, prepared.workload, name, inputs[name])[rows] = drawn[probes]
    return replace(prepared, inputs=inputs)


def rows_of(xp: Any, spec: KernelSpec, workload: Workload, name: str, values: Array) -> Array:
    """View an array by its rows, as many as the workload has: they are its first dimension."""
    assert spec.invariant is not None
    rows, argument = spec.invariant, spec.argument(name)
    counting, count = rows.dimension(argument), workload.values[rows.axis]
    assert counting is not None
    leading = xp.moveaxis(values, counting, 0)
    if rows.pads(argument.shape[counting]):
        return leading[:count]
    return leading.reshape(count, len(leading) // count, *leading.shape[1:])
