"""Few warps are resident, and something can be done about what limits them."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import ACTIVE_WARPS, counter, waves
from tuner.profiler.metrics import ISSUED
from tuner.trial import Occupancy

# KernelPro, arXiv 2606.26453; table 9: the mean gain of following it is 1.48x.
LOW = 0.5
WEIGHT = 1.0 - 1.0 / 1.48
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


def find(profile: Profile) -> Finding | None:
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
        weight=WEIGHT * (1.0 - occupancy.share / LOW),
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


RULE = Rule("occupancy", frozenset(Kind) - {Kind.LAUNCH}, find)
