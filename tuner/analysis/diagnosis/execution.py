"""Diagnoses of how a kernel is launched and what its warps do, or wait for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from tuner.analysis.base import Bottleneck, Profile
from tuner.analysis.diagnosis.advice import CLIFFS, OCCUPANCY, OVERHEADS, STALLS, TOPICS, finding
from tuner.analysis.metrics import (
    ACTIVE_THREADS,
    ACTIVE_WARPS,
    ISSUED,
    MEMORY_WAITS,
    SM_THROUGHPUT,
    THREADS_PER_WARP,
    at,
    counter,
    executed_mix,
    innermost,
    stalls,
    whole,
)
from tuner.analysis.roofline import (
    EMPTY_LAUNCH_US,
    EMPTY_PROGRAMMATIC_US,
    IDLE,
    TAIL_LOSS,
    is_at_floor,
    theory,
    waves,
)
from tuner.model.hardware import AmdLimits, DeviceLimits
from tuner.model.hardware import occupancy as calculate
from tuner.model.kernel import Launch
from tuner.model.trial import Finding, Occupancy, Resources

# Sources: KernelPro is arXiv 2606.26453, its table 9 the mean gain of following each advice; "ours"
# was chosen here.

MIN_LAUNCH_SHARE = 0.2  # KernelPro
LAUNCH_WEIGHT = 1.0 - 1.0 / 1.32  # KernelPro, table 9
# Only from there on is there programmatic dependent launch.
HOPPER = (9, 0)
# The most blocks that start in a microsecond, of a multiprocessor: 1,650 to 1,660 on the 132 of an
# H200, by three kernels of one element a thread in blocks of 64 and 128 threads.
MOST_BLOCKS_PER_US = 12.6
# Ours: from that share on, what a block costs beside its work is felt.
MIN_BLOCK_RATE = 0.6
BLOCK_RATE_WEIGHT = 0.6  # ours
LOW_OCCUPANCY = 0.5  # KernelPro
# Ours: so many warps are resident that more can hardly be.
FULL_OCCUPANCY = 0.9
OCCUPANCY_WEIGHT = 1.0 - 1.0 / 1.48  # KernelPro, table 9
# From there on more warps have little left to fill: ours, as the roofline's bound.
BUSY_ISSUE_PCT = 60.0
# Ours: so small a part of a resource is saved without another design.
CLIFF_PART = 8
# Ours: of cycles in which nothing issues, where that was not counted.
UNKNOWN_IDLE = 0.5
# Reasons of stalls that are told beside another finding, and the least share of one.
MOST_WAITS = 3
SMALL_WAIT = 0.1
# KernelPro: dominant from 40 %, critical from 60 %.
DOMINANT_STALL = 0.4
CRITICAL_STALL = 0.6
STALL_WEIGHT = 1.0 - 1.0 / 1.41  # KernelPro, table 9
MIN_BARRIER_STALL = 0.3  # KernelPro
# Ours, where nothing was counted: so short a way between barriers leaves little to overlap, and
# outside of loops one reduction over the block has fewer.
MIN_INSTRUCTIONS_PER_BARRIER = 64
MANY_BARRIERS = 8
TENSOR_CORES_WEIGHT = 1.0 - 1.0 / 1.31  # KernelPro, table 9
# Ours: multiplies that overlap nothing, as a spill in an innermost loop.
SERIALIZED_WGMMA_WEIGHT = 1.0 - 1.0 / 1.44
# Ours: a quarter of the lanes idle. Fewer are remainders of rows and guards.
MIN_ACTIVE_THREADS = 0.75
# Ours: one kind of overhead that takes as long as all else together.
MIN_OVERHEAD_SHARE = 0.5
MIN_ARITHMETIC = 16
# Multiprocessors so idle wait for something other than arithmetic.
IDLE_PCT = 30.0
# A line with a smaller share of what ran is not told beside the others.
SMALL_LINE = 0.15

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


def launch_overhead(profile: Profile) -> Finding | None:
    """Set the launches of a call, each at what an empty one takes, against its time."""
    launches, fuse = profile.subject.program.launches, TOPICS["launches"]
    count, ordinary = len(launches), sum(not launch.pdl for launch in launches)
    time_us, around = profile.subject.time_us, profile.subject.surroundings
    hideable = ordinary > 0 and profile.device.compute_capability >= HOPPER
    if count <= 1 and not (hideable and time_us):
        return None
    if not time_us:
        return finding(
            "launch_overhead",
            f"A call is {count} launches, each of which takes about {EMPTY_LAUNCH_US} us even "
            f"if empty (as on an H200); nothing was timed.",
            (count, "launches"),
            LAUNCH_WEIGHT / 2,
            advice=f"{fuse}, unless the call takes many times as long.",
        )
    empty = ordinary * EMPTY_LAUNCH_US + (count - ordinary) * EMPTY_PROGRAMMATIC_US
    part = min(empty / time_us, 1.0)
    if part < MIN_LAUNCH_SHARE:
        return None
    hide = f"ide part of {'it' if count == 1 else 'them'}: {TOPICS['launch_hiding']}"
    noun = "An empty launch takes" if count == 1 else f"{count} empty launches take"
    return finding(
        "launch_overhead",
        f"{noun} about {empty:.2f} us (as on an H200), {part:.0%} of the {time_us:.2f} us "
        f"{'that a call costs in its surroundings' if around else 'of a call'}.",
        (round(100 * part), "%"),
        # One launch has to stay.
        max(min((empty - EMPTY_PROGRAMMATIC_US) / time_us, 1.0), LAUNCH_WEIGHT * part),
        advice=f"H{hide}" if count == 1 else f"{fuse}; else h{hide}" if hideable else f"{fuse}.",
    )


def block_rate(profile: Profile) -> Finding | None:
    """Fire where blocks start nearly as fast as they can, however little each has to do."""
    time_us = profile.subject.time_us
    if not time_us:
        return None
    started = sum(math.prod(launch.grid) for launch in profile.subject.program.launches) / time_us
    most = MOST_BLOCKS_PER_US * profile.device.multiprocessors
    part = min(started / most, 1.0)
    if part < MIN_BLOCK_RATE:
        return None
    return finding(
        "block_rate",
        f"{started:,.0f} blocks start in a microsecond, {part:.0%} of the {most:,.0f} that could "
        "(as on an H200), whatever they do.",
        (round(started), "blocks a us"),
        BLOCK_RATE_WEIGHT * part,
    )


def cliff(profile: Profile) -> Finding | None:
    """Fire where an eighth less of one resource lets more warps onto a multiprocessor.

    Silent where all blocks are resident at once. More warps gain at most where none issues.
    """
    subject, filled = profile.subject, waves(profile)
    now, launch = subject.occupancy, subject.launch
    if now is None or filled is None or filled.count <= 1.0:
        return None
    cliffs = list(_cliffs(profile.device.limits, subject.resources, launch, now))
    if not cliffs:
        return None
    what, less, then = max(cliffs, key=lambda found_cliff: found_cliff[2].share)
    issue, gain = counter(profile, ISSUED), 1.0 - now.share / then.share
    of_several = f" (kernel {launch.kernel})" if len(subject.program.launches) > 1 else ""
    unit = what if less > 1 else what.replace("s ", " ", 1)
    return finding(
        "cliff",
        f"{less} {unit} less: {_blocks(then.blocks)} a multiprocessor instead of {now.blocks}, "
        f"{then.share:.0%} of its warps instead of {now.share:.0%}{of_several}"
        f"{describe_waiting(profile)}.",
        (less, unit),
        gain * (UNKNOWN_IDLE if issue is None else 1.0 - issue / 100.0),
        advice=CLIFFS[what].format(blocks=then.blocks, threads=launch.threads - less),
    )


def _cliffs(
    limits: DeviceLimits | AmdLimits, resources: Resources, launch: Launch, now: Occupancy
) -> Iterator[tuple[str, int, Occupancy]]:
    """Yield what little less of each resource lets more warps in, with the occupancy then."""
    registers, threads = resources.registers or 0, launch.threads
    shared, without = resources.static_shared_bytes, replace(resources, static_shared_bytes=0)
    shared += launch.shared_bytes
    less_of: dict[str, tuple[int, int, Callable[[int], tuple[Resources, Launch]]]] = {
        "registers a thread": (
            *(registers, 1),
            lambda less: (replace(resources, registers=registers - less), launch),
        ),
        "bytes of shared memory a block": (
            *(shared, 16),
            lambda less: (without, replace(launch, shared_bytes=shared - less)),
        ),
        "threads a block": (
            *(threads, THREADS_PER_WARP),
            lambda less: (resources, replace(launch, block=(threads - less, 1, 1))),
        ),
    }
    for what, (used, step, changed) in less_of.items():
        for less in range(step, used // CLIFF_PART + 1, step):
            then = calculate(limits, *changed(less))
            if then is not None and then.share > now.share:
                yield what, less, then
                break


def describe_waiting(profile: Profile, said_already: str = "") -> str:
    """Say in figures how busy the schedulers are and what warps wait for; "" if not counted."""
    issue, shares = counter(profile, ISSUED), stalls(profile)
    parts = [] if issue is None else [f"schedulers issue in {issue:.0f}% of the cycles"]
    most = sorted(shares.keys() - {said_already}, key=lambda name: (-shares[name], name))
    waits = [f"{shares[name]:.0%} {name}" for name in most if shares[name] >= SMALL_WAIT]
    if waits:
        parts.append(f"stalled cycles: {', '.join(waits[:MOST_WAITS])}")
    return f"; {'; '.join(parts)}" if parts else ""


def occupancy(profile: Profile) -> Finding | None:
    """Fire below 50 %, unless all blocks are resident at once or the schedulers are busy."""
    held, filled = profile.subject.occupancy, waves(profile)
    if held is None or held.blocks < 1 or held.share >= LOW_OCCUPANCY:
        return None
    issue = counter(profile, ISSUED)
    if (filled and filled.count <= 1.0) or (issue is not None and issue >= BUSY_ISSUE_PCT):
        return None
    resources, launch = profile.subject.resources, profile.subject.launch
    shared = resources.static_shared_bytes + launch.shared_bytes
    cause = {
        "registers": f"{resources.registers} registers a thread allow",
        "shared memory": f"{shared} bytes of shared memory a block allow",
        "barriers": f"{resources.barriers} barriers a block allow",
    }.get(held.limiter, "the block size allows")
    active = counter(profile, ACTIVE_WARPS)
    measured = "" if active is None else f" ({active:.0f}% measured)"
    return finding(
        "occupancy",
        f"Occupancy is {held.share:.0%}{measured}: {cause} {_blocks(held.blocks)} of "
        f"{launch.threads} threads on a multiprocessor{describe_waiting(profile)}.",
        (round(100 * held.share), "%"),
        OCCUPANCY_WEIGHT * (1.0 - held.share / LOW_OCCUPANCY),
        advice=OCCUPANCY.get(held.limiter, f"Use less of what limits it: {held.limiter}."),
    )


def tail(profile: Profile) -> Finding | None:
    """Compare the blocks of the first launch with what the multiprocessors hold."""
    filled = waves(profile)
    if filled is None:
        return None
    if filled.idle >= IDLE * filled.multiprocessors:
        return finding(
            "tail",
            f"The grid has {_blocks(filled.blocks)} for {filled.multiprocessors} "
            f"multiprocessors: {filled.idle} of them have nothing to do.",
            (filled.idle, "multiprocessors"),
            0.5 * filled.idle / filled.multiprocessors,
            advice=TOPICS["few_blocks"],
        )
    if filled.lost < TAIL_LOSS:
        return None
    slots = filled.resident * filled.multiprocessors
    last = filled.blocks - slots * (math.ceil(filled.count) - 1)
    return finding(
        "tail",
        f"The {filled.blocks} blocks are {filled.count:.2f} waves of {slots}, with {last} "
        f"blocks in the last: if all blocks take equally long, {filled.lost:.0%} of the "
        f"multiprocessors' time is lost.",
        (round(100 * filled.lost), "%"),
        0.8 * filled.lost,
        advice=TOPICS["tail"].format(slots=slots),
    )


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"


def warp_stalls(profile: Profile) -> Finding | None:
    """Fire on counters alone, where one reason has 40 % of the stalled cycles.

    At the floor waiting for memory is no fault.
    """
    shares, held = stalls(profile), profile.subject.occupancy
    reason = max(shares, key=lambda name: shares[name], default="")
    if reason not in STALLS or shares[reason] < DOMINANT_STALL:
        return None
    if reason in MEMORY_WAITS and is_at_floor(profile):
        return None
    full = held is not None and held.share >= FULL_OCCUPANCY
    share, words = shares[reason], STALLS[reason]
    line, hot = profile.hot_lines[0] if profile.hot_lines else (None, 0.0)
    where = "" if line is None else f"; {hot:.0%} of the stalls{at(line)}"
    return finding(
        "warp_stalls",
        f"{share:.0%} of the stalled cycles are spent waiting for {words['waiting_for']} "
        f"({reason}, counters{where}){describe_waiting(profile, reason)}.",
        (round(100 * share), "%"),
        STALL_WEIGHT * min(share / CRITICAL_STALL, 1.0),
        line,
        words["advice"].format(more_warps="" if full else TOPICS["more_warps"]),
    )


def barrier_stalls(profile: Profile) -> Finding | None:
    """Fire from 30 % of the stalled cycles on; without counters, where barriers are dense."""
    line, shares = profile.line_of("barrier"), stalls(profile)
    if shares:
        share = shares.get("barrier", 0.0)
        if share < MIN_BARRIER_STALL:
            return None
        text = f"{share:.0%} of the stalled cycles are spent at barriers (counters{at(line)})."
        return finding("barrier_stalls", text, (round(100 * share), "%"), 0.6 * share, line)
    mix, where = innermost(profile)
    if where == "the code" or not mix.get("barrier"):
        mix, where = whole(profile), "the code"
    barriers = mix.get("barrier", 0)
    if not barriers or (where == "the code" and barriers < MANY_BARRIERS):
        return None
    between = sum(mix.values()) / barriers
    if between >= MIN_INSTRUCTIONS_PER_BARRIER:
        return None
    text = (
        f"One of {between:.0f} instructions of {where} is a barrier ({barriers} in all, "
        f"machine code{at(line)}); what they cost was not measured."
    )
    return finding("barrier_stalls", text, (round(between), "instructions"), 0.1, line)


def tensor_cores(profile: Profile) -> Finding | None:
    """Fire where the declared operations need longer than the bytes and no instruction is tensor.

    Only where machine code was read. Whether it is a matrix product cannot be seen.
    """
    operations, least = profile.subject.operations, profile.subject.traffic_bytes
    arithmetic = profile.count("fp32") + profile.count("fp16")
    if not operations or not arithmetic or profile.count("tensor"):
        return None
    # What they are declared to be done in is not what this code does them in.
    as_written = replace(profile, subject=replace(profile.subject, peak=""))
    if theory(as_written) is not Bottleneck.COMPUTE:
        return None
    line = profile.line_of("fp32") or profile.line_of("fp16")
    return finding(
        "tensor_cores",
        f"{operations / max(least, 1):.0f} operations a byte, and no tensor instruction among "
        f"{arithmetic} floating-point ones (machine code{at(line)}).",
        (round(operations / max(least, 1)), "operations a byte"),
        TENSOR_CORES_WEIGHT,
        line,
    )


def serialized_wgmma(profile: Profile) -> Finding | None:
    """Fire where ptxas made warpgroup multiplies wait for each other, with its reason."""
    why = profile.subject.resources.serialized_wgmma
    if not why:
        return None
    line = profile.line_of("tensor")
    return finding(
        "serialized_wgmma",
        f"The compiler serialized the warpgroup multiplies: {why}.",
        (profile.count("tensor"), "tensor instructions"),
        SERIALIZED_WGMMA_WEIGHT,
        line,
    )


def divergence(profile: Profile) -> Finding | None:
    """Fire on counters alone, where under 24 of 32 threads are active on average."""
    active = counter(profile, ACTIVE_THREADS)
    if active is None or active >= MIN_ACTIVE_THREADS * THREADS_PER_WARP:
        return None
    issue = counter(profile, ISSUED)
    line = profile.line_of("branch")
    where = "" if line is None else f"; most branches are of line {line}"
    return finding(
        "divergence",
        f"{active:.1f} of {THREADS_PER_WARP} threads of a warp are active on average "
        f"(counters{where}).",
        (round(active, 1), "threads"),
        (1.0 - active / THREADS_PER_WARP) * (0.5 if issue is None else issue / 100.0),
        line,
    )


def _busiest_lines(profile: Profile) -> str:
    """Name the lines that most instructions of all classes ran for; "" where one has them all."""
    ran = executed_mix(profile)
    total, by_line = sum(ran.values()), Counter[int]()
    for code in profile.codes:
        for (place, _), times in code.executed_lines.items():
            by_line[place] += times
    shares = [(place, times / total) for place, times in by_line.most_common(3)]
    lines = [f"line {place} {share:.0%}" for place, share in shares if share >= SMALL_LINE]
    return f"; of all instructions {', '.join(lines)}" if len(lines) > 1 else ""


def instruction_mix(profile: Profile) -> Finding | None:
    """Weigh the arithmetic that ran, else that of the innermost loops, by its throughput.

    Fire at half, unless warps wait for memory while the multiprocessors have time. Once executions
    are counted, the line is the one whose overhead ran most.
    """
    ran = executed_mix(profile)
    mix, where = (ran, "all that ran") if ran else innermost(profile)
    busy = counter(profile, SM_THROUGHPUT)
    slots = {name: mix.get(name, 0) * cost for name, cost in SLOTS.items()}
    arithmetic = sum(mix.get(name, 0) for name in SLOTS)
    waits_for_memory = sum(stalls(profile).get(name, 0.0) for name in MEMORY_WAITS)
    least_busy = BUSY_ISSUE_PCT if waits_for_memory >= CRITICAL_STALL else IDLE_PCT
    if arithmetic < MIN_ARITHMETIC or (busy is not None and busy < least_busy):
        return None
    parts = {
        what: sum(slots[name] for name in words["classes"]) / sum(slots.values())
        for what, words in OVERHEADS.items()
    }
    what = max(parts, key=lambda name: parts[name])
    part, names = parts[what], OVERHEADS[what]["classes"]
    if part < MIN_OVERHEAD_SHARE:
        return None
    line = profile.line_of(max(names, key=lambda name: mix.get(name, 0)))
    count = sum(mix.get(name, 0) for name in names)
    counted, share = "machine code", ""
    if ran:
        counted, by_line = "counters", Counter[int]()
        for code in profile.codes:
            for (place, name), times in code.executed_lines.items():
                by_line[place] += times * SLOTS[name] if name in names else 0
        if by_line.total():
            line, slots_there = by_line.most_common(1)[0]
            share = f", with {slots_there / sum(slots[name] for name in names):.0%} of them"
            share += _busiest_lines(profile)
    measured = "" if busy is None else f"; the multiprocessors are {busy:.0f}% busy (counters)"
    return finding(
        "instruction_mix",
        f"{what} take about {part:.0%} of the arithmetic issue slots of {where}: {count} of "
        f"{arithmetic} instructions ({counted}{at(line)}{share}){measured}"
        f"{'' if warp_stalls(profile) else describe_waiting(profile)}.",
        (round(100 * part), "%"),
        part * (0.2 if busy is None else 0.5 * busy / 100.0),
        line,
        OVERHEADS[what]["advice"],
    )
