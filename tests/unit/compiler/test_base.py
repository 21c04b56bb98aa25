"""Sources that are told apart, and what a compiler's answer becomes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tuner.compiler.base import (
    CompileRequest,
    normalize_source,
    nvrtc_errors,
    ptxas_resources,
    result_of,
    shorten_text,
)
from tuner.model.trial import Resources


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("int  a; // one\n\n  int b;\n", "int a;\nint b;"),
        ("int a; /* one\ntwo */ int b;", "int a; int b;"),
        ('f("// no", "/* no */"); // yes', 'f("// no", "/* no */");'),
        ('f("a\\"// no"); // yes', 'f("a\\"// no");'),
        ("char q = '\"'; // yes", "char q = '\"';"),
        ("int a = 1'000'000; // yes", "int a = 1'000'000;"),
        ("int a; /* never\nclosed", "int a;"),
        ('x "never closed // is it\nint a; // yes', 'x "never closed // is it\nint a;'),
    ],
)
def test_comments_and_blanks_do_not_count(source: str, code: str) -> None:
    assert normalize_source(source) == code


REPLY = {"log": "", "seconds": 0.5, "lowered": {}}


def error_of(source: str) -> str:
    return result_of(CompileRequest(source, ("missing",), "sm_90a"), REPLY, b"a cubin").error


def test_a_kernel_that_is_absent_is_named_with_those_that_are_there() -> None:
    source = (
        "template <int N>\n__global__ void __launch_bounds__(256) first(int* a);\n"
        'extern "C" __global__ void second__(int* a) {}\n'
        "__global__ __global__ void third (int* a) {} // __global__ void fourth(int* a) {}\n"
    )
    assert error_of(source) == (
        "kernel.cu: error: no kernel `missing`; the source has first, second__, third"
    )


LITERALS = ["/*", "/* *", '"', '"\\', "'", "'\\", "'\"", "//", "/"]
NAMES = ["__global__ ", "__global__", "_", "a ", "__a__(", "__a__(()"]


@pytest.mark.parametrize("piece", LITERALS + NAMES)
def test_a_hostile_source_takes_time_that_grows_with_its_length(piece: str) -> None:
    source = "__global__ " + piece * (400_000 // len(piece))
    start = time.perf_counter()
    normalize_source(source)
    error_of(source)
    assert time.perf_counter() - start < 2


def test_shortens_only_what_is_long() -> None:
    assert shorten_text("short") == "short"
    assert len(shorten_text("x" * 1_000_000)) < 25_000


LOG = Path(__file__).with_name("data").joinpath("ptxas.txt").read_text()


def test_reads_every_kernels_resources() -> None:
    assert ptxas_resources(LOG) == {
        "_Z3fooILi8EEvPf": Resources(
            registers=14,
            spill_store_bytes=12,
            spill_load_bytes=16,
            static_shared_bytes=32,
            stack_bytes=40,
            barriers=2,
        ),
        "bar": Resources(registers=8),
    }


def test_spills_of_a_called_function_count_for_the_kernels() -> None:
    called = """\
ptxas info    : Function properties for _Z4helpf
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
"""

    found = ptxas_resources(LOG + called)

    assert found["bar"].spill_bytes
    assert found["_Z3fooILi8EEvPf"].spill_store_bytes == 16


@pytest.mark.parametrize(
    ("remark", "why"),
    [
        (
            "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due "
            "to non wgmma instructions reading accumulator registers of  a wgmma between start and "
            "end of the pipeline stage in the function 'bar' in line 12",
            "non wgmma instructions reading accumulator registers of a wgmma between start and "
            "end of the pipeline stage",
        ),
        (
            "(C7517) wgmma.wait_group is injected in around line 88 by compiler to allow use of "
            "registers defined by GMMA in function 'bar'",
            "wgmma.wait_group is injected to allow use of registers defined by GMMA",
        ),
    ],
)
def test_reads_why_multiplies_are_serialized(remark: str, why: str) -> None:
    found = ptxas_resources(f"ptxas info    : {remark}\n{LOG}")

    assert found["bar"].serialized_wgmma == why
    assert found["_Z3fooILi8EEvPf"].serialized_wgmma == ""

    called = ptxas_resources(f"ptxas info    : {remark}\n".replace("'bar'", "'help'") + LOG)
    assert [used.serialized_wgmma for used in called.values()] == [why, why]


def test_keeps_errors_and_drops_the_rest() -> None:
    log = """\
"kernel.cu": creating precompiled header file "/somewhere/kernel_0.pch"
kernel.cu(1): warning #177-D: variable "i" was declared but never referenced
  int i = 3;
      ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

kernel.cu(5): error: identifier "q" is undefined
  q[0] = 1;
  ^

1 error detected in the compilation of "kernel.cu".
"""
    expected = 'kernel.cu(5): error: identifier "q" is undefined\n  q[0] = 1;\n  ^'

    assert nvrtc_errors(log) == [expected]


def test_keeps_errors_of_the_assembler_and_of_options() -> None:
    log = """\
ptxas info    : 0 bytes gmem
ptxas error   : Entry function 'k' uses too much shared data (0x1c000 bytes, 0xc000 max)
ptxas info    : Compile time = 1 ms
"""

    assert nvrtc_errors(log) == [log.splitlines()[1]]
    assert nvrtc_errors("nvrtc: error: unrecognized option -O9 found\n") == [
        "nvrtc: error: unrecognized option -O9 found"
    ]
