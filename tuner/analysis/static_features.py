"""What is known of a config once it is compiled: numbers that a searcher chooses by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from tuner.analysis.machine_code import CLASSES, InstructionCounts, count_instructions
from tuner.compiler.base import CompileResult
from tuner.model.hardware import DeviceLimits
from tuner.model.kernel import Launch
from tuner.model.occupancy import occupancy
from tuner.model.trial import Resources
from tuner.search.base import Features


@dataclass(frozen=True, slots=True)
class _Seen:
    """One launch with all that is known of it."""

    launch: Launch
    resources: Resources
    code: InstructionCounts
    warps: int
    resident_blocks: int


def features(
    result: CompileResult, launches: Sequence[Launch], limits: DeviceLimits, multiprocessors: int
) -> Features:
    """Describe a compiled config by numbers, under the same names for every config.

    Several launches: `blocks`, `warps`, `waves`, `traffic_bytes` and the instructions are sums;
    what is said per thread, block or multiprocessor is the mean over all warps of the launches.
    Where nothing is known (a CPU has no registers, no cubin no instructions) a number is 0.
    """
    seen = [_look(result, launch, limits) for launch in launches]
    warps = sum(one.warps for one in seen)
    found = dict.fromkeys(_NAMES, 0.0)
    for one in seen:
        share = one.warps / warps if warps else 0.0
        means = {**_usage(one), **_residence(one, limits, multiprocessors), **_accesses(one.code)}
        for name, value in means.items():
            found[name] += share * value
        for name, value in {**_amounts(one, multiprocessors), **one.code.mix}.items():
            found[name] += value
    return found


def _look(result: CompileResult, launch: Launch, limits: DeviceLimits) -> _Seen:
    resources = result.resources[launch.kernel]
    code = count_instructions(result.cubin, result.lowered.get(launch.kernel, launch.kernel))
    held = occupancy(limits, resources, launch)
    return _Seen(
        launch,
        resources,
        code,
        warps=prod(launch.grid) * ceil(launch.threads / limits.threads_per_warp),
        resident_blocks=held.blocks if held else 0,
    )


def _usage(one: _Seen) -> Mapping[str, float]:
    """What a thread or a block takes."""
    used = one.resources
    return {
        "registers": used.registers or 0,
        "spill_bytes": used.spill_store_bytes + used.spill_load_bytes,
        "stack_bytes": used.stack_bytes,
        "static_shared_bytes": used.static_shared_bytes,
        "dynamic_shared_bytes": one.launch.shared_bytes,
        "barriers": used.barriers,
        "threads": one.launch.threads,
        "cluster_blocks": prod(one.launch.cluster or (1, 1, 1)),
        "programmatic": one.launch.pdl,
    }


def _residence(one: _Seen, limits: DeviceLimits, multiprocessors: int) -> Mapping[str, float]:
    """How the blocks fill the multiprocessors.

    `occupancy` is what may be resident, `active_warps` what is in the fullest multiprocessor,
    `last_wave` the share of the last wave that has blocks, `evenness` that of all waves together.
    """
    blocks = prod(one.launch.grid)
    per_block = ceil(one.launch.threads / limits.threads_per_warp)
    waves = _waves(one, multiprocessors)
    active = min(one.resident_blocks, ceil(blocks / multiprocessors)) * per_block
    loaded, _ = _bytes(one.code)
    return {
        "occupancy": one.resident_blocks * per_block / limits.warps_per_multiprocessor,
        "resident_blocks": one.resident_blocks,
        "active_warps": active,
        "last_wave": waves - ceil(waves) + 1 if waves else 0.0,
        "evenness": waves / ceil(waves) if waves else 0.0,
        "loads_in_flight_bytes": loaded * active * limits.threads_per_warp,
    }


def _accesses(code: InstructionCounts) -> Mapping[str, float]:
    """How wide a thread reads and writes global memory; bytes as if all code ran once."""
    loaded, stored = _bytes(code)
    loads, stores = sum(code.load_bits.values()), sum(code.store_bits.values())
    return {
        "load_bits_max": max(code.load_bits, default=0),
        "load_bits_mean": 8 * loaded / loads if loads else 0.0,
        "store_bits_max": max(code.store_bits, default=0),
        "store_bits_mean": 8 * stored / stores if stores else 0.0,
        "loaded_bytes": loaded,
        "stored_bytes": stored,
    }


def _amounts(one: _Seen, multiprocessors: int) -> Mapping[str, float]:
    """What several launches add up to; `traffic_bytes` as if every thread ran all code once."""
    blocks = prod(one.launch.grid)
    return {
        "launches": 1,
        "blocks": blocks,
        "warps": one.warps,
        "waves": _waves(one, multiprocessors),
        "traffic_bytes": sum(_bytes(one.code)) * blocks * one.launch.threads,
        "warp_instructions": one.warps * one.code.instructions,
        "instructions": one.code.instructions,
    }


def _waves(one: _Seen, multiprocessors: int) -> float:
    room = one.resident_blocks * multiprocessors
    return prod(one.launch.grid) / room if room else 0.0


def _bytes(code: InstructionCounts) -> tuple[float, float]:
    """Sum what the loads and the stores of a thread move, each executed once."""
    loaded = sum(bits * count for bits, count in code.load_bits.items()) / 8
    stored = sum(bits * count for bits, count in code.store_bits.items()) / 8
    return loaded, stored


_NAMES = (
    "launches",
    "blocks",
    "warps",
    "waves",
    "traffic_bytes",
    "registers",
    "spill_bytes",
    "stack_bytes",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "barriers",
    "threads",
    "cluster_blocks",
    "programmatic",
    "occupancy",
    "resident_blocks",
    "active_warps",
    "last_wave",
    "evenness",
    "loads_in_flight_bytes",
    "load_bits_max",
    "load_bits_mean",
    "store_bits_max",
    "store_bits_mean",
    "loaded_bytes",
    "stored_bytes",
    "warp_instructions",
    "instructions",
    *CLASSES,
)
