"""Diagnoses of how a kernel uses memory: what it moves, how wide, and where it has to wait."""

from __future__ import annotations

from collections import Counter

from tuner.analysis.base import Profile
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
    innermost,
    stalls,
    summed,
)
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
VECTOR_WIDTH_WEIGHT = 1.0 - 1.0 / 1.16  # KernelPro, table 9
SPILLS_WEIGHT = 1.0 - 1.0 / 1.44  # KernelPro, table 9
# Where shared memory makes warps wait, and the share of stalls that is assumed where it is unknown.
SHARED_WAITS = ("short_scoreboard", "mio_throttle")
UNKNOWN_WAITING = 0.5


def redundant_traffic(profile: Profile) -> Finding | None:
    """Compare the bytes that moved with the fewest that the operator declares."""
    least = profile.subject.traffic_bytes
    moved = summed(profile, DRAM_BYTES)
    if moved is not None and moved - MAX_OVER_IDEAL * least >= MIN_EXTRA_BYTES:
        return _traffic(profile, "between L2 and memory", moved, 0.8)
    sectors = summed(profile, L2_READS)
    if sectors is not None and sectors * SECTOR_BYTES - MAX_L2_READS * least >= MIN_EXTRA_BYTES:
        return _traffic(profile, "read from the L2", sectors * SECTOR_BYTES, 0.4)
    return None


def _traffic(profile: Profile, what: str, moved: float, weight: float) -> Finding:
    least = profile.subject.traffic_bytes
    line = profile.line_of("global_load")
    return Finding(
        topic="redundant_traffic",
        text=f"{moved / 1e6:.1f} MB {what} (counters{at(line)}) where the operator needs "
        f"{least / 1e6:.1f} MB.",
        advice="Read and write each byte once: keep what is used again in registers or shared "
        "memory, merge passes over the same data, and let blocks share what they all read.",
        value=round(moved / 1e6, 1),
        unit="MB",
        weight=weight * (1.0 - least / moved),
        line=line,
    )


def register_spills(profile: Profile) -> Finding | None:
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
    told = f" ({counted}{at(line)})" if counted else ""
    if spilled:
        text = (
            f"The compiler spills {spilled} bytes a thread to local memory at "
            f"{resources.registers} registers{told}."
        )
        advice = (
            "Keep fewer values alive at once: less unrolling, fewer elements a thread, smaller "
            "tiles; or allow more registers: smaller blocks, a lower minimum in the launch bounds."
        )
    else:
        text = f"An array of a thread is in local memory: {counted}{at(line)}; nothing is spilled."
        advice = (
            "Index arrays with constants alone, so that they stay in registers: unroll the loops "
            "over them fully, or use shared memory where the index is only known at run time."
        )
    return Finding(
        topic="register_spills",
        text=text,
        advice=advice,
        value=spilled or accesses,
        unit="bytes" if spilled else "instructions",
        weight=SPILLS_WEIGHT if inside else SPILLS_WEIGHT / 2,
        line=line,
    )


def coalescing(profile: Profile) -> Finding | None:
    """Fire on counters alone: machine code does not show addresses.

    The share of each sector that is used tells directly. Without it, sectors per request are set
    against what the widest load in the code needs, which is the most that can be needed.
    """
    used, sectors = counter(profile, BYTES_PER_SECTOR), counter(profile, SECTORS_PER_LOAD)
    widest = max((bits for code in profile.codes for bits in code.load_bits), default=None)
    line = profile.line_of("global_load")
    if used is not None:
        if not 0.0 < used < 100.0 / MAX_OVER_IDEAL:
            return None
        besides = "" if sectors is None else f"; {sectors:.1f} sectors a load of a warp"
        text = (
            f"Global loads use {used:.0f}% of each {SECTOR_BYTES}-byte sector that they fetch "
            f"(counters{at(line)}{besides})."
        )
        value: float = round(used)
        unit, needed = "%", used / 100.0
    else:
        if sectors is None or widest is None:
            return None
        ideal = max(THREADS_PER_WARP * widest / 8 / SECTOR_BYTES, 1.0)
        if sectors <= MAX_OVER_IDEAL * ideal:
            return None
        text = (
            f"A global load of a warp takes {sectors:.1f} sectors of {SECTOR_BYTES} bytes "
            f"(counters{at(line)}) where {ideal:.0f} hold even the widest, {widest} bits a thread."
        )
        value, unit, needed = round(sectors, 1), "sectors", ideal / sectors
    return Finding(
        topic="coalescing",
        text=text,
        advice="Let neighbouring threads load neighbouring addresses: index by threadIdx.x along "
        "the contiguous axis, aligned to the width of the load; or stage the tile through shared "
        "memory.",
        value=value,
        unit=unit,
        weight=0.5 * (1.0 - needed),
        line=line,
    )


def vector_width(profile: Profile) -> Finding | None:
    """Fire where half of the loads, or else of the stores, in the code are 32 bits or less.

    Silent where the code copies in bulk (TMA): its few other loads are not what counts.
    """
    if profile.count("bulk_copy"):
        return None
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    for code in profile.codes:
        loads.update(code.load_bits)
        stores.update(code.store_bits)
    return _narrow(profile, "load", loads) or _narrow(profile, "store", stores)


def _narrow(profile: Profile, access: str, by_bits: Counter[int]) -> Finding | None:
    narrow = {bits: count for bits, count in by_bits.items() if bits <= NARROW_BITS}
    few, every = sum(narrow.values()), by_bits.total()
    if not few or few < MIN_NARROW_SHARE * every:
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
        weight=VECTOR_WIDTH_WEIGHT * few / every * (1.5 if widest < NARROW_BITS else 1.0),
        line=line,
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
    of_loads = loads >= stores
    line = profile.line_of("shared_load" if of_loads else "shared_store")
    shares = stalls(profile)
    waiting = sum(shares.get(name, 0.0) for name in SHARED_WAITS) if shares else UNKNOWN_WAITING
    part = extra / total
    return Finding(
        topic="bank_conflicts",
        text=f"{part:.0%} of the passes over shared memory are repeats for bank conflicts, most of "
        f"them of {'loads' if of_loads else 'stores'} (counters{at(line)}).",
        advice="Give the threads of a warp different banks: pad the rows of the tile by 4 bytes "
        "(16 where accesses are 16 bytes wide), or swizzle the column with the row's low bits.",
        value=round(100 * part),
        unit="%",
        weight=part * waiting,
        line=line,
    )


def l2_hit_rate(profile: Profile) -> Finding | None:
    """Fire on counters alone, and only where data is read again: streams need no hits."""
    hits, sectors = counter(profile, L2_HIT_RATE), summed(profile, L2_READS)
    least = profile.subject.traffic_bytes
    if hits is None or sectors is None or not least or hits >= MIN_L2_HIT_PCT:
        return None
    times = sectors * SECTOR_BYTES / least
    if times < MIN_L2_REREAD:
        return None
    line = profile.line_of("global_load")
    return Finding(
        topic="l2_hit_rate",
        text=f"{hits:.0f}% of the L2's sectors are found there although {times:.1f} times the "
        f"operator's bytes are read from it (counters{at(line)}).",
        advice="Let blocks that run together use the same data: order them in groups (swizzle the "
        "block index), so that the L2 still has what they share; use __ldcs for once-only data.",
        value=round(hits),
        unit="%",
        weight=0.5 * (1.0 - hits / 100.0) * (1.0 - 1.0 / times),
        line=line,
    )
