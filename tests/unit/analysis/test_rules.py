"""Each diagnosis on a profile that must trigger it, with its words, and on some that must not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from profiles import MB, code, launch, profile, waits

from tests.support.simulated_device import H200_LIKE
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


# What each says is in data/findings.txt, in this order.
FIRES = [
    ("redundant_traffic", profile(codes=[LOADS], counters={DRAM_BYTES: 840e6})),
    ("redundant_traffic", profile(launch_counters=[{DRAM_BYTES: 400e6}, {DRAM_BYTES: 300e6}])),
    ("redundant_traffic", profile(counters={DRAM_BYTES: 420e6, L2_READS: 1.05e9 / 32})),
    ("tail", profile(launches=[launch(16)])),
    ("tail", profile(launches=[launch(1100)])),
    ("launch_overhead", profile(time_us=2.0, launches=[launch(pdl=False)])),
    ("launch_overhead", profile(time_us=4.8, launches=[launch(pdl=False), launch()])),
    ("launch_overhead", profile(launches=[launch(), launch(), launch()])),
    ("block_rate", profile(time_us=200.0, launches=[launch(200_000, 64), launch(60_000)])),
    (
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
    ),
    ("register_spills", profile(resources=Resources(64, spill_store_bytes=8, spill_load_bytes=8))),
    (
        "register_spills",
        profile(codes=[code({"local_load": 4, "local_store": 2}, lines={"local_store": 20})]),
    ),
    ("occupancy", profile(occupancy=LOW, resources=Resources(128), counters={ACTIVE_WARPS: 22.4})),
    (
        "occupancy",
        profile(
            occupancy=Occupancy(0.125, 1, "shared memory"),
            resources=Resources(32, static_shared_bytes=1024),
            launches=[launch(shared_bytes=131072)],
        ),
    ),
    ("occupancy", profile(occupancy=Occupancy(0.25, 16, "blocks"), launches=[launch(threads=32)])),
    (
        "cliff",
        profile(
            occupancy=Occupancy(0.375, 3, "registers"),
            resources=Resources(65),
            counters={ISSUED: 60.0, **waits(short_scoreboard=54, wait=40, barrier=6)},
        ),
    ),
    (
        "cliff",
        profile(
            occupancy=Occupancy(0.375, 3, "shared memory"),
            resources=Resources(32, static_shared_bytes=1024),
            launches=[launch(shared_bytes=57 * 1024), launch(1)],
        ),
    ),
    (
        "cliff",
        profile(occupancy=Occupancy(0.6875, 2, "warps"), launches=[launch(threads=704)]),
    ),
    (
        "coalescing",
        profile(codes=[NARROW], counters={BYTES_PER_SECTOR: 12.5, SECTORS_PER_LOAD: 31.6}),
    ),
    (
        "coalescing",
        profile(
            codes=[code(load_bits={32: 4}, lines={"global_load": 9})],
            counters={SECTORS_PER_LOAD: 11.8},
        ),
    ),
    ("vector_width", profile(codes=[NARROW])),
    ("vector_width", profile(codes=[code(load_bits={16: 2, 32: 6, 128: 1})])),
    (
        "vector_width",
        profile(codes=[code(load_bits={128: 4}, store_bits={16: 8}, lines={"global_store": 40})]),
    ),
    (
        "warp_stalls",
        profile(counters=waits(long_scoreboard=13.0, wait=3.0, barrier=4.0), hot_lines=[(31, 0.6)]),
    ),
    (
        "warp_stalls",
        profile(occupancy=Occupancy(0.75, 6, "registers"), counters=waits(long_scoreboard=13.0)),
    ),
    ("warp_stalls", profile(counters=waits(math_pipe_throttle=5.0, wait=5.0, not_selected=90.0))),
    (
        "barrier_stalls",
        profile(
            counters=waits(long_scoreboard=6.0, barrier=4.0),
            codes=[code({"barrier": 2}, lines={"barrier": 25})],
        ),
    ),
    (
        "barrier_stalls",
        profile(codes=[code(loop_mix={"barrier": 2, "fp32": 50, "shared_load": 22})]),
    ),
    (
        "barrier_stalls",
        profile(
            codes=[code({"barrier": 25, "fp32": 700}, loop_mix={"fp32": 60}, lines={"barrier": 38})]
        ),
    ),
    ("bank_conflicts", profile(codes=[SHARED], counters=conflicts(600.0, 100.0, 1000.0))),
    ("bank_conflicts", profile(codes=[SHARED], counters=conflicts(0.0, 500.0, 1000.0))),
    (
        "tensor_cores",
        profile(
            traffic_bytes=MB,
            operations=1000 * MB,
            codes=[code({"fp32": 256, "shared_load": 32}, lines={"fp32": 44})],
        ),
    ),
    (
        "serialized_wgmma",
        profile(
            resources=Resources(168, serialized_wgmma="insufficient register resources"),
            codes=[code({"tensor": 32}, lines={"tensor": 31})],
        ),
    ),
    (
        "divergence",
        profile(counters={ACTIVE_THREADS: 9.6}, codes=[code({"branch": 9}, lines={"branch": 18})]),
    ),
    (
        "l2_hit_rate",
        profile(codes=[LOADS], counters={L2_HIT_RATE: 31.0, L2_READS: 4.2 * 420e6 / 32}),
    ),
    (
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
    ),
    (
        "instruction_mix",
        profile(
            codes=[code({"fp32": 10, "integer": 30, "move": 10})], counters={SM_THROUGHPUT: 81.0}
        ),
    ),
    (
        "instruction_mix",
        profile(
            codes=[
                code(
                    loop_mix={"integer": 40},
                    lines={"integer": 17},
                    executed_lines={
                        (17, "integer"): 100,
                        (57, "integer"): 300,
                        (57, "move"): 200,
                        (60, "fp32"): 400,
                    },
                )
            ],
            counters={ISSUED: 60.0, SM_THROUGHPUT: 61.0},
        ),
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
            profile(time_us=2.0, launches=[launch(pdl=False)]),
            device=replace(H200_LIKE, compute_capability=(8, 0)),
        ),
    ),
    ("launch_overhead", "one launch, untimed", profile(launches=[launch(pdl=False)])),
    ("block_rate", "much to do", profile(time_us=200.0, launches=[launch(100_000)])),
    ("block_rate", "untimed", profile(launches=[launch(260_000)])),
    ("register_spills", "none", profile(codes=[code({"fp32": 9})])),
    ("serialized_wgmma", "none", profile(codes=[code({"tensor": 32})])),
    ("occupancy", "half", profile(occupancy=Occupancy(0.5, 4, "registers"))),
    ("occupancy", "all blocks are resident", profile(occupancy=LOW, launches=[launch(264)])),
    ("occupancy", "busy schedulers", profile(occupancy=LOW, counters={ISSUED: 70.0})),
    ("cliff", "far from the next step", profile(occupancy=LOW, resources=Resources(96))),
    ("cliff", "as many as there can be", profile(resources=Resources(32))),
    (
        "cliff",
        "all blocks are resident",
        profile(occupancy=LOW, resources=Resources(65), launches=[launch(264)]),
    ),
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
    (
        "vector_width",
        "a store once a block",
        profile(
            codes=[
                code(
                    load_bits={128: 4},
                    store_bits={32: 1},
                    executed_lines={(31, "global_load"): 9000, (40, "global_store"): 8},
                )
            ]
        ),
    ),
    ("vector_width", "at the floor", profile(time_us=104.0, codes=[NARROW])),
    ("warp_stalls", "no counters", profile()),
    (
        "warp_stalls",
        "loads at the floor",
        profile(time_us=104.0, counters=waits(long_scoreboard=13.0, wait=3.0)),
    ),
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
    (
        "l2_hit_rate",
        "at the floor",
        profile(time_us=104.0, counters={L2_HIT_RATE: 31.0, L2_READS: 4.2 * 420e6 / 32}),
    ),
    ("l2_hit_rate", "no counters", profile(codes=[LOADS])),
    (
        "instruction_mix",
        "memory waits, half busy",
        profile(
            codes=[code({"fp32": 10, "integer": 30, "move": 10})],
            counters={SM_THROUGHPUT: 50.0, **waits(long_scoreboard=8, wait=2)},
        ),
    ),
    ("instruction_mix", "arithmetic", profile(codes=[code({"fp32": 60, "integer": 20})])),
    ("instruction_mix", "too short to tell", profile(codes=[code({"special": 3})])),
    (
        "instruction_mix",
        "idle multiprocessors",
        profile(codes=[code({"special": 30})], counters={SM_THROUGHPUT: 12.0}),
    ),
]


SAID = (Path(__file__).parent / "data" / "findings.txt").read_text("utf-8").split("\n\n")


@pytest.mark.parametrize(
    ("rule", "given", "said"),
    [(*case, said) for case, said in zip(FIRES, SAID, strict=True)],
    ids=[rule for rule, _ in FIRES],
)
def test_a_diagnosis_says_what_it_saw_and_what_to_change(
    rule: str, given: Profile, said: str
) -> None:
    found = BY_NAME[rule].find(given)
    assert found is not None
    place = f"{found.topic}: {found.value:g} {found.unit}, line {found.line}"
    assert "\n".join((place, found.text, found.advice)) == said.strip()
    assert 0.0 < found.weight <= 1.0


@pytest.mark.parametrize(
    ("rule", "given"),
    [(rule, given) for rule, _, given in QUIET],
    ids=[f"{rule}: {why}" for rule, why, _ in QUIET],
)
def test_a_diagnosis_is_silent_where_its_evidence_shows_nothing(rule: str, given: Profile) -> None:
    assert BY_NAME[rule].find(given) is None


def test_every_diagnosis_is_tried_both_ways() -> None:
    assert {rule for rule, _ in FIRES} == {rule for rule, _, _ in QUIET} == set(BY_NAME)


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


@pytest.mark.parametrize(("rule", "given"), FIRES, ids=[rule for rule, _ in FIRES])
def test_every_counter_that_is_asked_for_is_counted_and_every_class_exists(
    rule: str, given: Profile
) -> None:
    counters: set[str] = set()
    classes: set[str] = set()
    codes = tuple(
        replace(one, mix=Spied(one.mix, classes), lines=Spied(one.lines, classes))
        for one in given.codes
    )
    spied = Spied(given.counters, counters)
    BY_NAME[rule].find(replace(given, counters=spied, codes=codes))
    assert counters <= set(counters_for((9, 0)))
    assert classes <= set(INSTRUCTION_CLASSES)


def test_the_classes_that_the_instruction_mix_weighs_exist() -> None:
    assert set(SLOTS) <= set(INSTRUCTION_CLASSES)
