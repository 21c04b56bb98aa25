"""Machine code as the compiler makes it: classes, widths, loops and lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tuner.analysis import sass
from tuner.analysis.base import INSTRUCTION_CLASSES, OTHER, MachineCode
from tuner.analysis.sass import (
    Function,
    Instruction,
    bits_of,
    class_of,
    codes,
    disassemble,
    hot_lines,
    innermost_loops,
    read,
)
from tuner.compiler.base import CompileRequest
from tuner.compiler.includes import UNIT_NAME
from tuner.compiler.pool import NvrtcPool

SOURCE = (Path(__file__).parent / "data" / "loops_and_lines.cu").read_text("utf-8")
KERNELS = ("scalar", "vector", "spill", "reduce", "multiply<16>", "pairs", "calling")
# As if the template had a hundred lines more at its top.
LINES = tuple(range(101, 101 + len(SOURCE.splitlines())))


def line_of(mark: str) -> int:
    """The template's line of what a comment marks."""
    (line,) = (n for n, text in enumerate(SOURCE.splitlines()) if text.endswith(f"// {mark}"))
    return LINES[line]


@pytest.fixture(scope="module")
def compiled(compiler: NvrtcPool) -> tuple[str, Mapping[str, str]]:
    """The disassembler's text and the kernels' symbols."""
    request = CompileRequest(SOURCE, KERNELS, "sm_90a", ("-lineinfo",))
    result = compiler.submit(request).result(120)
    assert result.ok, result.error
    return disassemble(result.cubin), result.lowered


@pytest.fixture(scope="module")
def code(compiled: tuple[str, Mapping[str, str]]) -> Mapping[str, MachineCode]:
    text, lowered = compiled
    return {one.kernel: one for one in codes(text, lowered, LINES)}


def test_there_is_one_code_a_kernel_in_their_order(code: Mapping[str, MachineCode]) -> None:
    assert tuple(code) == KERNELS


def test_every_instruction_has_a_class_and_none_is_filling(code: Mapping[str, MachineCode]) -> None:
    for one in code.values():
        assert one.mix.keys() <= INSTRUCTION_CLASSES.keys()
        assert one.instructions == sum(one.mix.values())
    assert code["scalar"].instructions < 32  # of 32, which fill the last line of code


def test_a_vectorised_copy_moves_128_bits_and_a_scalar_one_32(
    code: Mapping[str, MachineCode],
) -> None:
    assert code["vector"].load_bits == code["vector"].store_bits == {128: 1}
    assert code["scalar"].load_bits == code["scalar"].store_bits == {32: 1}


def test_the_loop_of_a_copy_holds_the_copy(code: Mapping[str, MachineCode]) -> None:
    loop = code["vector"].loop_mix
    assert (loop["global_load"], loop["global_store"], loop["branch"]) == (1, 1, 1)
    assert "constant_load" not in loop  # which come before it
    assert code["scalar"].loop_mix == {}


def test_spills_are_local_memory_at_the_line_that_needs_the_registers(
    code: Mapping[str, MachineCode],
) -> None:
    spill = code["spill"]
    assert spill.mix["local_load"] > 20
    assert spill.mix["local_store"] > 20
    assert spill.loop_mix["local_load"] > 10
    assert spill.lines["local_load"] == spill.lines["local_store"] == line_of("spills")
    assert not code["vector"].mix.get("local_load")


def test_a_reduction_waits_at_a_barrier_in_its_loop(code: Mapping[str, MachineCode]) -> None:
    reduce = code["reduce"]
    assert reduce.mix["barrier"] == 2
    assert reduce.loop_mix["barrier"] == 1
    assert reduce.lines["barrier"] == line_of("barrier")
    assert reduce.loop_mix["shared_load"] == 2
    assert reduce.mix["atomic"] == 1


def test_matrix_instructions_come_from_the_line_that_a_header_was_inlined_at(
    code: Mapping[str, MachineCode],
) -> None:
    assert code["multiply<16>"].mix["tensor"] == 2
    assert code["multiply<16>"].lines["tensor"] == line_of("product")


def test_only_the_innermost_loop_counts(code: Mapping[str, MachineCode]) -> None:
    pairs = code["pairs"]
    assert pairs.mix["special"] >= 2  # the exponential, and the division's reciprocal
    assert pairs.loop_mix["special"] == 1
    assert pairs.loop_mix["global_store"] == 1
    assert pairs.lines["special"] == line_of("inner")


def test_what_ran_most_decides_the_line_where_executions_were_counted(
    compiled: tuple[str, Mapping[str, str]],
) -> None:
    text, lowered = compiled
    instructions = read(text)["vector"].instructions
    loads = [one for one in instructions if one.family == "LDG"]
    counted = {"vector": {loads[0].offset: 7, instructions[0].offset: 2, 1 << 20: 9}}
    (code,) = codes(text, {"vector": lowered["vector"]}, LINES, counted)
    assert code.executed["global_load"] == 7
    assert sum(code.executed.values()) == 9, "what lies outside of the kernel is not its own"
    assert code.executed_lines[line_of("vector copy"), "global_load"] == 7
    (uncounted,) = codes(text, {"vector": lowered["vector"]}, LINES)
    assert (uncounted.executed, uncounted.executed_lines) == ({}, {})


def test_a_function_counts_for_the_kernel_that_calls_it(code: Mapping[str, MachineCode]) -> None:
    assert code["calling"].mix["fp64"] >= 2
    assert code["calling"].lines["fp64"] == line_of("far")


def test_nothing_is_counted_where_a_kernel_is_missing(
    compiled: tuple[str, Mapping[str, str]],
) -> None:
    text, lowered = compiled
    assert codes(text, {**lowered, "other": "_Z5otherv"}, LINES) == ()
    assert codes("", lowered, LINES) == ()


def test_without_lines_of_the_template_there_are_none(
    compiled: tuple[str, Mapping[str, str]],
) -> None:
    text, lowered = compiled
    assert [one.lines for one in codes(text, lowered, ())] == [{}] * len(KERNELS)


def test_samples_are_summed_by_line_and_shared_by_all(
    compiled: tuple[str, Mapping[str, str]],
) -> None:
    text, _ = compiled
    loads = [one.offset for one in read(text)["vector"].instructions if one.family == "LDG"]
    stores = [one.offset for one in read(text)["vector"].instructions if one.family == "STG"]
    samples = {loads[0]: 5, stores[0]: 1, 1 << 20: 2}  # the last is outside of the kernel
    assert hot_lines(text, "vector", samples, LINES) == ((line_of("vector copy"), 6 / 8),)
    assert hot_lines(text, "vector", {}, LINES) == ()
    assert hot_lines(text, "no_such", samples, LINES) == ()


def test_the_source_is_named_as_the_compiler_names_it() -> None:
    assert sass.UNIT == UNIT_NAME


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("LDG.E.U8.CONSTANT", "global_load"),
        ("LDGSTS.E.BYPASS.LTC128B.128", "async_copy"),
        ("LDGDEPBAR", "wait"),
        ("UTMALDG.2D", "bulk_copy"),
        ("UBLKCP.S.G", "bulk_copy"),
        ("LDSM.16.M88.4", "shared_load"),
        ("ATOMS.ADD", "shared_atomic"),
        ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU", "atomic"),
        ("REDUX.SUM.S32", "vote"),
        ("HMMA.16816.F32.BF16", "tensor"),
        ("HGMMA.64x256x16.F32.BF16", "tensor"),
        ("QGMMA.64x128x32.F32.E4M3.E4M3", "tensor"),
        ("UTCHMMA.2CTA", "tensor"),
        ("HFMA2.BF16_V2", "fp16"),
        ("FFMA2", "fp32"),
        ("FHFMA", "fp32"),
        ("DFMA", "fp64"),
        ("IMAD.MOV.U32", "move"),
        ("IMAD.WIDE.U32", "integer"),
        ("VIADDMNMX.U32", "integer"),
        ("UIADD3", "uniform"),
        ("ULDC.64", "constant_load"),
        ("LDCU.128", "constant_load"),
        ("WARPGROUP.DEPBAR.LE", "wait"),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier"),
        ("WHATEVER.NEXT", OTHER),
    ],
)
def test_classes_of_opcodes(opcode: str, expected: str) -> None:
    assert class_of(Instruction(0, opcode)) == expected


@pytest.mark.parametrize("predicate", ["!PT", "!UPT"])
def test_what_is_never_executed_does_not_count(predicate: str) -> None:
    text = f"""\
	.section	.text.f,"ax",@progbits
        /*0000*/             @{predicate} UIADD3 URZ, URZ, URZ, URZ ;
        /*0010*/                   EXIT ;
"""
    assert [one.mix for one in codes(text, {"f": "f"}, ())] == [{"branch": 1}]


def test_a_constant_that_is_loaded_by_arithmetic_is_a_move() -> None:
    assert class_of(Instruction(0, "HFMA2.MMA", "R1, -RZ, RZ, 0, 0")) == "move"
    assert class_of(Instruction(0, "HFMA2.MMA", "R1, R2, R3, R4")) == "fp16"


@pytest.mark.parametrize(
    ("opcode", "bits"),
    [("LDG.E", 32), ("LDG.E.U16", 16), ("LDG.E.64.CONSTANT", 64), ("LDG.E.ENL2.256", 256)],
)
def test_widths_of_accesses(opcode: str, bits: int) -> None:
    assert bits_of(Instruction(0, opcode)) == bits


def function(*rows: str) -> Function:
    """A function of instructions; `name:` before one is a label."""
    made = Function("f")
    for number, row in enumerate(rows):
        label, _, text = row.rpartition(": ")
        predicate, _, rest = (
            text.rpartition("@")[2].partition(" ") if "@" in text else ("", "", text)
        )
        opcode, _, operands = rest.partition(" ")
        targets = (operands.split("`")[1],) if "`" in operands else ()
        if label:
            made.labels[label] = number
        made.instructions.append(Instruction(number, opcode, operands, predicate, targets))
    return made


def test_code_behind_the_end_that_jumps_back_is_no_loop() -> None:
    straight = function(
        "@P0 BRA `rare", "back: FADD", "EXIT", "rare: FMUL", "BRA `back", "trap: BRA `trap"
    )
    assert innermost_loops(straight) == []


def test_code_behind_the_end_belongs_to_the_loop_that_comes_by_it() -> None:
    looping = function(
        "MOV", "top: FADD", "@P0 BRA `rare", "back: FMUL", "@P1 BRA `top", "EXIT",
        "rare: MUFU", "BRA `back", "trap: BRA `trap",
    )  # fmt: skip
    assert innermost_loops(looping) == [frozenset({1, 2, 3, 4, 6, 7})]


def test_of_nested_loops_the_inner_one_is_found() -> None:
    nested = function("outer: MOV", "inner: FADD", "BRA !P2, `inner", "BRA.U UP0, `outer", "EXIT")
    assert innermost_loops(nested) == [frozenset({1, 2})]


def test_a_loop_in_a_function_that_is_called_is_found() -> None:
    called = function("CALL.REL.NOINC `helper", "EXIT", "helper: FADD", "@P0 BRA `helper", "RET")
    assert innermost_loops(called) == [frozenset({2, 3})]


def test_a_branch_to_one_of_many_places_may_close_a_loop() -> None:
    text = """\
	.section	.text.f,"ax",@progbits
        .other          f,@"STO_CUDA_ENTRY STV_DEFAULT"
.text.f:
.L_x_1:
        /*0000*/                   LDC R2, c[0x2][R0] ;
.L_x_2:
        /*0010*/                   BRX R2 -0x20                (*"BRANCH_TARGETS .L_x_1,.L_x_3"*);
.L_x_3:
        /*0020*/              @!P0 EXIT ;
"""
    assert innermost_loops(read(text)["f"]) == [frozenset({0x00, 0x10})]
