"""A worker's raw answer made into a result."""

from __future__ import annotations

import time

import pytest

from tuner.compiler.base import CompileRequest, result_of

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


@pytest.mark.parametrize("piece", ["__global__ ", "__global__", "_", "a ", "__a__(", "__a__(()"])
def test_a_hostile_source_takes_time_that_grows_with_its_length(piece: str) -> None:
    source = "__global__ " + piece * (400_000 // len(piece))
    start = time.perf_counter()
    error_of(source)
    assert time.perf_counter() - start < 2
