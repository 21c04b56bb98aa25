"""One kernel as a peer that writes in place and as one that returns: the same cost in a chain."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.app.plan import new_plan
from tuner.compiler.pool import NvrtcPool
from tuner.device.reference import peer_program
from tuner.model.kernel import Workload

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from returned_results import KERNEL, PEERS, TOKENS, compared
from stand_ins import opened

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None,
    reason="PyTorch and Triton are not installed",
)

# Where outputs lie differs, too: within what two runs of one kernel differ by in a chain.
NOISE = 0.03
NOISE_US = 0.1


@pytest.mark.parametrize("tokens", TOKENS)
def test_a_returned_result_is_read_where_it_lies(compiler: NvrtcPool, tokens: int) -> None:
    row, _ = compared(compiler, tokens)
    apart_us = abs(row["returned_us"] - row["in_place_us"])
    assert apart_us < max(NOISE * row["in_place_us"], NOISE_US), row


def test_a_result_that_is_not_contiguous_is_one_error(compiler: NvrtcPool, tmp_path: Path) -> None:
    plan = new_plan(KERNEL, {})
    reference = tmp_path / "silu_and_mul.py"
    reference.write_text(plan.spec.reference.read_text() + PEERS)
    workload = Workload.of({"T": 16, "D": 14336})
    with opened(plan, compiler, replace(plan.spec, reference=reference)) as (device, _):
        program = peer_program("strided", reference, workload)
        outcome = device.run(program)
    assert "not contiguous" in outcome.reason
