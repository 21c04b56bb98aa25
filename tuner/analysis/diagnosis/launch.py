"""Launching takes much of the time."""

from __future__ import annotations

import math

from tuner.analysis.base import Kind, Profile, Rule
from tuner.analysis.diagnosis.evidence import ACTIVE_WARPS, Waves, counter, waves
from tuner.analysis.metrics import ISSUED
from tuner.analysis.roofline import EMPTY_LAUNCH_US, EMPTY_PROGRAMMATIC_US, IDLE, TAIL_LOSS
from tuner.model.trial import Finding, Occupancy

# KernelPro, arXiv 2606.26453.
LAUNCH_OVERHEAD_MOST = 0.2
# The mean gain of following it, ibid., table 9: 1.32x.
LAUNCH_OVERHEAD_WEIGHT = 1.0 - 1.0 / 1.32
# Only from there on is there programmatic dependent launch.
HOPPER = (9, 0)

_FUSE = "Fuse the launches into one."
_HIDE = (
    "`pdl: true`, and `griddepcontrol.wait` (cudaGridDependencySynchronize) just before "
    "the first access to memory that others write."
)


def find_launch_overhead(profile: Profile) -> Finding | None:
    """Set the launches of a call, each at what an empty one takes, against its time."""
    launches = profile.subject.program.launches
    ordinary = sum(not launch.pdl for launch in launches)
    time_us = profile.subject.time_us
    hideable = ordinary > 0 and profile.device.compute_capability >= HOPPER
    if len(launches) <= 1 and not hideable:
        return None
    if not time_us:
        return _untimed(len(launches)) if len(launches) > 1 else None
    empty = ordinary * EMPTY_LAUNCH_US + (len(launches) - ordinary) * EMPTY_PROGRAMMATIC_US
    part = min(empty / time_us, 1.0)
    if part < LAUNCH_OVERHEAD_MOST:
        return None
    noun = "An empty launch takes" if len(launches) == 1 else f"{len(launches)} empty launches take"
    return Finding(
        topic="launch_overhead",
        text=f"{noun} about {empty:.1f} us (as on an H200), {part:.0%} of the {time_us:.2f} us "
        f"of a call.",
        advice=_advice(len(launches), hideable),
        value=round(100 * part),
        unit="%",
        # One launch has to stay.
        weight=max(
            min((empty - EMPTY_PROGRAMMATIC_US) / time_us, 1.0), LAUNCH_OVERHEAD_WEIGHT * part
        ),
    )


def _advice(launches: int, hideable: bool) -> str:
    if launches == 1:
        return f"Hide part of it: {_HIDE}"
    return f"Fuse the launches into one; else hide part of them: {_HIDE}" if hideable else _FUSE


def _untimed(launches: int) -> Finding:
    return Finding(
        topic="launch_overhead",
        text=f"A call is {launches} launches, each of which takes about {EMPTY_LAUNCH_US} us even "
        f"if empty (as on an H200); nothing was timed.",
        advice=f"{_FUSE.removesuffix('.')}, unless the call takes many times as long.",
        value=launches,
        unit="launches",
        weight=LAUNCH_OVERHEAD_WEIGHT / 2,
    )


LAUNCH_OVERHEAD_RULE = Rule(
    "launch_overhead", frozenset(Kind) - {Kind.COMPUTE}, find_launch_overhead
)


# KernelPro, arXiv 2606.26453; table 9: the mean gain of following it is 1.48x.
LOW = 0.5
OCCUPANCY_WEIGHT = 1.0 - 1.0 / 1.48
# From there on more warps have little left to fill: ours, as the roofline's bound.
BUSY_PCT = 60.0

_ADVICE = {
    "registers": "Use fewer registers: fewer elements a thread, less unrolling, or a minimum of "
    "blocks in the launch bounds; smaller blocks where a block's registers do not divide evenly.",
    "shared memory": "Use less shared memory a block: smaller tiles, fewer stages, a narrower "
    "type; or more threads on the same tile.",
    "warps": "Choose a block size that divides the multiprocessor's threads more evenly.",
    "blocks": "Use larger blocks: so many small ones are all that a multiprocessor holds.",
    "barriers": "Use fewer named barriers a block, or larger blocks.",
}


def find_occupancy(profile: Profile) -> Finding | None:
    """Fire below 50 %, unless all blocks are resident at once or the schedulers are busy."""
    occupancy, filled = profile.subject.occupancy, waves(profile)
    if occupancy is None or occupancy.blocks < 1 or occupancy.share >= LOW:
        return None
    if filled is not None and filled.count <= 1.0:
        return None
    issue = counter(profile, ISSUED)
    if issue is not None and issue >= BUSY_PCT:
        return None
    return Finding(
        topic="occupancy",
        text=f"Occupancy is {occupancy.share:.0%}{_measured(profile)}: "
        f"{_cause(profile, occupancy)} on a multiprocessor.",
        advice=_ADVICE.get(occupancy.limiter, f"Use less of what limits it: {occupancy.limiter}."),
        value=round(100 * occupancy.share),
        unit="%",
        weight=OCCUPANCY_WEIGHT * (1.0 - occupancy.share / LOW),
    )


def _measured(profile: Profile) -> str:
    active = counter(profile, ACTIVE_WARPS)
    return "" if active is None else f" ({active:.0f}% measured)"


def _cause(profile: Profile, occupancy: Occupancy) -> str:
    resources, launch = profile.subject.resources, profile.subject.program.launches[0]
    shared = resources.static_shared_bytes + launch.shared_bytes
    what = {
        "registers": f"{resources.registers} registers a thread allow",
        "shared memory": f"{shared} bytes of shared memory a block allow",
        "barriers": f"{resources.barriers} barriers a block allow",
    }.get(occupancy.limiter, "the block size allows")
    noun = "block" if occupancy.blocks == 1 else "blocks"
    return f"{what} {occupancy.blocks} {noun} of {launch.threads} threads"


OCCUPANCY_RULE = Rule("occupancy", frozenset(Kind) - {Kind.LAUNCH}, find_occupancy)


def find_tail(profile: Profile) -> Finding | None:
    """Compare the blocks of the first launch with what the multiprocessors hold."""
    filled = waves(profile)
    if filled is None:
        return None
    if filled.idle >= IDLE * filled.multiprocessors:
        return _too_few(filled)
    return _last_wave(filled) if filled.lost >= TAIL_LOSS else None


def _too_few(filled: Waves) -> Finding:
    noun = "block" if filled.blocks == 1 else "blocks"
    return Finding(
        topic="tail",
        text=f"The grid has {filled.blocks} {noun} for {filled.multiprocessors} multiprocessors: "
        f"{filled.idle} of them have nothing to do.",
        advice="Split the work into more blocks: fewer rows or elements a block, several blocks "
        "a row (joined through a cluster or atomics), or smaller blocks.",
        value=filled.idle,
        unit="multiprocessors",
        weight=0.5 * filled.idle / filled.multiprocessors,
    )


def _last_wave(filled: Waves) -> Finding:
    slots = filled.resident * filled.multiprocessors
    last = filled.blocks - slots * (math.ceil(filled.count) - 1)
    return Finding(
        topic="tail",
        text=f"The {filled.blocks} blocks are {filled.count:.2f} waves of {slots}, with {last} "
        f"blocks in the last: if all blocks take equally long, {filled.lost:.0%} of the "
        f"multiprocessors' time is lost.",
        advice="Make the blocks fill whole waves: another block size or more or less work a "
        f"block; or launch {slots} persistent blocks that loop over the work.",
        value=round(100 * filled.lost),
        unit="%",
        weight=0.8 * filled.lost,
    )


TAIL_RULE = Rule("tail", frozenset(Kind), find_tail)
