"""Memory is read or written more than the operator needs."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import L2_READS, SECTOR_BYTES, at, summed
from tuner.profiler.metrics import DRAM_BYTES

# As KernelPro's for sectors (arXiv 2606.26453): 1.2 times the least.
MOST_DRAM = 1.2
# Ours: reading everything once more from the L2 costs less than from memory.
MOST_L2 = 2.0
# Below that code, arguments and what else a launch fetches blur the ratio.
FEWEST_BYTES = 1 << 20


def find(profile: Profile) -> Finding | None:
    """Compare the bytes that moved with the fewest that the operator declares."""
    least = profile.subject.traffic_bytes
    moved = summed(profile, DRAM_BYTES)
    if moved is not None and moved - MOST_DRAM * least >= FEWEST_BYTES:
        return _finding(profile, "between L2 and memory", moved, 0.8)
    sectors = summed(profile, L2_READS)
    read = None if sectors is None else sectors * SECTOR_BYTES
    if read is not None and read - MOST_L2 * least >= FEWEST_BYTES:
        return _finding(profile, "read from the L2", read, 0.4)
    return None


def _finding(profile: Profile, what: str, moved: float, weight: float) -> Finding:
    least = profile.subject.traffic_bytes
    line = profile.line_of("global_load")
    return Finding(
        topic="redundant_traffic",
        text=f"{moved / 1e6:.1f} MB {what} (counters{at(line)}) where the operator needs "
        f"{least / 1e6:.1f} MB.",
        advice="Read and write each byte once: keep what is used again in registers or shared "
        "memory, merge passes over the same data, and let blocks share what they all read.",
        value=round(moved / 1e6, 1),
        unit="MB",
        weight=weight * (1.0 - least / moved),
        line=line,
    )


RULE = Rule("redundant_traffic", frozenset({Kind.MEMORY, Kind.LATENCY, Kind.TAIL}), find)
