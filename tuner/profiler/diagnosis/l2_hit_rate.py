"""The L2 is asked again for what it no longer holds."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import L2_READS, SECTOR_BYTES, at, counter, summed
from tuner.profiler.metrics import L2_HIT_RATE

# Ours: below, more is fetched from memory than is found.
FEWEST_PCT = 50.0
# Ours: with less reading again there is little that could be found.
REREAD = 1.5


def find(profile: Profile) -> Finding | None:
    """Fire on counters alone, and only where data is read again: streams need no hits."""
    hits, sectors = counter(profile, L2_HIT_RATE), summed(profile, L2_READS)
    least = profile.subject.traffic_bytes
    if hits is None or sectors is None or not least or hits >= FEWEST_PCT:
        return None
    times = sectors * SECTOR_BYTES / least
    if times < REREAD:
        return None
    line = profile.line_of("global_load")
    return Finding(
        topic="l2_hit_rate",
        text=f"{hits:.0f}% of the L2's sectors are found there although {times:.1f} times the "
        f"operator's bytes are read from it (counters{at(line)}).",
        advice="Let blocks that run together use the same data: order them in groups (swizzle the "
        "block index), so that the L2 still has what they share; use __ldcs for once-only data.",
        value=round(hits),
        unit="%",
        weight=0.5 * (1.0 - hits / 100.0) * (1.0 - 1.0 / times),
        line=line,
    )


RULE = Rule("l2_hit_rate", frozenset({Kind.MEMORY, Kind.LATENCY}), find)
