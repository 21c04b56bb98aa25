"""Judging rehearsed on small problems: CuPy compiles each operation when it first meets it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tuner.device.inputs import fills_for
from tuner.device.judge import Judge, cuda_judge
from tuner.device.layout import lay_out
from tuner.device.verify import ZEROS_SAMPLE
from tuner.kernel import KernelSpec, Workload

# More threads than this wait for the GPU's lock rather than for compilers.
MOST_THREADS = 16


def rehearsed_judge(ordinal: int, spec: KernelSpec, operators: Mapping[str, str]) -> Judge:
    """Make a judge on a GPU for which CuPy has compiled what it takes, on all cores.

    One after the other, over a hundred compilations of 0.3 s would be most of a first run's time;
    later ones find them in CuPy's cache.
    """
    cases = [(workload, fill) for workload in _unlike(spec) for fill in fills_for(spec)]
    threads = min(len(cases), len(os.sched_getaffinity(0)), MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        for workload, fill in cases:
            pool.submit(_rehearse, ordinal, spec, operators, workload, fill)
    return cuda_judge(ordinal, spec, operators)


def _unlike(spec: KernelSpec) -> list[Workload]:
    """Choose the smallest workload of each kind for which CuPy makes other code.

    It drops axes of length 1, and what is sampled from large arrays lies apart in memory.
    """
    chosen: dict[tuple[bool, ...], Workload] = {}
    for workload in sorted(spec.workloads, key=spec.footprint_bytes):
        names = workload.values
        sizes = [a.size_bytes(names) for a in spec.arguments if not a.is_scalar]
        large = max(sizes, default=0) > ZEROS_SAMPLE
        chosen.setdefault((large, *(value == 1 for value in names.values())), workload)
    return list(chosen.values())


def _rehearse(
    ordinal: int, spec: KernelSpec, operators: Mapping[str, str], workload: Workload, fill: str
) -> None:
    # Whatever is wrong shows again when it counts, and is told there.
    with suppress(Exception):
        judge = cuda_judge(ordinal, spec, operators)
        judge.rehearse(workload, lay_out(spec, workload.values), fill)
