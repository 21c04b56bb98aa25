"""Each diagnosis on a profile that must trigger it, with its words, and on some that must not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from profiles import MB, code, launch, profile, waits

from tuner.analysis.base import INSTRUCTION_CLASSES, Profile, Rule
from tuner.analysis.diagnosis import RULES
from tuner.analysis.diagnosis.execution import SLOTS
from tuner.analysis.metrics import (
    ACTIVE_THREADS,
    ACTIVE_WARPS,
    BYTES_PER_SECTOR,
    CONFLICTS,
    DRAM_BYTES,
    ISSUED,
    L2_HIT_RATE,
    L2_READS,
    SECTORS_PER_LOAD,
    SM_THROUGHPUT,
    WAVEFRONTS,
    counters_for,
)
from tuner.device.simulated import H200_LIKE
from tuner.model.trial import Occupancy, Resources

BY_NAME = {rule.name: rule for rule in RULES}
LOADS = code({"global_load": 52, "global_store": 4}, lines={"global_load": 31, "global_store": 40})
NARROW = code(LOADS.mix, load_bits={16: 48, 128: 4}, store_bits={128: 4}, lines=LOADS.lines)
WIDE = code(LOADS.mix, load_bits={16: 8, 128: 44}, store_bits={128: 4}, lines=LOADS.lines)
SHARED = code(lines={"shared_load": 12, "shared_store": 14})
LOW = Occupancy(0.25, 2, "registers")


EVERY_COUNTER = (
    *CONFLICTS,
    ACTIVE_THREADS,
    ACTIVE_WARPS,
    BYTES_PER_SECTOR,
    DRAM_BYTES,
    ISSUED,
    L2_HIT_RATE,
    L2_READS,
    SECTORS_PER_LOAD,
    SM_THROUGHPUT,
    WAVEFRONTS,
    *waits(long_scoreboard=1, barrier=1),
)


def conflicts(loads: float, stores: float, total: float) -> dict[str, float]:
    return {CONFLICTS[0]: loads, CONFLICTS[1]: stores, WAVEFRONTS: total}


@dataclass(frozen=True)
class Case:
    rule: str
    given: Profile
    text: str
    advice: str  # how it begins
    value: float
    unit: str
    line: int | None = None


FIRES = [
    Case(
        "redundant_traffic",
        profile(codes=[LOADS], counters={DRAM_BYTES: 840e6}),
        "840.0 MB between L2 and memory (counters, line 31) where the operator needs 420.0 MB.",
        "Read and write each byte once",
        840.0,
        "MB",
        31,
    ),
    Case(
        "redundant_traffic",
        profile(launch_counters=[{DRAM_BYTES: 400e6}, {DRAM_BYTES: 300e6}]),
        "700.0 MB between L2 and memory (counters) where the operator needs 420.0 MB.",
        "Read and write each byte once",
        700.0,
        "MB",
    ),
    Case(
        "redundant_traffic",
        profile(counters={DRAM_BYTES: 420e6, L2_READS: 1.05e9 / 32}),
        "1050.0 MB read from the L2 (counters) where the operator needs 420.0 MB.",
        "Read and write each byte once",
        1050.0,
        "MB",
    ),
    Case(
        "tail",
        profile(launches=[launch(16)]),
        "The grid has 16 blocks for 132 multiprocessors: 116 of them have nothing to do.",
        "Split the work into more blocks",
        116,
        "multiprocessors",
    ),
    Case(
        "tail",
        profile(launches=[launch(1100)]),
        "The 1100 blocks are 1.04 waves of 1056, with 44 blocks in the last: if all blocks take "
        "equally long, 48% of the multiprocessors' time is lost.",
        "Make the blocks fill whole waves: another block size or more or less work a block; or "
        "launch 1056 persistent blocks",
        48,
        "%",
    ),
    Case(
        "launch_overhead",
        profile(time_us=3.3, launches=[launch(pdl=False)]),
        "An empty launch takes about 1.1 us (as on an H200), 33% of the 3.30 us of a call.",
        "Hide part of it: `pdl: true`, and `griddepcontrol.wait`",
        33,
        "%",
    ),
    Case(
        "launch_overhead",
        profile(time_us=8.0, launches=[launch(pdl=False), launch()]),
        "2 empty launches take about 1.9 us (as on an H200), 24% of the 8.00 us of a call.",
        "Fuse the launches into one; else hide part of them: `pdl: true`",
        24,
        "%",
    ),
    Case(
        "launch_overhead",
        profile(launches=[launch(), launch(), launch()]),
        "A call is 3 launches, each of which takes about 1.1 us even if empty (as on an H200); "
        "nothing was timed.",
        "Fuse the launches into one, unless",
        3,
        "launches",
    ),
    Case(
        "register_spills",
        profile(
            resources=Resources(128, spill_store_bytes=40, spill_load_bytes=60),
            codes=[
                code(
                    {"local_load": 15, "local_store": 10},
                    loop_mix={"local_load": 15},
                    lines={"local_load": 77},
                )
            ],
        ),
        "The compiler spills 100 bytes a thread to local memory at 128 registers (25 local loads "
        "and stores in the code, 15 of them in the innermost loops, line 77).",
        "Keep fewer values alive at once",
        100,
        "bytes",
        77,
    ),
    Case(
        "register_spills",
        profile(resources=Resources(64, spill_store_bytes=8, spill_load_bytes=8)),
        "The compiler spills 16 bytes a thread to local memory at 64 registers.",
        "Keep fewer values alive at once",
        16,
        "bytes",
    ),
    Case(
        "register_spills",
        profile(codes=[code({"local_load": 4, "local_store": 2}, lines={"local_store": 20})]),
        "An array of a thread is in local memory: 6 local loads and stores in the code, line 20; "
        "nothing is spilled.",
        "Index arrays with constants alone",
        6,
        "instructions",
        20,
    ),
    Case(
        "occupancy",
        profile(occupancy=LOW, resources=Resources(128), counters={ACTIVE_WARPS: 22.4}),
        "Occupancy is 25% (22% measured): 128 registers a thread allow 2 blocks of 256 threads on "
        "a multiprocessor.",
        "Use fewer registers",
        25,
        "%",
    ),
    Case(
        "occupancy",
        profile(
            occupancy=Occupancy(0.125, 1, "shared memory"),
            resources=Resources(32, static_shared_bytes=1024),
            launches=[launch(shared_bytes=131072)],
        ),
        "Occupancy is 12%: 132096 bytes of shared memory a block allow 1 block of 256 threads on "
        "a multiprocessor.",
        "Use less shared memory a block",
        12,
        "%",
    ),
    Case(
        "occupancy",
        profile(occupancy=Occupancy(0.25, 16, "blocks"), launches=[launch(threads=32)]),
        "Occupancy is 25%: the block size allows 16 blocks of 32 threads on a multiprocessor.",
        "Use larger blocks",
        25,
        "%",
    ),
    Case(
        "coalescing",
        profile(codes=[NARROW], counters={BYTES_PER_SECTOR: 12.5, SECTORS_PER_LOAD: 31.6}),
        "Global loads use 12% of each 32-byte sector that they fetch (counters, line 31; 31.6 "
        "sectors a load of a warp).",
        "Let neighbouring threads load neighbouring addresses",
        12,
        "%",
        31,
    ),
    Case(
        "coalescing",
        profile(
            codes=[code(load_bits={32: 4}, lines={"global_load": 9})],
            counters={SECTORS_PER_LOAD: 11.8},
        ),
        "A global load of a warp takes 11.8 sectors of 32 bytes (counters, line 9) where 4 hold "
        "even the widest, 32 bits a thread.",
        "Let neighbouring threads load neighbouring addresses",
        11.8,
        "sectors",
        9,
    ),
    Case(
        "vector_width",
        profile(codes=[NARROW]),
        "Global loads are 16 bits wide (48 of 52 in the code, line 31): 2 of the 16 bytes that a "
        "thread can load at once.",
        "Load 16 bytes a thread",
        16,
        "bits",
        31,
    ),
    Case(
        "vector_width",
        profile(codes=[code(load_bits={16: 2, 32: 6, 128: 1})]),
        "Global loads are at most 32 bits wide (8 of 9 in the code): 4 of the 16 bytes that a "
        "thread can load at once.",
        "Load 16 bytes a thread",
        32,
        "bits",
    ),
    Case(
        "vector_width",
        profile(codes=[code(load_bits={128: 4}, store_bits={16: 8}, lines={"global_store": 40})]),
        "Global stores are 16 bits wide (8 of 8 in the code, line 40): 2 of the 16 bytes that a "
        "thread can store at once.",
        "Store 16 bytes a thread",
        16,
        "bits",
        40,
    ),
    Case(
        "warp_stalls",
        profile(counters=waits(long_scoreboard=13.0, wait=3.0, barrier=4.0), hot_lines=[(31, 0.6)]),
        "65% of the stalled cycles are spent waiting for loads from global or local memory "
        "(long_scoreboard, counters; 60% of the stalls, line 31).",
        "Have more loads on the way",
        65,
        "%",
        31,
    ),
    Case(
        "warp_stalls",
        profile(counters=waits(math_pipe_throttle=5.0, wait=5.0, not_selected=90.0)),
        "50% of the stalled cycles are spent waiting for a busy arithmetic unit "
        "(math_pipe_throttle, counters).",
        "Spread the arithmetic over other units",
        50,
        "%",
    ),
    Case(
        "barrier_stalls",
        profile(
            counters=waits(long_scoreboard=6.0, barrier=4.0),
            codes=[code({"barrier": 2}, lines={"barrier": 25})],
        ),
        "40% of the stalled cycles are spent at barriers (counters, line 25).",
        "Synchronize less",
        40,
        "%",
        25,
    ),
    Case(
        "barrier_stalls",
        profile(codes=[code(loop_mix={"barrier": 2, "fp32": 50, "shared_load": 22})]),
        "One of 37 instructions of the innermost loops is a barrier (2 in all, machine code); what "
        "they cost was not measured.",
        "Synchronize less",
        37,
        "instructions",
    ),
    Case(
        "barrier_stalls",
        profile(
            codes=[code({"barrier": 25, "fp32": 700}, loop_mix={"fp32": 60}, lines={"barrier": 38})]
        ),
        "One of 29 instructions of the code is a barrier (25 in all, machine code, line 38); what "
        "they cost was not measured.",
        "Synchronize less",
        29,
        "instructions",
        38,
    ),
    Case(
        "bank_conflicts",
        profile(codes=[SHARED], counters=conflicts(600.0, 100.0, 1000.0)),
        "70% of the passes over shared memory are repeats for bank conflicts, most of them of "
        "loads (counters, line 12).",
        "Give the threads of a warp different banks",
        70,
        "%",
        12,
    ),
    Case(
        "bank_conflicts",
        profile(codes=[SHARED], counters=conflicts(0.0, 500.0, 1000.0)),
        "50% of the passes over shared memory are repeats for bank conflicts, most of them of "
        "stores (counters, line 14).",
        "Give the threads of a warp different banks",
        50,
        "%",
        14,
    ),
    Case(
        "tensor_cores",
        profile(
            traffic_bytes=MB,
            operations=1000 * MB,
            codes=[code({"fp32": 256, "shared_load": 32}, lines={"fp32": 44})],
        ),
        "1000 operations a byte, and no tensor instruction among 256 floating-point ones (machine "
        "code, line 44).",
        "If the loop is a matrix product",
        1000,
        "operations a byte",
        44,
    ),
    Case(
        "divergence",
        profile(counters={ACTIVE_THREADS: 9.6}, codes=[code({"branch": 9}, lines={"branch": 18})]),
        "9.6 of 32 threads of a warp are active on average (counters; most branches are of line "
        "18).",
        "Let all threads of a warp take the same path",
        9.6,
        "threads",
        18,
    ),
    Case(
        "l2_hit_rate",
        profile(codes=[LOADS], counters={L2_HIT_RATE: 31.0, L2_READS: 4.2 * 420e6 / 32}),
        "31% of the L2's sectors are found there although 4.2 times the operator's bytes are read "
        "from it (counters, line 31).",
        "Let blocks that run together use the same data",
        31,
        "%",
        31,
    ),
    Case(
        "instruction_mix",
        profile(
            codes=[
                code(
                    {"fp32": 500},
                    loop_mix={"fp32": 40, "special": 10, "integer": 4, "global_load": 90},
                    lines={"special": 40},
                )
            ]
        ),
        "Special functions (exp, logarithm, division, square root) take about 62% of the "
        "arithmetic issue slots of the innermost loops: 10 of 54 instructions (machine code, "
        "line 40).",
        "Divide by multiplying with a reciprocal",
        62,
        "%",
        40,
    ),
    Case(
        "instruction_mix",
        profile(
            codes=[code({"fp32": 10, "integer": 30, "move": 10})], counters={SM_THROUGHPUT: 81.0}
        ),
        "Index arithmetic, comparisons and moves take about 88% of the arithmetic issue slots of "
        "the code: 40 of 50 instructions (machine code); the multiprocessors are 81% busy "
        "(counters).",
        "Compute indices once outside of the loop",
        88,
        "%",
    ),
]

QUIET = [
    ("redundant_traffic", "no counters", profile()),
    ("redundant_traffic", "near the least", profile(counters={DRAM_BYTES: 450e6})),
    (
        "redundant_traffic",
        "too few bytes for a ratio",
        profile(traffic_bytes=64_000, counters={DRAM_BYTES: 640_000.0}),
    ),
    (
        "redundant_traffic",
        "one launch was not counted",
        profile(launch_counters=[{DRAM_BYTES: 840e6}, {}]),
    ),
    ("tail", "whole waves", profile()),
    ("tail", "few without a block", profile(launches=[launch(128)])),
    ("tail", "one wave that reaches all", profile(launches=[launch(140)])),
    ("tail", "a last wave that is nearly full", profile(launches=[launch(2000)])),
    ("tail", "a block that cannot launch", profile(occupancy=Occupancy(0.0, 0, "registers"))),
    ("launch_overhead", "one programmatic launch", profile(time_us=0.9)),
    (
        "launch_overhead",
        "a long call",
        profile(time_us=100, launches=[launch(pdl=False)] * 2),
    ),
    (
        "launch_overhead",
        "nothing hides it before Hopper",
        replace(
            profile(time_us=3.3, launches=[launch(pdl=False)]),
            device=replace(H200_LIKE, compute_capability=(8, 0)),
        ),
    ),
    ("launch_overhead", "one launch, untimed", profile(launches=[launch(pdl=False)])),
    ("register_spills", "none", profile(codes=[code({"fp32": 9})])),
    ("occupancy", "half", profile(occupancy=Occupancy(0.5, 4, "registers"))),
    ("occupancy", "all blocks are resident", profile(occupancy=LOW, launches=[launch(264)])),
    ("occupancy", "busy schedulers", profile(occupancy=LOW, counters={ISSUED: 70.0})),
    ("coalescing", "no counters", profile(codes=[NARROW])),
    ("coalescing", "full sectors", profile(codes=[NARROW], counters={BYTES_PER_SECTOR: 97.0})),
    (
        "coalescing",
        "wide loads take many sectors",
        profile(codes=[WIDE], counters={SECTORS_PER_LOAD: 15.8}),
    ),
    ("coalescing", "no code to compare with", profile(counters={SECTORS_PER_LOAD: 15.8})),
    ("vector_width", "mostly wide", profile(codes=[WIDE])),
    ("vector_width", "no code", profile()),
    (
        "vector_width",
        "bulk copies",
        profile(codes=[code({"bulk_copy": 2}, load_bits={32: 3})]),
    ),
    ("warp_stalls", "no counters", profile()),
    ("warp_stalls", "none dominates", profile(counters=waits(wait=3, barrier=3, drain=3))),
    ("warp_stalls", "barriers have their own", profile(counters=waits(wait=3, barrier=9))),
    ("barrier_stalls", "few", profile(counters=waits(wait=8, barrier=2))),
    ("barrier_stalls", "few outside of loops", profile(codes=[code({"barrier": 2, "fp32": 9})])),
    (
        "barrier_stalls",
        "a long loop",
        profile(codes=[code(loop_mix={"barrier": 1, "fp32": 200})]),
    ),
    (
        "barrier_stalls",
        "counters outweigh the code",
        profile(codes=[code(loop_mix={"barrier": 2, "fp32": 9})], counters=waits(wait=9)),
    ),
    ("bank_conflicts", "no counters", profile(codes=[SHARED])),
    ("bank_conflicts", "few", profile(counters=conflicts(50.0, 50.0, 1000.0))),
    ("bank_conflicts", "no shared memory", profile(counters=conflicts(0.0, 0.0, 0.0))),
    ("bank_conflicts", "more than passes", profile(counters=conflicts(900.0, 200.0, 1000.0))),
    (
        "tensor_cores",
        "they are used",
        profile(traffic_bytes=MB, operations=9000 * MB, codes=[code({"tensor": 64, "fp32": 9})]),
    ),
    (
        "tensor_cores",
        "few operations a byte",
        profile(operations=420 * MB, codes=[code({"fp32": 256})]),
    ),
    ("tensor_cores", "no code", profile(traffic_bytes=MB, operations=1000 * MB)),
    ("tensor_cores", "none declared", profile(traffic_bytes=MB, codes=[code({"fp32": 256})])),
    ("divergence", "no counters", profile(codes=[code({"branch": 50})])),
    ("divergence", "nearly full warps", profile(counters={ACTIVE_THREADS: 29.0})),
    (
        "l2_hit_rate",
        "a stream needs no hits",
        profile(counters={L2_HIT_RATE: 20.0, L2_READS: 210e6 / 32}),
    ),
    (
        "l2_hit_rate",
        "found",
        profile(counters={L2_HIT_RATE: 80.0, L2_READS: 4.2 * 420e6 / 32}),
    ),
    ("l2_hit_rate", "no counters", profile(codes=[LOADS])),
    ("instruction_mix", "arithmetic", profile(codes=[code({"fp32": 60, "integer": 20})])),
    ("instruction_mix", "too short to tell", profile(codes=[code({"special": 3})])),
    (
        "instruction_mix",
        "idle multiprocessors",
        profile(codes=[code({"special": 30})], counters={SM_THROUGHPUT: 12.0}),
    ),
]


@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.rule)
def test_a_diagnosis_says_what_it_saw_and_what_to_change(case: Case) -> None:
    found = BY_NAME[case.rule].find(case.given)
    assert found is not None
    assert found.text == case.text
    assert found.advice.startswith(case.advice)
    assert (found.topic, found.value, found.unit) == (case.rule, case.value, case.unit)
    assert (found.line, found.parameter) == (case.line, "")
    assert 0.0 < found.weight <= 1.0


@pytest.mark.parametrize(
    ("rule", "given"),
    [(rule, given) for rule, _, given in QUIET],
    ids=[f"{rule}: {why}" for rule, why, _ in QUIET],
)
def test_a_diagnosis_is_silent_where_its_evidence_shows_nothing(rule: str, given: Profile) -> None:
    assert BY_NAME[rule].find(given) is None


def test_every_diagnosis_is_tried_both_ways() -> None:
    assert {case.rule for case in FIRES} == {rule for rule, _, _ in QUIET} == set(BY_NAME)


def test_the_worse_the_evidence_the_more_it_weighs() -> None:
    def weight(share: float) -> float:
        found = BY_NAME["coalescing"].find(profile(counters={BYTES_PER_SECTOR: share}))
        return found.weight if found else 0.0

    assert weight(12.5) > weight(50.0) > weight(90.0) == 0.0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_counters_without_a_value_trigger_nothing(rule: Rule) -> None:
    nothing = dict.fromkeys(EVERY_COUNTER, math.nan)
    assert rule.find(profile(counters=nothing)) is None


class Spied(dict):
    """A dictionary that remembers what it was asked for."""

    def __init__(self, content: Mapping[str, float], asked: set[str]) -> None:
        super().__init__(content)
        self.asked = asked

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.rule)
def test_every_counter_that_is_asked_for_is_counted_and_every_class_exists(case: Case) -> None:
    counters: set[str] = set()
    classes: set[str] = set()
    codes = tuple(
        replace(one, mix=Spied(one.mix, classes), lines=Spied(one.lines, classes))
        for one in case.given.codes
    )
    spied = Spied(case.given.counters, counters)
    BY_NAME[case.rule].find(replace(case.given, counters=spied, codes=codes))
    assert counters <= set(counters_for((9, 0)))
    assert classes <= set(INSTRUCTION_CLASSES)


def test_the_classes_that_the_instruction_mix_weighs_exist() -> None:
    assert set(SLOTS) <= set(INSTRUCTION_CLASSES)
