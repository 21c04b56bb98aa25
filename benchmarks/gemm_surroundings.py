"""What of a product's gain a step keeps: costs of the same programs between other neighbours.

    python benchmarks/gemm_surroundings.py [--tokens 1,16,64,128] [--out FILE]
                                                            (needs an NVIDIA GPU and PyTorch)

The linear layers of Llama-3 8B, each as the session's dispatch serves it and as cuBLAS does: after
a stand-in that lets the product begin early, after one that doesn't, and after one that another
product of the model runs before, whose code and weights displace what caches held.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from environment import ROOT, write_result
from stand_ins import described, opened

if TYPE_CHECKING:
    from tuner.compiler.pool import NvrtcPool
    from tuner.space.plan import Plan

KERNEL = ROOT / "kernels/sglang/gemm_small_m.cu"
SPACE = ROOT / "search_spaces/sglang/gemm_small_m.yaml"
RESULT = ROOT / "benchmarks/results/h200/gemm_small_m.json"
OUT = ROOT / "benchmarks/results/h200/gemm_surroundings.json"
LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
PEERS = ("pytorch", "cublaslt", "cublaslt-tuned")
ROUNDS = 24
SURROUNDINGS = """surroundings:
  early:
    chain:
      - before: [{stream: "max(1048576, 4 * M * N)", writes: x, pdl: true}]
        after: [{stream: 1048576, reads: out}]
  waiting:
    chain:
      - before: [{stream: "max(1048576, 4 * M * N)", writes: x}]
        after: [{stream: 1048576, reads: out}]
  small:
    chain:
      - before: [{stream: "4 * M * K", writes: x}]
        after: [{stream: "2 * M * N", reads: out}]
  product:
    chain:
      - before: [{gemm: [M, K, 4096], writes: x}, {stream: "4 * M * K", writes: x}]
        after: [{stream: "2 * M * N", reads: out}]
"""
NAMES = ("early", "waiting", "small", "product")


@contextmanager
def described_anew() -> Iterator[Path]:
    """Write the search space with these surroundings to a file of its own."""
    text = SPACE.read_text(encoding="utf-8").replace("../../", f"{ROOT}/")
    begin, end = text.index("surroundings:\n"), text.index("min_bytes:")
    with TemporaryDirectory() as folder:
        path = Path(folder, SPACE.name)
        path.write_text(text[:begin] + SURROUNDINGS + text[end:], encoding="utf-8")
        yield path


def served_configs() -> Iterator[tuple[tuple[int, int, int], Mapping[str, Any]]]:
    """Give the config that the dispatch serves on each workload, or else the winner."""
    for row in json.loads(RESULT.read_text(encoding="utf-8"))["workloads"]:
        configs = [one for one in row["programs"] if one["kind"] == "config"]
        served = [one for one in configs if one["name"] == row["dispatch"]] or configs
        yield tuple(row["axes"].values()), served[0]["config"]


def compare_layer(
    plan: Plan, compiler: NvrtcPool, shape: tuple[int, int, int], config: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Cost one layer's programs between each kind of neighbours, and say on which GPU."""
    from tuner.device.base import Program
    from tuner.device.reference import peer_program
    from tuner.model.config import Config
    from tuner.model.kernel import Workload
    from tuner.model.statistics import cost_us
    from tuner.space.surroundings import choose_surroundings

    workload = Workload.of(dict(zip("MNK", shape, strict=True)))
    for name in NAMES:
        with opened(plan, compiler, choose_surroundings(plan.spec, name)) as (device, evaluator):
            tuned = evaluator.ready(evaluator.start(workload, Config.of(config)))
            assert isinstance(tuned, Program), tuned
            peers = [peer_program(one, plan.spec.reference, workload) for one in PEERS]
            rows = device.compare([tuned, *peers], rounds=ROUNDS)
            assert not any(rows.faults), rows.faults
            costs = [cost_us(column) for column in zip(*rows.times_us, strict=True)]
            row = dict(zip(("tuned", *PEERS), (round(us, 4) for us in costs), strict=True))
            alone = [round(us, 4) for us in rows.alone_us]
            yield (
                {"workload": workload.key, "neighbours": name, "us": row, "alone_us": alone},
                described(device, compiler),
            )


def main() -> None:
    from tuner.app.plan import new_plan
    from tuner.compiler.pool import NvrtcPool

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--tokens", type=lambda t: list(map(int, t.split(","))), default="1,16,64,128"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    asked, rows, configs = parser.parse_args(), [], dict(served_configs())
    with described_anew() as space, NvrtcPool() as compiler:
        plan = new_plan(KERNEL, {"space": space})
        for shape in ((tokens, *layer) for tokens in asked.tokens for layer in LAYERS):
            for row, environment in compare_layer(plan, compiler, shape, configs[shape]):
                rows.append(row)
                print(row, flush=True)
                content = {"rounds": ROUNDS, "surroundings": SURROUNDINGS, "rows": rows}
                write_result(asked.out, {**content, "environment": environment})


if __name__ == "__main__":
    main()
