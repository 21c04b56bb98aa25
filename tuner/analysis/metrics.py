"""Numbers of a profile: its counters, the metrics that a plan may predict, and sums of both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files

from tuner.analysis.base import Profile

DURATION = "gpu__time_duration.sum"  # nanoseconds
DRAM_BYTES = "dram__bytes.sum"
L2_HIT_RATE = "lts__t_sector_hit_rate.pct"
EXECUTED = "smsp__inst_executed.sum"
SECTORS_PER_LOAD = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
CONFLICTS = tuple(
    f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{kind}.sum" for kind in ("ld", "st")
)
ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
ACTIVE_WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
ACTIVE_THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
BYTES_PER_SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
L2_READS = "lts__t_sectors_op_read.sum"
MEMORY_THROUGHPUT = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
SM_THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"

SECTOR_BYTES = 32
THREADS_PER_WARP = 32

# Why a warp that could not issue waited; `not_selected` is left out of the shares: it could have.
WAITS = (
    *("long_scoreboard", "short_scoreboard", "barrier", "membar", "math_pipe_throttle"),
    *("mio_throttle", "lg_throttle", "tex_throttle", "wait", "no_instruction"),
    *("dispatch_stall", "branch_resolving", "drain", "sleeping"),
)
# For data of global or local memory, for room in its queue, and for stores at the end.
MEMORY_WAITS = ("long_scoreboard", "lg_throttle", "drain")


def stall(reason: str) -> str:
    """Name the counter of warps that waited for a reason, in warps per issued instruction."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


_LISTED = files("tuner.analysis").joinpath("counters.txt").read_text("utf-8").splitlines()
EVERYWHERE = tuple(name for name in _LISTED if not name.startswith("#"))
# Waits for a warpgroup's matrix instructions, which only this chip has.
GH100_ONLY: tuple[str, ...] = (stall("gmma"),)


def counters_for(compute_capability: tuple[int, int]) -> tuple[str, ...]:
    """List the counters to ask for; one that a chip lacks would fail all of them."""
    return EVERYWHERE + (GH100_ONLY if compute_capability == (9, 0) else ())


def metrics_of(profile: Profile) -> dict[str, float]:
    """Compute those of `base.METRICS` that the profile knows; units are as stated there."""
    subject = profile.subject
    resources = subject.resources
    metrics: dict[str, float] = {}
    if resources.registers is not None:
        metrics["registers"] = resources.registers
        metrics["spill_bytes"] = resources.spill_bytes
    if subject.occupancy is not None:
        metrics["occupancy"] = subject.occupancy.share
    metrics["shared_bytes"] = resources.static_shared_bytes + subject.launch.shared_bytes
    if profile.codes:
        metrics["instructions"] = sum(code.instructions for code in profile.codes)
    shares = stalls(profile)
    l2_hit_pct, issued_pct = counter(profile, L2_HIT_RATE), counter(profile, ISSUED)
    loads, stores = (sum_counter(profile, name) for name in CONFLICTS)
    waiting = sum(shares.get(name, 0.0) for name in MEMORY_WAITS)
    counted = {
        "dram_bytes": sum_counter(profile, DRAM_BYTES),
        "executed_instructions": sum_counter(profile, EXECUTED),
        "bank_conflicts": None if loads is None or stores is None else loads + stores,
        "l2_hit_share": None if l2_hit_pct is None else l2_hit_pct / 100,
        "sectors_per_request": counter(profile, SECTORS_PER_LOAD),
        "issue_share": None if issued_pct is None else issued_pct / 100,
        "barrier_stall_share": shares.get("barrier", 0.0) if shares else None,
        "memory_stall_share": waiting if shares else None,
    }
    return metrics | {name: value for name, value in counted.items() if value is not None}


def counter(profile: Profile, name: str) -> float | None:
    """Look up a counter under Nsight Compute's name, in its base unit."""
    value = profile.counters.get(name)
    return value if value is not None and math.isfinite(value) else None


def sum_counter(profile: Profile, name: str) -> float | None:
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
    loops = _add_mixes([code.loop_mix for code in profile.codes])
    return (loops, "the innermost loops") if loops else (whole(profile), "the code")


def executed_mix(profile: Profile) -> Mapping[str, int]:
    """Sum what the warps of a call executed, by class; empty where it was not counted."""
    return _add_mixes([code.executed for code in profile.codes])


def whole(profile: Profile) -> Mapping[str, int]:
    return _add_mixes([code.mix for code in profile.codes])


def _add_mixes(mixes: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    return +sum(map(Counter, mixes), Counter[str]())


def at(line: int | None) -> str:
    """Say which line of the template is meant: `, line 31`, or nothing."""
    return "" if line is None else f", line {line}"
