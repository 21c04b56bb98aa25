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
from tuner.model.statistics import cost_us, paired_interval

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from stand_ins import opened

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None,
    reason="PyTorch and Triton are not installed",
)

ROOT = Path(__file__).parents[2]
ROUNDS = 40
# Where outputs lie differs, too: within what two runs of one kernel differ by in a chain.
NOISE = 0.03
NOISE_US = 0.1
PEERS = """

import triton
import triton.language as tl


@triton.jit
def gated(out, x, D, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x + row * 2 * D + columns, mask=columns < D).to(tl.float32)
    up = tl.load(x + row * 2 * D + D + columns, mask=columns < D).to(tl.float32)
    value = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row * D + columns, value.to(tl.bfloat16), mask=columns < D)


def launched(out, tensors, axes):
    rows, width = axes["T"], axes["D"]
    gated[rows, triton.cdiv(width, 1024)](out, tensors["input"], width, BLOCK=1024)


def in_place(tensors, axes, **operator):
    launched(tensors["out"], tensors, axes)


def returning(tensors, axes, **operator):
    import torch

    out = torch.empty_like(tensors["out"])
    launched(out, tensors, axes)
    return {"out": out}


def strided(tensors, axes, **operator):
    import torch

    out = returning(tensors, axes)["out"]
    wide = torch.cat((out, out), dim=1)
    return {"out": wide[:, : axes["D"]]}


peers = {"in-place": in_place, "returning": returning, "strided": strided}
"""


@pytest.mark.parametrize("tokens", [16, 128, 1024, 4096])
def test_a_returned_result_is_read_where_it_lies(
    compiler: NvrtcPool, tmp_path: Path, tokens: int
) -> None:
    plan = new_plan(ROOT / "kernels/sglang/silu_and_mul.cu", {})
    reference = tmp_path / "silu_and_mul.py"
    reference.write_text(plan.spec.reference.read_text() + PEERS)
    spec = replace(plan.spec, reference=reference)
    workload = Workload.of({"T": tokens, "D": 14336})
    with opened(plan, compiler, spec) as (device, evaluator):
        baseline = evaluator.baseline_program(workload)
        both = [peer_program(name, reference, workload) for name in ("in-place", "returning")]
        timed = device.compare([baseline, *both], rounds=ROUNDS)
    assert not any(timed.faults), timed.faults
    assert timed.alone_us, "the operator has neighbours"
    _, here, there = ([row[k] for row in timed.times_us] for k in range(3))
    ratio, (low, high) = paired_interval(there, here, 0)
    print(
        f"T={tokens}: in place {cost_us(here):.3f} us, returned {cost_us(there):.3f} us, "
        f"{ratio:.4f} [{low:.4f}, {high:.4f}]"
    )
    assert abs(cost_us(there) - cost_us(here)) < max(NOISE * cost_us(here), NOISE_US)


def test_a_result_that_is_not_contiguous_is_one_error(compiler: NvrtcPool, tmp_path: Path) -> None:
    plan = new_plan(ROOT / "kernels/sglang/silu_and_mul.cu", {})
    reference = tmp_path / "silu_and_mul.py"
    reference.write_text(plan.spec.reference.read_text() + PEERS)
    workload = Workload.of({"T": 16, "D": 14336})
    with opened(plan, compiler, replace(plan.spec, reference=reference)) as (device, _):
        program = peer_program("strided", reference, workload)
        outcome = device.run(program)
    assert "not contiguous" in outcome.reason
