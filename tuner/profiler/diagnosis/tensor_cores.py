"""Much arithmetic, and none of it on the tensor cores."""

from __future__ import annotations

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import at
from tuner.profiler.roofline import theory

# KernelPro, arXiv 2606.26453, table 9: the mean gain of following it is 1.31x.
WEIGHT = 1.0 - 1.0 / 1.31


def find(profile: Profile) -> Finding | None:
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
        weight=WEIGHT,
        line=line,
    )


RULE = Rule("tensor_cores", frozenset({Kind.COMPUTE, Kind.LATENCY, Kind.TAIL}), find)
