"""Smaller workloads than a file lists, for what takes too long or too much memory on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

from tuner.model.kernel import KernelSpec, Workload

LEVELS = tuple(8 * 4**power for power in range(9))
# About as many multiplications as a CPU does in a second with every access checked.
MOST_WORK = 1 << 21
MOST_BYTES = 8 << 20


def smaller_workloads(
    spec: KernelSpec, allows: Callable[[Mapping[str, int]], bool] = lambda _: True
) -> Iterator[Workload]:
    """Yield workloads whose axes are cut down, first of a usual size, then smaller and larger ones.

    Powers of two stay such, others keep as much of the powers of two that divide them as fits, and
    axes that were large differ from one another. Those that `allows` refuses are left out.
    """
    if not spec.workloads:
        return
    whole = min(spec.workloads, key=spec.footprint_bytes)
    named = {name for one in spec.arguments for size in one.shape for name in size.names}
    cut: list[Workload] = []
    for level in LEVELS:
        place, sizes = 0, whole.values
        for axis, size in whole.values.items():
            most = (level, level // 2, level * 2, level // 4)[place % 4]
            if axis in named and size > most:
                sizes[axis] = _cut(size, most)
                place += 1
        one = Workload.of(sizes)
        if place and one not in cut and allows(sizes) and spec.footprint_bytes(one) <= MOST_BYTES:
            cut.append(one)
    work = (max(prod(one.values.values()), 4 * spec.footprint_bytes(one)) for one in cut[1:])
    first = sum(each <= MOST_WORK for each in work)
    for distance in range(len(cut)):
        for index in dict.fromkeys((first - distance, first + distance)):
            if 0 <= index < len(cut):
                yield cut[index]


def _cut(size: int, most: int) -> int:
    step = min(size & -size, most)
    return most if step in (size, most) else most - step
