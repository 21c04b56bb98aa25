"""The machine code of a winner beside the baseline's, line by line."""

from __future__ import annotations

import pytest

from tuner.analysis.sass import find_nvdisasm
from tuner.compiler.base import CompileRequest
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Program
from tuner.model.kernel import Workload
from tuner.session.events import CodeLine
from tuner.tuning.machine_code import Built, compare_code

pytestmark = pytest.mark.skipif(find_nvdisasm() is None, reason="there is no disassembler")
BEFORE = """\
extern "C" __global__ void scale(float* y, const float* x, int n, int m) {
  const int row = threadIdx.x / m;
  y[threadIdx.x] = 2.0f * x[threadIdx.x + row];
}
"""
AFTER = """\
// Two at a time, and no division.
extern "C" __global__ void scale(float* y, const float* x, int n, int m) {
    const int row = threadIdx.x >> 5;
  y[threadIdx.x]  = 2.0f * x[threadIdx.x + row];
}
"""


def build(compiler: NvrtcPool, source: str, options: tuple[str, ...] = ("-lineinfo",)) -> Built:
    result = compiler.submit(CompileRequest(source, ("scale",), "sm_90a", options)).result(60)
    assert result.ok, result.error
    return Built(source, Program("key", Workload.of({"N": 32}), (), result.cubin, result.lowered))


def test_a_line_of_both_is_compared_with_itself_and_others_grow_or_go(compiler: NvrtcPool) -> None:
    (old, new), lines = compare_code(build(compiler, BEFORE), build(compiler, AFTER))
    assert old > new > 5
    first = lines[0]
    assert (first.text, first.line_before) == ("const int row = threadIdx.x / m;", 2)
    assert first.line_after is None
    assert "IMAD.HI.U32" in first.before
    assert not first.after

    def of(text: str) -> list[CodeLine]:
        return [line for line in lines if text in line.text]

    assert [(one.line_before, one.line_after) for one in of(">> 5")] == [(None, 3)]
    assert [(one.line_before, one.line_after) for one in of("2.0f")] in ([], [(3, 4)])


def test_equal_code_has_no_lines_and_unread_code_counts_nothing(compiler: NvrtcPool) -> None:
    same = build(compiler, BEFORE)
    assert compare_code(same, same)[1] == ()
    assert compare_code(same, Built(AFTER, Program("key", Workload(()), ())))[0][1] == 0
    assert compare_code(same, build(compiler, BEFORE, ()))[0][1] == 0
