"""Warps wait for others of their block."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import at, innermost, stalls, whole

# KernelPro, arXiv 2606.26453.
MOST = 0.3
# Ours, where nothing was counted: so short a way between barriers leaves little to overlap, and
# outside of loops one reduction over the block has fewer.
FEWEST_INSTRUCTIONS = 64
MANY = 8
_ADVICE = (
    "Synchronize less: one warp a row with shuffles in place of the block, __syncwarp where only a "
    "warp shares data, two buffers so that one barrier a step is enough; or smaller blocks."
)


def find(profile: Profile) -> Finding | None:
    """Fire from 30 % of the stalled cycles on; without counters, where they are dense."""
    shares = stalls(profile)
    if not shares:
        return _by_code(profile)
    share = shares.get("barrier", 0.0)
    if share < MOST:
        return None
    line = profile.line_of("barrier")
    return Finding(
        topic="barrier_stalls",
        text=f"{share:.0%} of the stalled cycles are spent at barriers (counters{at(line)}).",
        advice=_ADVICE,
        value=round(100 * share),
        unit="%",
        weight=0.6 * share,
        line=line,
    )


def _by_code(profile: Profile) -> Finding | None:
    mix, where = innermost(profile)
    if where == "the code" or not mix.get("barrier"):
        mix, where = whole(profile), "the code"
    barriers = mix.get("barrier", 0)
    if not barriers or (where == "the code" and barriers < MANY):
        return None
    between = sum(mix.values()) / barriers
    if between >= FEWEST_INSTRUCTIONS:
        return None
    line = profile.line_of("barrier")
    return Finding(
        topic="barrier_stalls",
        text=f"One of {between:.0f} instructions of {where} is a barrier ({barriers} in all, "
        f"machine code{at(line)}); what they cost was not measured.",
        advice=_ADVICE,
        value=round(between),
        unit="instructions",
        weight=0.1,
        line=line,
    )


RULE = Rule("barrier_stalls", frozenset(Kind) - {Kind.LAUNCH}, find)
