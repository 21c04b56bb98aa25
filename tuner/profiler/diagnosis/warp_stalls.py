"""Warps mostly wait for one thing."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import at, stalls

# KernelPro, arXiv 2606.26453: dominant from 40 %, critical from 60 %; table 9: the mean gain of
# following it is 1.41x.
DOMINANT = 0.4
CRITICAL = 0.6
WEIGHT = 1.0 - 1.0 / 1.41

# Reasons as Nsight Compute's documentation of warp states describes them; barriers have their own
# diagnosis.
REASONS = {
    "long_scoreboard": (
        "loads from global or local memory",
        "Have more loads on the way: load several elements before the first is used (unroll, more "
        "elements a thread), or copy ahead with cp.async or TMA; more warps hide it as well.",
    ),
    "short_scoreboard": (
        "shared memory or special functions",
        "Go to shared memory less often (registers, warp shuffles), or put independent work "
        "between a shared load or a special function and the use of its result.",
    ),
    "math_pipe_throttle": (
        "a busy arithmetic unit",
        "Spread the arithmetic over other units, or do less of it: tensor cores, packed 16-bit "
        "operations, precomputed indices.",
    ),
    "mio_throttle": (
        "the queue of shared memory, shuffles and special functions",
        "Issue fewer of these: wider shared accesses (128 bits), fewer shuffles, exp and divisions "
        "once rather than again.",
    ),
    "lg_throttle": (
        "the queue of global and local memory",
        "Issue fewer and wider accesses: 16 bytes a load; remove spills and repeated loads.",
    ),
    "tex_throttle": ("the texture queue", "Issue fewer texture accesses, or use plain loads."),
    "wait": (
        "results of the instruction before",
        "Give a thread independent work: unroll with several accumulators.",
    ),
    "no_instruction": (
        "instructions to be fetched",
        "Make the code shorter: unroll less, and avoid long paths that few warps take.",
    ),
    "membar": (
        "memory fences",
        "Use fewer fences, or narrower ones: of the block rather than of the device.",
    ),
    "branch_resolving": (
        "branches",
        "Branch less in loops: unroll, or select values rather than paths.",
    ),
    "drain": (
        "stores before the end",
        "Store in wide, coalesced pieces, and earlier than just before the end.",
    ),
    "gmma": (
        "warpgroup matrix products",
        "Keep several products on the way before waiting for the first.",
    ),
    "sleeping": ("nanosleep", "Sleep less between polls."),
    "dispatch_stall": ("the dispatcher", "Mix instructions that use different units."),
}


def find(profile: Profile) -> Finding | None:
    """Fire on counters alone, where one reason has 40 % of the stalled cycles."""
    shares = stalls(profile)
    reason = max(shares, key=lambda name: shares[name], default="")
    if reason not in REASONS or shares[reason] < DOMINANT:
        return None
    share = shares[reason]
    what, advice = REASONS[reason]
    line, hot = profile.hot_lines[0] if profile.hot_lines else (None, 0.0)
    where = "" if line is None else f"; {hot:.0%} of the stalls{at(line)}"
    return Finding(
        topic="warp_stalls",
        text=f"{share:.0%} of the stalled cycles are spent waiting for {what} "
        f"({reason}, counters{where}).",
        advice=advice,
        value=round(100 * share),
        unit="%",
        weight=WEIGHT * min(share / CRITICAL, 1.0),
        line=line,
    )


RULE = Rule("warp_stalls", frozenset(Kind) - {Kind.LAUNCH}, find)
