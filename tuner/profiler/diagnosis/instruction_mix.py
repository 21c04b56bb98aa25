"""Arithmetic that is not the operator's: indices, conversions, special functions, shuffles."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import SM_THROUGHPUT, at, counter, innermost

# Issue slots an instruction takes where one of FP32 takes 1: 128 over the results a clock of a
# multiprocessor at compute capability 9.0 (CUDA C++ Programming Guide, arithmetic throughput);
# other generations differ by up to a factor of 2.
SLOTS = {
    "fp32": 1,
    "fp16": 1,
    "fp64": 2,
    "move": 1,
    "integer": 2,
    "uniform": 1,
    "conversion": 2,
    "shuffle": 4,
    "special": 8,
}
# Ours: one kind of overhead that takes as long as all else together.
MOST = 0.5
FEWEST_INSTRUCTIONS = 16
# Multiprocessors so idle wait for something other than arithmetic.
IDLE_PCT = 30.0

_OVERHEADS = {
    "Index arithmetic, comparisons and moves": (
        ("integer", "uniform", "move"),
        "Compute indices once outside of the loop and step pointers; use 32-bit offsets, constant "
        "strides and powers of two; handle more elements per index.",
    ),
    "Conversions": (
        ("conversion",),
        "Convert in pairs (such as __bfloat1622float2), once an element, or compute in the "
        "stored type with packed instructions.",
    ),
    "Special functions (exp, logarithm, division, square root)": (
        ("special",),
        "Divide by multiplying with a reciprocal computed once a row; use exp2f with a factor "
        "folded in; compute each value in one thread and share it.",
    ),
    "Shuffles": (
        ("shuffle",),
        "Reduce within the thread first, then once over the warp; let fewer lanes share a row, or "
        "use the warp-wide __reduce_*_sync on integers.",
    ),
}


def find(profile: Profile) -> Finding | None:
    """Weigh the arithmetic of the innermost loops by its throughput; fire at half."""
    mix, where = innermost(profile)
    busy = counter(profile, SM_THROUGHPUT)
    slots = {name: mix.get(name, 0) * cost for name, cost in SLOTS.items()}
    arithmetic = sum(mix.get(name, 0) for name in SLOTS)
    if arithmetic < FEWEST_INSTRUCTIONS or (busy is not None and busy < IDLE_PCT):
        return None
    parts = {
        what: sum(slots[name] for name in names) / sum(slots.values())
        for what, (names, _) in _OVERHEADS.items()
    }
    what = max(parts, key=lambda name: parts[name])
    return _finding(profile, what, parts[what], mix, where) if parts[what] >= MOST else None


def _finding(
    profile: Profile, what: str, part: float, mix: Mapping[str, int], where: str
) -> Finding:
    names, advice = _OVERHEADS[what]
    most = max(names, key=lambda name: mix.get(name, 0))
    line = profile.line_of(most)
    count, arithmetic = (
        sum(mix.get(name, 0) for name in names),
        sum(mix.get(name, 0) for name in SLOTS),
    )
    busy = counter(profile, SM_THROUGHPUT)
    measured = "" if busy is None else f"; the multiprocessors are {busy:.0f}% busy (counters)"
    return Finding(
        topic="instruction_mix",
        text=f"{what} take about {part:.0%} of the arithmetic issue slots of {where}: {count} of "
        f"{arithmetic} instructions (machine code{at(line)}){measured}.",
        advice=advice,
        value=round(100 * part),
        unit="%",
        weight=part * (0.2 if busy is None else 0.5 * busy / 100.0),
        line=line,
    )


RULE = Rule("instruction_mix", frozenset(Kind) - {Kind.LAUNCH}, find)
