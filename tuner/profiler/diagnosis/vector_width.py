"""Global memory is accessed in narrow pieces."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.findings import Finding
from tuner.profiler.base import Kind, Profile, Rule
from tuner.profiler.evidence import at

# A thread can load 128 bits at once on every GPU that is known here.
NARROW_BITS = 32
# Ours: a few narrow accesses beside wide ones are indices and remainders.
MOST = 0.5
# KernelPro, arXiv 2606.26453, table 9: the mean gain of following it is 1.16x.
WEIGHT = 1.0 - 1.0 / 1.16


def find(profile: Profile) -> Finding | None:
    """Fire where half of the loads, or else of the stores, in the code are 32 bits or less.

    Silent where the code copies in bulk (TMA): its few other loads are not what counts.
    """
    if profile.count("bulk_copy"):
        return None
    loads, stores = _total(profile, "load"), _total(profile, "store")
    return _judge(profile, "load", loads) or _judge(profile, "store", stores)


def _total(profile: Profile, access: str) -> Mapping[int, int]:
    total: dict[int, int] = {}
    for code in profile.codes:
        for bits, count in (code.load_bits if access == "load" else code.store_bits).items():
            total[bits] = total.get(bits, 0) + count
    return total


def _judge(profile: Profile, access: str, by_bits: Mapping[int, int]) -> Finding | None:
    narrow = {bits: count for bits, count in by_bits.items() if bits <= NARROW_BITS}
    few, every = sum(narrow.values()), sum(by_bits.values())
    if not few or few < MOST * every:
        return None
    widest = max(narrow)
    width = f"{widest} bits wide" if len(narrow) == 1 else f"at most {widest} bits wide"
    line = profile.line_of(f"global_{access}")
    return Finding(
        topic="vector_width",
        text=f"Global {access}s are {width} ({few} of {every} in the code{at(line)}): "
        f"{widest // 8} of the 16 bytes that a thread can {access} at once.",
        advice=f"{access.capitalize()} 16 bytes a thread where its elements are neighbours: one "
        f"uint4, 8 of 16 bits or 4 of 32, aligned to 16 bytes; consecutive threads take "
        f"consecutive pieces.",
        value=widest,
        unit="bits",
        weight=WEIGHT * few / every * (1.5 if widest < NARROW_BITS else 1.0),
        line=line,
    )


RULE = Rule("vector_width", frozenset({Kind.MEMORY, Kind.LATENCY, Kind.TAIL}), find)
