"""Warps wait for others of their block."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.analysis.base import Kind, Profile, Rule
from tuner.analysis.diagnosis.evidence import (
    ACTIVE_THREADS,
    SM_THROUGHPUT,
    THREADS_PER_WARP,
    at,
    counter,
    innermost,
    stalls,
    whole,
)
from tuner.analysis.metrics import ISSUED
from tuner.analysis.roofline import theory
from tuner.model.trial import Finding

# KernelPro, arXiv 2606.26453.
BARRIER_STALLS_MOST = 0.3
# Ours, where nothing was counted: so short a way between barriers leaves little to overlap, and
# outside of loops one reduction over the block has fewer.
BARRIER_STALLS_FEWEST_INSTRUCTIONS = 64
MANY = 8
_ADVICE = (
    "Synchronize less: one warp a row with shuffles in place of the block, __syncwarp where only a "
    "warp shares data, two buffers so that one barrier a step is enough; or smaller blocks."
)


def find_barrier_stalls(profile: Profile) -> Finding | None:
    """Fire from 30 % of the stalled cycles on; without counters, where they are dense."""
    shares = stalls(profile)
    if not shares:
        return _by_code(profile)
    share = shares.get("barrier", 0.0)
    if share < BARRIER_STALLS_MOST:
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
    if between >= BARRIER_STALLS_FEWEST_INSTRUCTIONS:
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


BARRIER_STALLS_RULE = Rule("barrier_stalls", frozenset(Kind) - {Kind.LAUNCH}, find_barrier_stalls)


# Ours: a quarter of the lanes idle. Fewer are remainders of rows and guards.
FEWEST = 0.75


def find_divergence(profile: Profile) -> Finding | None:
    """Fire on counters alone, where under 24 of 32 threads are active on average."""
    active = counter(profile, ACTIVE_THREADS)
    if active is None or active >= FEWEST * THREADS_PER_WARP:
        return None
    issue = counter(profile, ISSUED)
    line = profile.line_of("branch")
    where = "" if line is None else f"; most branches are of line {line}"
    return Finding(
        topic="divergence",
        text=f"{active:.1f} of {THREADS_PER_WARP} threads of a warp are active on average "
        f"(counters{where}).",
        advice="Let all threads of a warp take the same path: give conditions to whole warps, "
        "select values rather than branch, and let no lane wait while another works alone.",
        value=round(active, 1),
        unit="threads",
        weight=(1.0 - active / THREADS_PER_WARP) * (0.5 if issue is None else issue / 100.0),
        line=line,
    )


DIVERGENCE_RULE = Rule("divergence", frozenset(Kind) - {Kind.LAUNCH}, find_divergence)


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
INSTRUCTION_MIX_MOST = 0.5
INSTRUCTION_MIX_FEWEST_INSTRUCTIONS = 16
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


def find_instruction_mix(profile: Profile) -> Finding | None:
    """Weigh the arithmetic of the innermost loops by its throughput; fire at half."""
    mix, where = innermost(profile)
    busy = counter(profile, SM_THROUGHPUT)
    slots = {name: mix.get(name, 0) * cost for name, cost in SLOTS.items()}
    arithmetic = sum(mix.get(name, 0) for name in SLOTS)
    if arithmetic < INSTRUCTION_MIX_FEWEST_INSTRUCTIONS or (busy is not None and busy < IDLE_PCT):
        return None
    parts = {
        what: sum(slots[name] for name in names) / sum(slots.values())
        for what, (names, _) in _OVERHEADS.items()
    }
    what = max(parts, key=lambda name: parts[name])
    return (
        _finding(profile, what, parts[what], mix, where)
        if parts[what] >= INSTRUCTION_MIX_MOST
        else None
    )


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


INSTRUCTION_MIX_RULE = Rule(
    "instruction_mix", frozenset(Kind) - {Kind.LAUNCH}, find_instruction_mix
)


# KernelPro, arXiv 2606.26453, table 9: the mean gain of following it is 1.31x.
TENSOR_CORES_WEIGHT = 1.0 - 1.0 / 1.31


def find_tensor_cores(profile: Profile) -> Finding | None:
    """Fire where the declared operations need longer than the bytes and no instruction is tensor.

    Only where machine code was read. Whether it is a matrix product cannot be seen.
    """
    operations, least = profile.subject.operations, profile.subject.traffic_bytes
    arithmetic = profile.count("fp32") + profile.count("fp16")
    if not operations or not arithmetic or profile.count("tensor"):
        return None
    if theory(profile) is not Kind.COMPUTE:
        return None
    line = profile.line_of("fp32") or profile.line_of("fp16")
    return Finding(
        topic="tensor_cores",
        text=f"{operations / max(least, 1):.0f} operations a byte, and no tensor instruction among "
        f"{arithmetic} floating-point ones (machine code{at(line)}).",
        advice="If the loop is a matrix product of 16-bit, 8-bit or TF32 values, use the tensor "
        "cores: mma.sync through ldmatrix, or wgmma from compute capability 9.0 on.",
        value=round(operations / max(least, 1)),
        unit="operations a byte",
        weight=TENSOR_CORES_WEIGHT,
        line=line,
    )


TENSOR_CORES_RULE = Rule(
    "tensor_cores", frozenset({Kind.COMPUTE, Kind.LATENCY, Kind.TAIL}), find_tensor_cores
)


# KernelPro, arXiv 2606.26453: dominant from 40 %, critical from 60 %; table 9: the mean gain of
# following it is 1.41x.
DOMINANT = 0.4
CRITICAL = 0.6
WARP_STALLS_WEIGHT = 1.0 - 1.0 / 1.41

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


def find_warp_stalls(profile: Profile) -> Finding | None:
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
        weight=WARP_STALLS_WEIGHT * min(share / CRITICAL, 1.0),
        line=line,
    )


WARP_STALLS_RULE = Rule("warp_stalls", frozenset(Kind) - {Kind.LAUNCH}, find_warp_stalls)
