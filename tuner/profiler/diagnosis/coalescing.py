"""Warps touch more sectors of memory than the bytes they load would fill."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import (
    BYTES_PER_SECTOR,
    SECTOR_BYTES,
    THREADS_PER_WARP,
    at,
    counter,
)
from tuner.profiler.metrics import SECTORS_PER_LOAD

# KernelPro, arXiv 2606.26453: 1.2 times the ideal.
MOST = 1.2
_ADVICE = (
    "Let neighbouring threads load neighbouring addresses: index by threadIdx.x along the "
    "contiguous axis, aligned to the width of the load; or stage the tile through shared memory."
)


def find(profile: Profile) -> Finding | None:
    """Fire on counters alone: machine code does not show addresses.

    The share of each sector that is used tells directly. Without it, sectors per request are set
    against what the widest load in the code needs, which is the most that can be needed.
    """
    used = counter(profile, BYTES_PER_SECTOR)
    if used is not None:
        return _by_bytes(profile, used) if 0.0 < used < 100.0 / MOST else None
    sectors = counter(profile, SECTORS_PER_LOAD)
    widest = max((bits for code in profile.codes for bits in code.load_bits), default=None)
    if sectors is None or widest is None:
        return None
    ideal = max(THREADS_PER_WARP * widest / 8 / SECTOR_BYTES, 1.0)
    return _by_sectors(profile, sectors, widest, ideal) if sectors > MOST * ideal else None


def _by_bytes(profile: Profile, used: float) -> Finding:
    line = profile.line_of("global_load")
    sectors = counter(profile, SECTORS_PER_LOAD)
    besides = "" if sectors is None else f"; {sectors:.1f} sectors a load of a warp"
    return Finding(
        topic="coalescing",
        text=f"Global loads use {used:.0f}% of each {SECTOR_BYTES}-byte sector that they fetch "
        f"(counters{at(line)}{besides}).",
        advice=_ADVICE,
        value=round(used),
        unit="%",
        weight=0.5 * (1.0 - used / 100.0),
        line=line,
    )


def _by_sectors(profile: Profile, sectors: float, widest: int, ideal: float) -> Finding:
    line = profile.line_of("global_load")
    return Finding(
        topic="coalescing",
        text=f"A global load of a warp takes {sectors:.1f} sectors of {SECTOR_BYTES} bytes "
        f"(counters{at(line)}) where {ideal:.0f} hold even the widest, {widest} bits a thread.",
        advice=_ADVICE,
        value=round(sectors, 1),
        unit="sectors",
        weight=0.5 * (1.0 - ideal / sectors),
        line=line,
    )


RULE = Rule("coalescing", frozenset({Kind.MEMORY, Kind.LATENCY, Kind.TAIL}), find)
