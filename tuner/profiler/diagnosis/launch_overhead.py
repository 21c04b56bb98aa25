"""Launching takes much of the time."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.roofline import EMPTY_LAUNCH_US, EMPTY_PROGRAMMATIC_US

# KernelPro, arXiv 2606.26453.
MOST = 0.2
# The mean gain of following it, ibid., table 9: 1.32x.
WEIGHT = 1.0 - 1.0 / 1.32
# Only from there on is there programmatic dependent launch.
HOPPER = (9, 0)

_FUSE = "Fuse the launches into one."
_HIDE = (
    "`programmatic: true`, and `griddepcontrol.wait` (cudaGridDependencySynchronize) just before "
    "the first access to memory that others write."
)


def find(profile: Profile) -> Finding | None:
    """Set the launches of a call, each at what an empty one takes, against its time."""
    launches = profile.subject.program.launches
    ordinary = sum(not launch.programmatic for launch in launches)
    time_us = profile.subject.time_us
    hideable = ordinary > 0 and profile.device.compute_capability >= HOPPER
    if len(launches) <= 1 and not hideable:
        return None
    if not time_us:
        return _untimed(len(launches)) if len(launches) > 1 else None
    empty = ordinary * EMPTY_LAUNCH_US + (len(launches) - ordinary) * EMPTY_PROGRAMMATIC_US
    part = min(empty / time_us, 1.0)
    if part < MOST:
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
        weight=max(min((empty - EMPTY_PROGRAMMATIC_US) / time_us, 1.0), WEIGHT * part),
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
        weight=WEIGHT / 2,
    )


RULE = Rule("launch_overhead", frozenset(Kind) - {Kind.COMPUTE}, find)
