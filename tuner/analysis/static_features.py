"""What is known of a config once it is compiled, in numbers that a searcher chooses by.

Instructions are counted by class from the cubin's bits, which is fast enough for every config.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from tuner.analysis.base import INSTRUCTION_CLASSES, OTHER
from tuner.compiler.base import CompileResult
from tuner.model.hardware import DeviceLimits, occupancy
from tuner.model.kernel import Launch
from tuner.search.base import Features

CLASSES = (*INSTRUCTION_CLASSES, OTHER)
# Numbers that were given away again: up to a compute capability, and from one on.
_UP_TO = ((75, 0x36, "tensor"),)
_FROM = ((120, 0x35, "integer"), (120, 0x49, "uniform"), (120, 0x4A, "uniform"))

_NOP, _BRA, _IMAD, _HFMA2, _HFMA2_MMA = 0x118, 0x147, 0x24, 0x31, 0x35
_ASYNC_COPY, _LOAD_256, _STORE_256 = 0x1AE, 0x17E, 0x17F
_LOADS = ("global_load", "generic_load", "async_copy")
_STORES = ("global_store", "generic_store")
_BITS = np.array([8, 8, 16, 16, 32, 64, 128, 32])
_ASYNC_BITS = np.array([32, 64, 128, 32])  # from compute capability 10.0 on
_ALWAYS, _NEVER = 7, 15  # the predicates PT and !PT
_ZERO = 255  # the register RZ

# 64-bit ELF: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.sheader.html
_IDENT = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16s24xQI6xHHH")
_SECTION = struct.Struct("<II8xQQQ24x")
_PROGRAM_BITS = 1
_INSTRUCTION_BYTES = 16
_FIRST_CAPABILITY = 70  # before, instructions had 8 bytes

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]
Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class InstructionCounts:
    """How many instructions of a kernel there are by class, and accesses to memory by their bits.

    `load_bits` and `store_bits` hold accesses to global memory, asynchronous copies included.
    What never runs is left out. Empty where the cubin could not be read.
    """

    mix: Mapping[str, int] = field(default_factory=dict)
    load_bits: Mapping[int, int] = field(default_factory=dict)
    store_bits: Mapping[int, int] = field(default_factory=dict)

    @property
    def instructions(self) -> int:
        return sum(self.mix.values())


def count_instructions(cubin: bytes, symbol: str) -> InstructionCounts:
    """Count a kernel's instructions, with those of the functions that it calls.

    Never raises: what is no cubin for compute capability 7.0 or later, or doesn't hold the
    symbol, gives empty counts. Instructions of no known class count as `OTHER`.
    """
    capability, code = _code(cubin, symbol)
    words = np.frombuffer(code, "<u8").reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    # Mark what fills up the last line of code, the trap before it, and what has `@!PT`.
    opcode, predicate = low & 0x1FF, low >> 12 & 0xF
    # A branch by -16 bytes. From 9.0 on it is counted in fours, with its low byte further down.
    if capability < 90:
        by, back = low >> 16, 0xFFFFFFF00000
    else:
        by, back = low >> 16 & 0xFFFFFFFC00FF, 0xFFFFFFFC00FC
    itself = (by == back) & (high & 0x3FFFF == 0x3FFFF)
    trap = (opcode == _BRA) & (predicate == _ALWAYS) & itself
    never: Marks = trap | (opcode == _NOP) | (predicate == _NEVER)
    runs = ~never
    low, high = low[runs], high[runs]
    numbers = _classes(capability, low, high)
    counts = np.bincount(numbers, minlength=len(CLASSES)).tolist()
    loads, stores = _IS_LOAD[numbers], _IS_STORE[numbers]
    return InstructionCounts(
        mix={name: count for name, count in zip(CLASSES, counts, strict=True) if count},
        load_bits=_widths(capability, low[loads], high[loads]),
        store_bits=_widths(capability, low[stores], high[stores]),
    )


def _code(cubin: bytes, symbol: str) -> tuple[int, bytes]:
    """Find the compute capability (90 for 9.0) and a kernel's code, b"" where there is none.

    The compiler puts the functions that a kernel calls into the kernel's own section.
    """
    if not cubin.startswith(_IDENT) or len(cubin) < _HEADER.size:
        return 0, b""
    ident, table, flags, size, count, names = _HEADER.unpack_from(cubin)
    # The eighth byte is the version of NVIDIA's ABI; with 8, the flags' order changed.
    capability = (flags >> 8 if ident[8] >= 8 else flags) & 0xFF
    if capability < _FIRST_CAPABILITY or size != _SECTION.size:
        return 0, b""
    end = min(table + count * size, len(cubin) - size + 1)
    sections = [_SECTION.unpack_from(cubin, offset) for offset in range(table, end, size)]
    if names >= len(sections):
        return 0, b""
    wanted = b".text." + symbol.encode(errors="replace") + b"\0"
    _, _, _, texts, _ = sections[names]
    for name, kind, _, offset, length in sections:
        if kind == _PROGRAM_BITS and cubin.startswith(wanted, texts + name):
            code = cubin[offset : offset + length]
            return capability, code[: len(code) // _INSTRUCTION_BYTES * _INSTRUCTION_BYTES]
    return 0, b""


def _classes(capability: int, low: Words, high: Words) -> Numbers:
    opcode, form = (low & 0x1FF).astype(np.int64), low >> 9 & 7
    numbers = _TABLES[sum(capability >= first for first in _GENERATIONS)][opcode]
    first, second, third = low >> 24 & 0xFF, low >> 32 & 0xFF, high & 0xFF
    # R1 = RZ * RZ + R2 moves a value through the pipe for products, unless it adds a carry.
    factor = np.where(form == 1, second, third)
    plain = (form >= 1) & (form <= 3) & (high >> 10 & 1 == 0)
    moves = (opcode == _IMAD) & plain & (first == _ZERO) & (factor == _ZERO)
    # So does -RZ * RZ + (a constant) through the one for pairs of halves.
    halves = ((opcode == _HFMA2) | (opcode == _HFMA2_MMA)) & (numbers == CLASSES.index("fp16"))
    moves |= halves & (form == 2) & (first == _ZERO) & (high & 0x1FF == 0x100 | _ZERO)
    numbers[moves] = CLASSES.index("move")
    return numbers


def _widths(capability: int, low: Words, high: Words) -> dict[int, int]:
    opcode = low & 0x1FF
    bits = _BITS[(high >> 9 & 7).astype(np.int64)]
    if capability >= 100:
        copies = opcode == _ASYNC_COPY
        bits[copies] = _ASYNC_BITS[(high[copies] >> 10 & 3).astype(np.int64)]
    bits[(opcode == _LOAD_256) | (opcode == _STORE_256)] = 256
    return dict(sorted(Counter(bits.tolist()).items()))


def _tables() -> Iterator[Numbers]:
    for capability in (_FIRST_CAPABILITY, *_GENERATIONS):
        table = np.full(0x200, CLASSES.index(OTHER))
        for name, stated in INSTRUCTION_CLASSES.items():
            table[[int(opcode, 16) for opcode in stated["opcodes"].split()]] = CLASSES.index(name)
        for last, opcode, name in _UP_TO:
            if capability <= last:
                table[opcode] = CLASSES.index(name)
        for start, opcode, name in _FROM:
            if capability >= start:
                table[opcode] = CLASSES.index(name)
        yield table


_GENERATIONS = (80, 120)
_TABLES = tuple(_tables())
_IS_LOAD = np.array([name in _LOADS for name in CLASSES])
_IS_STORE = np.array([name in _STORES for name in CLASSES])


_NUMBERS = (
    "launches blocks warps waves traffic_bytes registers spill_bytes stack_bytes serialized_wgmma "
    "static_shared_bytes dynamic_shared_bytes barriers threads cluster_blocks programmatic "
    "occupancy resident_blocks active_warps last_wave evenness loads_in_flight_bytes "
    "load_bits_max load_bits_mean store_bits_max store_bits_mean loaded_bytes stored_bytes "
    "warp_instructions instructions"
)
_NAMES = (*_NUMBERS.split(), *CLASSES)


def features(
    result: CompileResult, launches: Sequence[Launch], limits: DeviceLimits, multiprocessors: int
) -> Features:
    """Describe a compiled config by numbers, under the same names for every config.

    Several launches: `blocks`, `warps`, `waves`, `traffic_bytes` and the instructions are sums;
    what is said per thread, block or multiprocessor is the mean over all warps of the launches.
    Where nothing is known (a CPU has no registers, no cubin no instructions) a number is 0.
    """
    each = [_of_launch(result, launch, limits, multiprocessors) for launch in launches]
    warps = sum(amounts["warps"] for amounts, _ in each)
    totals = dict.fromkeys(_NAMES, 0.0)
    for amounts, means in each:
        share = amounts["warps"] / warps if warps else 0.0
        for name, value in means.items():
            totals[name] = totals.get(name, 0.0) + share * value
        for name, value in amounts.items():
            totals[name] += value
    return totals


def _of_launch(
    result: CompileResult, launch: Launch, limits: DeviceLimits, multiprocessors: int
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Describe one launch: by what several add up to, and by what is said per thread or block.

    Bytes are as if every thread ran all code once. `occupancy` is what may be resident,
    `active_warps` what is in the fullest multiprocessor, `last_wave` the share of the last wave
    that has blocks, `evenness` that of all waves together.
    """
    used = result.resources[launch.kernel]
    code = count_instructions(result.cubin, result.lowered.get(launch.kernel, launch.kernel))
    held = occupancy(limits, used, launch)
    resident = held.blocks if held else 0
    blocks, warps_per_block = prod(launch.grid), ceil(launch.threads / limits.threads_per_warp)
    waves = blocks / (resident * multiprocessors) if resident * multiprocessors else 0.0
    active = min(resident, ceil(blocks / multiprocessors)) * warps_per_block
    loads, stores = sum(code.load_bits.values()), sum(code.store_bits.values())
    loaded, stored = (
        sum(bits * count for bits, count in by_bits.items()) / 8
        for by_bits in (code.load_bits, code.store_bits)
    )
    amounts = {
        "launches": 1,
        "blocks": blocks,
        "warps": blocks * warps_per_block,
        "waves": waves,
        "traffic_bytes": (loaded + stored) * blocks * launch.threads,
        "warp_instructions": blocks * warps_per_block * code.instructions,
        "instructions": code.instructions,
        **code.mix,
    }
    return amounts, {
        "registers": used.registers or 0,
        "spill_bytes": used.spill_bytes,
        "stack_bytes": used.stack_bytes,
        "serialized_wgmma": bool(used.serialized_wgmma),
        "static_shared_bytes": used.static_shared_bytes,
        "dynamic_shared_bytes": launch.shared_bytes,
        "barriers": used.barriers,
        "threads": launch.threads,
        "cluster_blocks": prod(launch.cluster or (1, 1, 1)),
        "programmatic": launch.pdl,
        "occupancy": held.share if held else 0.0,
        "resident_blocks": resident,
        "active_warps": active,
        "last_wave": waves - ceil(waves) + 1 if waves else 0.0,
        "evenness": waves / ceil(waves) if waves else 0.0,
        "loads_in_flight_bytes": loaded * active * limits.threads_per_warp,
        "load_bits_max": max(code.load_bits, default=0),
        "load_bits_mean": 8 * loaded / loads if loads else 0.0,
        "store_bits_max": max(code.store_bits, default=0),
        "store_bits_mean": 8 * stored / stores if stores else 0.0,
        "loaded_bytes": loaded,
        "stored_bytes": stored,
        **limits.own_features(used),
    }
