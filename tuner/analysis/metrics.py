"""What a profile says in numbers: the metrics that a plan may predict, and their counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

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

# Why a warp that could not issue waited; `not_selected` is left out of the shares: it could have.
WAITS = (
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "membar",
    "math_pipe_throttle",
    "mio_throttle",
    "lg_throttle",
    "tex_throttle",
    "wait",
    "no_instruction",
    "dispatch_stall",
    "branch_resolving",
    "drain",
    "sleeping",
)
# For data of global or local memory, for room in its queue, and for stores at the end.
MEMORY_WAITS = ("long_scoreboard", "lg_throttle", "drain")


def stall(reason: str) -> str:
    """Name the counter of warps that waited for a reason, in warps per issued instruction."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


# These exist on every chip with memory of its own from TU102 to GB207, by libnvperf_host of CUDA
# 13.5; Orin, Thor and Spark lack those of `dram`, which their counting leaves out.
EVERYWHERE: tuple[str, ...] = (
    DURATION,
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    DRAM_BYTES,
    "dram__bytes.sum.per_second",
    L2_HIT_RATE,
    "lts__t_sectors_op_read.sum",
    "l1tex__t_sector_hit_rate.pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__warps_eligible.avg.per_cycle_active",
    ISSUED,
    EXECUTED,
    "smsp__thread_inst_executed_per_inst_executed.ratio",
    stall("not_selected"),
    *map(stall, WAITS),
    *CONFLICTS,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    SECTORS_PER_LOAD,
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "smsp__inst_executed_op_local_ld.sum",
    "smsp__inst_executed_op_local_st.sum",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.sum",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_lsu.sum",
    "sm__inst_executed_pipe_xu.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum",
)
# Waits for a warpgroup's matrix instructions, which only this chip has.
GH100_ONLY: tuple[str, ...] = (stall("gmma"),)


def counters_for(compute_capability: tuple[int, int]) -> tuple[str, ...]:
    """List the counters to ask for; one that a chip lacks would fail all of them."""
    return EVERYWHERE + (GH100_ONLY if compute_capability == (9, 0) else ())


def metrics_of(profile: Profile) -> dict[str, float]:
    """Compute those of `base.METRICS` that the profile knows; units are as stated there."""
    subject = profile.subject
    resources = subject.resources
    found: dict[str, float] = {}
    if resources.registers is not None:
        found["registers"] = resources.registers
        found["spill_bytes"] = resources.spill_store_bytes + resources.spill_load_bytes
    if subject.occupancy is not None:
        found["occupancy"] = subject.occupancy.share
    dynamic = (launch.shared_bytes for launch in subject.program.launches[:1])
    found["shared_bytes"] = resources.static_shared_bytes + sum(dynamic)
    if profile.codes:
        found["instructions"] = sum(code.instructions for code in profile.codes)
    return found | _per_call(profile) | _of_the_longest(profile.counters)


def _per_call(profile: Profile) -> dict[str, float]:
    """Sum over the launches of a call, where each of them was counted."""
    launches = profile.launch_counters or (profile.counters,)
    names: dict[str, tuple[str, ...]] = {
        "dram_bytes": (DRAM_BYTES,),
        "executed_instructions": (EXECUTED,),
        "bank_conflicts": CONFLICTS,
    }
    found = {}
    for metric, counters in names.items():
        values = [[launch.get(name) for name in counters] for launch in launches]
        known = [value for value in chain.from_iterable(values) if value is not None]
        if len(known) == len(launches) * len(counters):
            found[metric] = sum(known)
    return found


def _of_the_longest(counters: Mapping[str, float]) -> dict[str, float]:
    found = {}
    if L2_HIT_RATE in counters:
        found["l2_hit_share"] = counters[L2_HIT_RATE] / 100
    if SECTORS_PER_LOAD in counters:
        found["sectors_per_request"] = counters[SECTORS_PER_LOAD]
    if ISSUED in counters:
        found["issue_share"] = counters[ISSUED] / 100
    stalled = _stalled(counters, (*WAITS, "gmma"))
    if stalled > 0:
        found["barrier_stall_share"] = _stalled(counters, ["barrier"]) / stalled
        found["memory_stall_share"] = _stalled(counters, MEMORY_WAITS) / stalled
    return found


def _stalled(counters: Mapping[str, float], reasons: Iterable[str]) -> float:
    return sum(counters.get(stall(reason), 0.0) for reason in reasons)
