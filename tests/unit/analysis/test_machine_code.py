"""Instructions counted from bits: as many as in the disassembler's text, and never a fault."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.analysis.sass import codes, disassemble
from tuner.analysis.static_features import OTHER, InstructionCounts, count_instructions
from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.pool import NvrtcPool

SOURCE = (Path(__file__).parent / "data" / "every_class.cu").read_text("utf-8")
WIDTHS = {"char": 8, "short": 16, "int": 32, "float2": 64, "float4": 128}
KERNELS = (
    *(f"copy<{name}>" for name in WIDTHS),
    "arithmetic",
    "spill",
    "together",
    "multiply",
    "calling",
)
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
ONLY_ON = {"sm_90a": ("bulk",), "sm_100a": ("widest",), "sm_103a": ("widest",)}

Compile = Callable[[str], CompileResult]


@pytest.fixture(scope="module")
def compile_for(compiler: NvrtcPool) -> Compile:
    """Compile all kernels for one architecture, once."""
    requests = {
        name: CompileRequest(SOURCE, (*KERNELS, *ONLY_ON.get(name, ())), name)
        for name in ARCHITECTURES
    }
    futures = {name: compiler.submit(request) for name, request in requests.items()}

    def compiled(architecture: str) -> CompileResult:
        result = futures[architecture].result(120)
        assert result.ok, result.error
        return result

    return compiled


@pytest.fixture(scope="module")
def hopper(compile_for: Compile) -> CompileResult:
    return compile_for("sm_90a")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bits_and_text_give_equal_counts(compile_for: Compile, architecture: str) -> None:
    result = compile_for(architecture)
    for code in codes(disassemble(result.cubin), result.lowered, ()):
        counted = count_instructions(result.cubin, result.lowered[code.kernel])
        assert counted.mix == code.mix, code.kernel
        assert counted.load_bits == code.load_bits, code.kernel
        assert counted.store_bits == code.store_bits, code.kernel
        assert counted.instructions == code.instructions > 0


@pytest.mark.parametrize(("architecture", "type_name"), [*product(("sm_75", "sm_120a"), WIDTHS)])
def test_the_width_of_an_access(compile_for: Compile, architecture: str, type_name: str) -> None:
    result = compile_for(architecture)
    counted = count_instructions(result.cubin, result.lowered[f"copy<{type_name}>"])
    assert counted.load_bits == counted.store_bits == {WIDTHS[type_name]: 1}


def test_blackwell_reads_256_bits_at_once(compile_for: Compile) -> None:
    counted = count_instructions(compile_for("sm_100a").cubin, "widest")
    assert counted.load_bits == counted.store_bits == {256: 1}


def test_opcodes_without_a_class_are_other(hopper: CompileResult) -> None:
    start = hopper.cubin.index(code_of(hopper, "spill"))
    unknown = struct.pack("<QQ", 0x7000, 0) * 4
    changed = hopper.cubin[:start] + unknown + hopper.cubin[start + len(unknown) :]
    assert count_instructions(changed, "spill").mix[OTHER] == 4


def test_what_never_runs_is_left_out(hopper: CompileResult) -> None:
    code = code_of(hopper, "spill")
    never = code.replace(code[:16], struct.pack("<Q", 0xF000 | code[0] | code[1] << 8) + code[8:16])
    counts = [
        count_instructions(cubin, "spill").instructions
        for cubin in (hopper.cubin, hopper.cubin.replace(code, never))
    ]
    assert counts[1] == counts[0] - 1


@pytest.mark.parametrize(
    ("cubin", "symbol"),
    [
        (b"", "spill"),
        (b"\x7fELF\x02\x01", "spill"),
        (b"\x7fELF\x02\x01" + bytes(200), "spill"),
        (b"#!/bin/sh\n" * 100, "spill"),
    ],
)
def test_no_cubin_has_no_instructions(cubin: bytes, symbol: str) -> None:
    assert count_instructions(cubin, symbol) == InstructionCounts()


@pytest.mark.parametrize("symbol", ["", "spil", "spill2", "spill\0", "\udc80", "no_such"])
def test_an_unknown_symbol_has_none(hopper: CompileResult, symbol: str) -> None:
    assert count_instructions(hopper.cubin, symbol) == InstructionCounts()


def test_earlier_architectures_and_processors_have_none(hopper: CompileResult) -> None:
    for flags in (0, 60 << 8):
        other = hopper.cubin[:48] + struct.pack("<I", flags) + hopper.cubin[52:]
        assert count_instructions(other, "spill") == InstructionCounts()


def test_a_cubin_that_is_cut_short_never_raises(hopper: CompileResult) -> None:
    whole = count_instructions(hopper.cubin, "spill").instructions
    for length in range(0, len(hopper.cubin), 97):
        assert count_instructions(hopper.cubin[:length], "spill").instructions <= whole


def test_damaged_headers_never_raise(hopper: CompileResult) -> None:
    drawn = random.Random(0)  # noqa: S311 - no secret
    table = struct.unpack_from("<Q", hopper.cubin, 40)[0]
    for _ in range(500):
        damaged = bytearray(hopper.cubin)
        for _ in range(drawn.randrange(1, 9)):
            place = drawn.choice([drawn.randrange(6, 64), drawn.randrange(table, len(damaged))])
            damaged[place] = drawn.choice([0, 0xFF, drawn.randrange(256)])
        count_instructions(bytes(damaged), "spill")


@given(st.binary(min_size=58, max_size=400))
def test_random_bytes_behind_the_magic_never_raise(content: bytes) -> None:
    count_instructions(b"\x7fELF\x02\x01" + content, "spill")


def code_of(result: CompileResult, symbol: str) -> bytes:
    """The bytes of a kernel: found by the section's name, as `readelf` would."""
    cubin = result.cubin
    (table,) = struct.unpack_from("<Q", cubin, 40)
    count, names = struct.unpack_from("<HH", cubin, 60)
    headers = [struct.unpack_from("<II8xQQQ", cubin, table + 64 * k) for k in range(count)]
    texts = headers[names][3]
    (found,) = (
        cubin[offset : offset + size]
        for name, _, _, offset, size in headers
        if cubin[texts + name :].startswith(b".text." + symbol.encode() + b"\0")
    )
    return found
