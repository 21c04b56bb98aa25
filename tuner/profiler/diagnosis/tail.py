"""The grid leaves multiprocessors idle: too few blocks, or a last wave with few in it."""

from __future__ import annotations

import math

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import Waves, waves
from tuner.profiler.roofline import IDLE, TAIL_LOSS


def find(profile: Profile) -> Finding | None:
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


RULE = Rule("tail", frozenset(Kind), find)
