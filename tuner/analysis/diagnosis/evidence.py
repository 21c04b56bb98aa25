"""Facts of a profile that several diagnoses use; None where a fact is not known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tuner.analysis.base import Profile
from tuner.analysis.metrics import WAITS, stall

ACTIVE_WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
ACTIVE_THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
BYTES_PER_SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
L2_READS = "lts__t_sectors_op_read.sum"
MEMORY_THROUGHPUT = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
SM_THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"

SECTOR_BYTES = 32
THREADS_PER_WARP = 32


@dataclass(frozen=True, slots=True)
class Waves:
    """How the blocks of the first launch fill the multiprocessors, `resident` on each at a time."""

    blocks: int
    multiprocessors: int
    resident: int

    @property
    def count(self) -> float:
        """How often all multiprocessors are filled, the last time perhaps in part."""
        return self.blocks / (self.resident * self.multiprocessors)

    @property
    def lost(self) -> float:
        """The share of time that the part-filled last wave wastes if all blocks take equally long.

        0 where there is only one wave: then no block waits for another.
        """
        return 1.0 - self.count / math.ceil(self.count) if self.count > 1.0 else 0.0

    @property
    def idle(self) -> int:
        """Multiprocessors that get no block at all."""
        return max(self.multiprocessors - self.blocks, 0)


def waves(profile: Profile) -> Waves | None:
    """Count the waves of the first launch; None without launches or occupancy."""
    occupancy, launches = profile.subject.occupancy, profile.subject.program.launches
    if occupancy is None or occupancy.blocks < 1 or not launches:
        return None
    return Waves(math.prod(launches[0].grid), profile.device.multiprocessors, occupancy.blocks)


def counter(profile: Profile, name: str) -> float | None:
    """Look up a counter under Nsight Compute's name, in its base unit."""
    value = profile.counters.get(name)
    return value if value is not None and math.isfinite(value) else None


def summed(profile: Profile, name: str) -> float | None:
    """Add a counter up over all launches of a call; None where one of them lacks it."""
    launches = profile.launch_counters or (profile.counters,)
    values = [launch.get(name, math.nan) for launch in launches]
    return sum(values) if all(math.isfinite(value) for value in values) else None


def stalls(profile: Profile) -> Mapping[str, float]:
    """Compute the share of each reason in the cycles that warps were stalled; empty if unknown."""
    cycles = {reason: counter(profile, stall(reason)) for reason in (*WAITS, "gmma")}
    stalled = {reason: value for reason, value in cycles.items() if value is not None}
    total = sum(stalled.values())
    return {name: value / total for name, value in stalled.items()} if total > 0.0 else {}


def innermost(profile: Profile) -> tuple[Mapping[str, int], str]:
    """Sum the instructions of the innermost loops, or of the whole code where it has none.

    Returns them by class, and which of both they are in words.
    """
    loops = _added(code.loop_mix for code in profile.codes)
    return (loops, "the innermost loops") if loops else (whole(profile), "the code")


def whole(profile: Profile) -> Mapping[str, int]:
    """Sum the instructions of the code by class."""
    return _added(code.mix for code in profile.codes)


def _added(mixes: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for mix in mixes:
        total.update(mix)
    return +total


def at(line: int | None) -> str:
    """Say which line of the template is meant: `, line 31`, or nothing."""
    return "" if line is None else f", line {line}"
