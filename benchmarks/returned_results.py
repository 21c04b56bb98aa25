"""One kernel as a peer that writes in place and as one that returns its result: the same cost?

    python benchmarks/returned_results.py [--out FILE]    (needs an NVIDIA GPU, PyTorch, Triton)

Both are launched by the same function between an operator's neighbours, in the same rounds. What
follows the second one reads what it returned: the output that it leaves unwritten is in no cache.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from environment import write_result
from stand_ins import described, opened

if TYPE_CHECKING:
    from tuner.compiler.pool import NvrtcPool

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ROOT / "kernels/sglang/silu_and_mul.cu"
OUT = ROOT / "benchmarks/results/h200/returned_results.json"
TOKENS, WIDTH, ROUNDS = (16, 128, 1024, 4096), 14336, 40
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


def compared(compiler: NvrtcPool, tokens: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Compare both forms on one workload, and say on which GPU."""
    from tuner.app.plan import new_plan
    from tuner.device.reference import peer_program
    from tuner.model.kernel import Workload
    from tuner.model.statistics import cost_us, paired_interval

    plan, workload = new_plan(KERNEL, {}), Workload.of({"T": tokens, "D": WIDTH})
    with TemporaryDirectory() as folder:
        reference = Path(folder) / "silu_and_mul.py"
        reference.write_text(plan.spec.reference.read_text() + PEERS)
        with opened(plan, compiler, replace(plan.spec, reference=reference)) as (device, evaluator):
            both = [peer_program(name, reference, workload) for name in ("in-place", "returning")]
            timed = device.compare([evaluator.baseline_program(workload), *both], rounds=ROUNDS)
            environment = described(device, compiler)
    assert not any(timed.faults), timed.faults
    assert timed.alone_us, "the operator has neighbours"
    here, there = ([row[k] for row in timed.times_us] for k in (1, 2))
    ratio, interval = paired_interval(there, here, 0)
    row = {"T": tokens, "in_place_us": cost_us(here), "returned_us": cost_us(there)}
    return {
        **row,
        "ratio": ratio,
        "interval": interval,
        "alone_us": timed.alone_us[1:],
    }, environment


def main() -> None:
    from tuner.compiler.pool import NvrtcPool

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    asked, rows = parser.parse_args(), []
    with NvrtcPool() as compiler:
        for tokens in TOKENS:
            row, environment = compared(compiler, tokens)
            rows.append(row)
            print(row, flush=True)
    write_result(
        asked.out, {"D": WIDTH, "rounds": ROUNDS, "rows": rows, "environment": environment}
    )


if __name__ == "__main__":
    main()
