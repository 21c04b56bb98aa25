"""Bits that have to repeat: digests of outputs, and rows that every size and config gets."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tuner.device.encoding import Array
from tuner.device.inputs import Prepared
from tuner.device.layout import lay_out
from tuner.device.verify.answers import Answers
from tuner.model.kernel import Invariance, KernelSpec, Workload

# Ten million configs would have to be tried before two digests are likely to be equal by chance.
DIGEST_DIGITS = 16
CHUNK_WORDS = 1 << 20
_BLOCKS, _THREADS = 1056, 256
# Each word is mixed with its place, and all are added: in any order, so that a GPU can. The mixing
# is that of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SOURCE = f"""
extern "C" __global__ void add_mixed(const WORD* words, long long count, unsigned long long* sum) {{
  unsigned long long found = 0;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
       i += stride) {{
    unsigned long long word = words[i] + (i + 1) * {_STEP:#x}ull;
    word = (word ^ word >> 30) * {_FIRST:#x}ull;
    word = (word ^ word >> 27) * {_SECOND:#x}ull;
    found += word ^ word >> 31;
  }}
  atomicAdd(sum, found);
}}
"""
# So many rows are the same for all, in at least so many turns. Of an output in 16 bits few elements
# show another order: of an rmsnorm's, which scales a row by one number, one in 30,000.
PROBES, TURNS = 64, 4


def digest(xp: Any, arrays: Iterable[Array]) -> str:
    """Digest the bytes of arrays in NumPy or CuPy, which give the same; "" for no arrays.

    -0 is another number than 0 here, and so are NaN with other bits. It is no protection against
    someone who looks for two outputs with one digest.
    """
    sums = []
    for array in arrays:
        raw = array.reshape(-1)
        # As wide as they come.
        words = raw.view("u8" if raw.nbytes % 8 == 0 else "u1")
        sums.append(_sum(words) if xp is np else _sum_on_gpu(words))
    return join_digests(sums) if sums else ""


def digest_rows(xp: Any, arrays: Iterable[Array]) -> list[str]:
    """Digest the rows of arrays that have them in their first dimension, as many each."""
    sums = []
    for array in arrays:
        count, raw = len(array), xp.ascontiguousarray(array).reshape(-1)
        words = raw.view("u8" if raw.nbytes // count % 8 == 0 else "u1").reshape(count, -1)
        sums.append(_mix(xp, words, 0).sum(axis=1, dtype=xp.uint64).tolist())
    return [join_digests(of) for of in zip(*sums, strict=True)]


def join_digests(digests: Iterable[object]) -> str:
    return hashlib.sha256(repr([*digests]).encode()).hexdigest()[:DIGEST_DIGITS]


def _sum(words: Array) -> int:
    total = 0
    for start in range(0, words.size, CHUNK_WORDS):
        mixed = _mix(np, words[start : start + CHUNK_WORDS], start)
        total += int(mixed.sum(dtype=np.uint64))
    return total % (1 << 64)


def _mix(xp: Any, words: Array, start: int) -> Array:
    places = xp.arange(start + 1, start + 1 + words.shape[-1], dtype=xp.uint64)
    mixed = words.astype(xp.uint64) + places * np.uint64(_STEP)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(_FIRST)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(_SECOND)
    return mixed ^ mixed >> np.uint64(31)


def _sum_on_gpu(words: Array) -> int:
    import cupy

    total = cupy.zeros(1, cupy.uint64)
    kernel = _adder("unsigned char" if words.itemsize == 1 else "unsigned long long")
    kernel((_BLOCKS,), (_THREADS,), (words, np.int64(words.size), total))
    return int(total.get()[0])


@cache
def _adder(word: str) -> Any:
    import cupy

    return cupy.RawKernel(f"#define WORD {word}\n{_SOURCE}", "add_mixed")


def count_probes(rows: Invariance, spec: KernelSpec) -> int:
    """Say how many rows are probes: no more than the largest size that the file lists has."""
    sizes = [workload.values[rows.axis] for workload in (*spec.workloads, *spec.edge_cases)]
    return min(PROBES, max(sizes, default=PROBES))


def count_turns(rows: Invariance, spec: KernelSpec, workload: Workload) -> int:
    """Say in how many turns every probe has had two rows, or one where it is alone."""
    size = workload.values[rows.axis]
    turns = -(-count_probes(rows, spec) // size)
    return turns if size == 1 else max(TURNS, 2 * turns)


def draw_sizes(known: Collection[int], chance: random.Random) -> list[int]:
    """Draw a size between powers of two that none is known between, and one above the largest."""
    most = max(known)
    between = [((1 << n) + 1, (2 << n) - 1) for n in range(1, most.bit_length() - 1)]
    empty = (
        bounds for bounds in between if not any(bounds[0] <= size <= bounds[1] for size in known)
    )
    return [chance.randint(*bounds) for bounds in (*empty, (most + 1, 2 * most))]


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
    listed = {workload.values[rows.axis] for workload in (*spec.workloads, *spec.edge_cases)} or {
        probes
    }
    few = rows.sized(others.workload, min(n for n in listed if n >= probes))
    drawn = answers.draw(few, kind, seed, lay_out(spec, few.values)).inputs
    shared = {n: a for n, a in drawn.items() if rows.dimension(spec.argument(n)) is None}
    of_rows = {n: rows_of(xp, spec, few, n, a) for n, a in drawn.items() if n not in shared}
    own = {n: a[:probes].copy() for n, a in of_rows.items()}
    return replace(others, kind=kind, seed=seed, inputs=others.inputs | shared, probes=own)


def place_rows(
    xp: Any, prepared: Prepared, spec: KernelSpec, places: Mapping[int, int]
) -> Prepared:
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
