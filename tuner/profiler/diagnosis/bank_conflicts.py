"""Threads of a warp meet in the same bank of shared memory."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import WAVEFRONTS, at, counter, stalls
from tuner.profiler.metrics import CONFLICTS

# As KernelPro's for sectors (arXiv 2606.26453): 1.2 times the ideal.
MOST = 1.2
# Where shared memory makes warps wait.
_WAITS = ("short_scoreboard", "mio_throttle")
_UNKNOWN = 0.5


def find(profile: Profile) -> Finding | None:
    """Fire on counters alone: machine code does not show addresses."""
    total = counter(profile, WAVEFRONTS)
    loads, stores = (counter(profile, name) for name in CONFLICTS)
    if not total or loads is None or stores is None:
        return None
    extra = loads + stores
    if extra >= total or total <= MOST * (total - extra):
        # More conflicts than wavefronts: the counter also counts what others made wait.
        return None
    of_loads = loads >= stores
    line = profile.line_of("shared_load" if of_loads else "shared_store")
    shares = stalls(profile)
    waiting = sum(shares.get(name, 0.0) for name in _WAITS) if shares else _UNKNOWN
    part = extra / total
    return Finding(
        topic="bank_conflicts",
        text=f"{part:.0%} of the passes over shared memory are repeats for bank conflicts, most of "
        f"them of {'loads' if of_loads else 'stores'} (counters{at(line)}).",
        advice="Give the threads of a warp different banks: pad the rows of the tile by 4 bytes "
        "(16 where accesses are 16 bytes wide), or swizzle the column with the row's low bits.",
        value=round(100 * part),
        unit="%",
        weight=part * waiting,
        line=line,
    )


RULE = Rule("bank_conflicts", frozenset(Kind) - {Kind.LAUNCH}, find)
