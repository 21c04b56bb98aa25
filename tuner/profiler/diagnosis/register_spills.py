"""Registers are spilled, or arrays are kept, in local memory."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import at, innermost

# KernelPro, arXiv 2606.26453, table 9: the mean gain of following it is 1.44x.
WEIGHT = 1.0 - 1.0 / 1.44


def find(profile: Profile) -> Finding | None:
    """Fire on any spill or access to local memory; in an innermost loop it weighs more."""
    resources = profile.subject.resources
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    accesses = profile.count("local_load") + profile.count("local_store")
    if not spilled and not accesses:
        return None
    mix, where = innermost(profile)
    inside = mix.get("local_load", 0) + mix.get("local_store", 0)
    line = profile.line_of("local_load") or profile.line_of("local_store")
    counted = f"{accesses} local loads and stores in the code" if accesses else ""
    if inside and where != "the code":
        counted += f", {inside} of them in {where}"
    weight = WEIGHT if inside else WEIGHT / 2
    if not spilled:
        return _stack(profile, counted, line, weight)
    told = f" ({counted}{at(line)})" if counted else ""
    return Finding(
        topic="register_spills",
        text=f"The compiler spills {spilled} bytes a thread to local memory at "
        f"{resources.registers} registers{told}.",
        advice="Keep fewer values alive at once: less unrolling, fewer elements a thread, smaller "
        "tiles; or allow more registers: smaller blocks, a lower minimum in the launch bounds.",
        value=spilled,
        unit="bytes",
        weight=weight,
        line=line,
    )


def _stack(profile: Profile, counted: str, line: int | None, weight: float) -> Finding:
    return Finding(
        topic="register_spills",
        text=f"An array of a thread is in local memory: {counted}{at(line)}; nothing is spilled.",
        advice="Index arrays with constants alone, so that they stay in registers: unroll the "
        "loops over them fully, or use shared memory where the index is only known at run time.",
        value=profile.count("local_load") + profile.count("local_store"),
        unit="instructions",
        weight=weight,
        line=line,
    )


RULE = Rule("register_spills", frozenset(Kind), find)
