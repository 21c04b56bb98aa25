"""Diagnoses of how a kernel uses memory: what it moves, how wide, and where it has to wait."""

from __future__ import annotations

from collections import Counter

from tuner.analysis.base import Profile
from tuner.analysis.diagnosis.advice import TOPICS, finding
from tuner.analysis.metrics import (
    BYTES_PER_SECTOR,
    CONFLICTS,
    DRAM_BYTES,
    L2_HIT_RATE,
    L2_READS,
    SECTOR_BYTES,
    SECTORS_PER_LOAD,
    THREADS_PER_WARP,
    WAVEFRONTS,
    at,
    counter,
    executed_mix,
    innermost,
    stalls,
    sum_counter,
)
from tuner.analysis.roofline import is_at_floor
from tuner.model.trial import Finding

# Sources: KernelPro is arXiv 2606.26453, its table 9 the mean gain of following each advice; "ours"
# was chosen here.

# KernelPro: 1.2 times the ideal number of sectors; the same for bytes and for bank conflicts.
MAX_OVER_IDEAL = 1.2
# Ours: reading everything once more from the L2 costs less than from memory.
MAX_L2_READS = 2.0
# Below that code, arguments and what else a launch fetches blur the ratio.
MIN_EXTRA_BYTES = 1 << 20
# Ours: with a lower hit rate more is fetched from memory than is found, and with less reading again
# there is little that could be found.
MIN_L2_HIT_PCT = 50.0
MIN_L2_REREAD = 1.5
# A thread can load 128 bits at once on every GPU that is known here.
NARROW_BITS = 32
# Ours: a few narrow accesses beside wide ones are indices and remainders.
MIN_NARROW_SHARE = 0.5
# Ours: of the accesses that ran, those of one kind that are fewer are once a block, or remainders.
MIN_EXECUTED_SHARE = 0.05
VECTOR_WIDTH_WEIGHT = 1.0 - 1.0 / 1.16  # KernelPro, table 9
SPILLS_WEIGHT = 1.0 - 1.0 / 1.44  # KernelPro, table 9
# Where shared memory makes warps wait, and the share of stalls that is assumed where it is unknown.
SHARED_WAITS = ("short_scoreboard", "mio_throttle")
UNKNOWN_WAITING = 0.5


def redundant_traffic(profile: Profile) -> Finding | None:
    """Compare the bytes that moved with the fewest that the operator declares."""
    least, line = profile.subject.traffic_bytes, profile.line_of("global_load")
    sectors = sum_counter(profile, L2_READS)
    for what, moved, most, weight in (
        ("between L2 and memory", sum_counter(profile, DRAM_BYTES), MAX_OVER_IDEAL, 0.8),
        (
            "read from the L2",
            None if sectors is None else sectors * SECTOR_BYTES,
            MAX_L2_READS,
            0.4,
        ),
    ):
        if moved is not None and moved - most * least >= MIN_EXTRA_BYTES:
            return finding(
                "redundant_traffic",
                f"{moved / 1e6:.1f} MB {what} (counters{at(line)}) where the operator needs "
                f"{least / 1e6:.1f} MB.",
                (round(moved / 1e6, 1), "MB"),
                weight * (1.0 - least / moved),
                line,
            )
    return None


def register_spills(profile: Profile) -> Finding | None:
    """Fire on any spill or access to local memory; in an innermost loop it weighs more."""
    resources = profile.subject.resources
    spilled = resources.spill_bytes
    accesses = profile.count("local_load") + profile.count("local_store")
    if not spilled and not accesses:
        return None
    mix, where = innermost(profile)
    inside = mix.get("local_load", 0) + mix.get("local_store", 0)
    line = profile.line_of("local_load") or profile.line_of("local_store")
    counted = f"{accesses} local loads and stores in the code" if accesses else ""
    if inside and where != "the code":
        counted += f", {inside} of them in {where}"
    places = f" ({counted}{at(line)})" if counted else ""
    text = f"An array of a thread is in local memory: {counted}{at(line)}; nothing is spilled."
    if spilled:
        text = (
            f"The compiler spills {spilled} bytes a thread to local memory at "
            f"{resources.registers} registers{places}."
        )
    return finding(
        "register_spills",
        text,
        (spilled, "bytes") if spilled else (accesses, "instructions"),
        SPILLS_WEIGHT if inside else SPILLS_WEIGHT / 2,
        line,
        TOPICS["register_spills" if spilled else "local_array"],
    )


def coalescing(profile: Profile) -> Finding | None:
    """Fire on counters alone: machine code does not show addresses.

    The share of each sector that is used tells directly. Without it, sectors per request are set
    against what the widest load in the code needs, which is the most that can be needed.
    """
    used, sectors = counter(profile, BYTES_PER_SECTOR), counter(profile, SECTORS_PER_LOAD)
    widest = max((bits for code in profile.codes for bits in code.load_bits), default=None)
    line = profile.line_of("global_load")
    measured: tuple[float, str]
    if used is not None:
        besides = "" if sectors is None else f"; {sectors:.1f} sectors a load of a warp"
        text = (
            f"Global loads use {used:.0f}% of each {SECTOR_BYTES}-byte sector that they fetch "
            f"(counters{at(line)}{besides})."
        )
        measured, needed = (round(used), "%"), used / 100.0
    elif sectors is not None and widest is not None:
        ideal = max(THREADS_PER_WARP * widest / 8 / SECTOR_BYTES, 1.0)
        text = (
            f"A global load of a warp takes {sectors:.1f} sectors of {SECTOR_BYTES} bytes "
            f"(counters{at(line)}) where {ideal:.0f} hold even the widest, {widest} bits a thread."
        )
        measured, needed = (round(sectors, 1), "sectors"), ideal / sectors if sectors else 1.0
    else:
        return None
    if not 0.0 < needed < 1.0 / MAX_OVER_IDEAL:
        return None
    return finding("coalescing", text, measured, 0.5 * (1.0 - needed), line)


def vector_width(profile: Profile) -> Finding | None:
    """Fire where half of the loads, or else of the stores, in the code are 32 bits or less.

    Silent where the code copies in bulk (TMA), for its few other loads are not what counts; at the
    floor; and of loads, or stores, that were counted and hardly ran.
    """
    if profile.count("bulk_copy") or is_at_floor(profile):
        return None
    loads, stores = Counter[int](), Counter[int]()
    for code in profile.codes:
        loads.update(code.load_bits)
        stores.update(code.store_bits)
    return _narrow(profile, "load", loads) or _narrow(profile, "store", stores)


def _narrow(profile: Profile, access: str, by_bits: Counter[int]) -> Finding | None:
    narrow = {bits: count for bits, count in by_bits.items() if bits <= NARROW_BITS}
    few, every = sum(narrow.values()), by_bits.total()
    if not few or few < MIN_NARROW_SHARE * every:
        return None
    ran = executed_mix(profile)
    ran_by = {
        kind: sum(ran.get(f"{space}_{kind}", 0) for space in ("global", "generic"))
        for kind in ("load", "store")
    }
    if ran and ran_by[access] < MIN_EXECUTED_SHARE * sum(ran_by.values()):
        return None
    widest = max(narrow)
    width = f"{widest} bits wide" if len(narrow) == 1 else f"at most {widest} bits wide"
    line = profile.line_of(f"global_{access}")
    return finding(
        "vector_width",
        f"Global {access}s are {width} ({few} of {every} in the code{at(line)}): "
        f"{widest // 8} of the 16 bytes that a thread can {access} at once.",
        (widest, "bits"),
        VECTOR_WIDTH_WEIGHT * few / every * (1.5 if widest < NARROW_BITS else 1.0),
        line,
        TOPICS["vector_width"].format(Access=access.capitalize()),
    )


def bank_conflicts(profile: Profile) -> Finding | None:
    """Fire on counters alone: machine code does not show addresses."""
    total = counter(profile, WAVEFRONTS)
    loads, stores = (counter(profile, name) for name in CONFLICTS)
    if not total or loads is None or stores is None:
        return None
    extra = loads + stores
    if extra >= total or total <= MAX_OVER_IDEAL * (total - extra):
        # More conflicts than wavefronts: the counter also counts what others made wait.
        return None
    access = "load" if loads >= stores else "store"
    line = profile.line_of(f"shared_{access}")
    shares = stalls(profile)
    waiting = sum(shares.get(name, 0.0) for name in SHARED_WAITS) if shares else UNKNOWN_WAITING
    part = extra / total
    return finding(
        "bank_conflicts",
        f"{part:.0%} of the passes over shared memory are repeats for bank conflicts, most of "
        f"them of {access}s (counters{at(line)}).",
        (round(100 * part), "%"),
        part * waiting,
        line,
    )


def l2_hit_rate(profile: Profile) -> Finding | None:
    """Fire on counters alone, where data is read again (streams need no hits), off the floor."""
    hits, sectors = counter(profile, L2_HIT_RATE), sum_counter(profile, L2_READS)
    least = profile.subject.traffic_bytes
    if hits is None or sectors is None or not least or hits >= MIN_L2_HIT_PCT:
        return None
    if is_at_floor(profile):
        return None
    times = sectors * SECTOR_BYTES / least
    if times < MIN_L2_REREAD:
        return None
    line = profile.line_of("global_load")
    return finding(
        "l2_hit_rate",
        f"{hits:.0f}% of the L2's sectors are found there although {times:.1f} times the "
        f"operator's bytes are read from it (counters{at(line)}).",
        (round(hits), "%"),
        0.5 * (1.0 - hits / 100.0) * (1.0 - 1.0 / times),
        line,
    )
