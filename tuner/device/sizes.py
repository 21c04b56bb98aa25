"""Other workloads than a file lists: smaller ones, and those near them where kernels break."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import prod

from tuner.model.errors import TunerError
from tuner.model.kernel import KernelSpec, Workload

LEVELS = tuple(8 * 4**power for power in range(9))
# About as many multiplications as a CPU does in a second with every access checked.
MOST_WORK = 1 << 21
MOST_BYTES = 8 << 20
# Edge cases are run many times, and sizes of a kilobyte show as much as those of a gigabyte.
MOST_NEAR_BYTES = 1 << 20
MOST_NEAR = 16
NEAR_S = 8.0
_SMALL_BYTES = 1 << 16
_FEW, _MORE, _FACTORS = (1, 3), 4, (1, 2, 4, 8, 16, 32, 64)
# A single result's rounding is now and then near 0 by chance, and no measure of a tolerance.
FEWEST_RESULTS = 64


def smaller_workloads(
    spec: KernelSpec,
    allows: Callable[[Mapping[str, int]], bool] = lambda _: True,
    levels: Sequence[int] = LEVELS,
    most_bytes: int = MOST_BYTES,
) -> Iterator[Workload]:
    """Yield workloads whose axes are cut down, first of a usual size, then smaller and larger ones.

    Powers of two stay such, others keep as much of the powers of two that divide them as fits, and
    axes that were large differ from one another. Those that `allows` refuses are left out.
    """
    if not spec.workloads:
        return
    whole = min(spec.workloads, key=spec.footprint_bytes)
    named = {name for argument in spec.arguments for size in argument.shape for name in size.names}
    cut: list[Workload] = []
    for level in levels:
        place, sizes = 0, whole.values
        for axis, size in whole.values.items():
            most = max(1, (level, level // 2, level * 2, level // 4)[place % 4])
            if axis in named and size > most:
                step = min(size & -size, most)
                sizes[axis] = most if step in (size, most) else most - step
                place += 1
        workload = Workload.of(sizes)
        if (
            place
            and workload not in cut
            and allows(sizes)
            and spec.footprint_bytes(workload) <= most_bytes
        ):
            cut.append(workload)
    work = (max(prod(w.values.values()), 4 * spec.footprint_bytes(w)) for w in cut[1:])
    first = sum(each <= MOST_WORK for each in work)
    for distance in range(len(cut)):
        for index in dict.fromkeys((first - distance, first + distance)):
            if 0 <= index < len(cut):
                yield cut[index]


def near_workloads(spec: KernelSpec) -> tuple[Workload, ...]:
    """Give small workloads, the smallest first, at which kernels break.

    One axis after another is 1, or 3, the others larger where the results would be too few to be
    judged; one more than it was, which no vector divides; and several times as large, which takes
    more blocks or steps. Nobody says that the baseline takes them: see `choose_near`.
    """
    smallest = min(spec.workloads, key=spec.footprint_bytes)
    smaller = () if spec.footprint_bytes(smallest) <= _SMALL_BYTES else smaller_workloads(spec)
    near: dict[Workload, None] = {}
    for whole in chain((smallest,), islice(smaller, 1)):
        sizes = whole.values
        larger = [{axis: factor * n for axis, n in sizes.items()} for factor in _FACTORS]
        tried = [[sizes]]
        for axis, size in sizes.items():
            tried += [[{**grown, axis: few} for grown in larger] for few in _FEW if few < size]
            tried += [[{**sizes, axis: size + 1}], [{**sizes, axis: _MORE * size}]]
        for choices in tried:
            fitting = (w for w in map(Workload.of, choices) if _is_near(spec, w, smallest))
            near |= dict.fromkeys(islice(fitting, 1))
    return tuple(sorted({*near} - {*spec.workloads}, key=spec.footprint_bytes)[:MOST_NEAR])


def choose_near(
    spec: KernelSpec, takes: Callable[[Workload], bool], limit_s: float = NEAR_S
) -> tuple[Workload, ...]:
    """Give the workloads near those of a file that asks for it on which `takes` says yes in time.

    The largest come first: of few results the baseline is measured on many draws.
    """
    ends_s = time.monotonic() + limit_s
    tried = reversed(near_workloads(spec) if spec.tries_near else ())
    return tuple(workload for workload in tried if time.monotonic() < ends_s and takes(workload))


def _is_near(spec: KernelSpec, workload: Workload, whole: Workload) -> bool:
    arrays = [a for a in spec.arguments if not (a.is_scalar or spec.is_sized(a))]
    try:
        extents = [n.integer(workload.values) for array in arrays for n in array.shape]
        counts = [
            [prod(n.integer(sizes.values) for n in array.shape) for sizes in (workload, whole)]
            for array in arrays
            if array.role != "input"
        ]
    except TunerError:  # no whole number, say
        return False
    enough = all(count >= min(FEWEST_RESULTS, usual) for count, usual in counts)
    positive = min(extents, default=1) > 0
    return enough and positive and spec.footprint_bytes(workload) <= MOST_NEAR_BYTES
