"""What it takes to compile a config of the tensor-core GEMMs on one core, for sm_90a.

    python benchmarks/compile_time.py [--configs 60] [--out FILE]               (needs no GPU)

Random valid configs of random workloads of each operator, one after the other in one compiler's
process, without a cache: the compiler's own seconds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from environment import ROOT, environment, require_clean, write_result

if TYPE_CHECKING:
    from tuner.compiler.base import Compiler, CompileRequest

OPERATORS: dict[str, dict[str, str]] = {
    "gemm_small_m": {"OUT": "bf16"},
    "gemm_fp8": {"SCALES": "token"},
    "gate_up_silu": {},
}
SEED = 0


def requests(name: str, count: int, compiler: Compiler) -> Iterator[CompileRequest]:
    """Draw workloads of an operator, and of each a valid config."""
    from tuner.app.check import UnavailableDevice, target_info
    from tuner.app.plan import new_plan
    from tuner.search.pool import valid_configs
    from tuner.tuning.evaluator import evaluator_of

    kernel = ROOT / f"kernels/sglang/{name}.cu"
    plan = new_plan(kernel, {"device": "cuda", "operators": OPERATORS[name]})
    evaluator = evaluator_of(plan, compiler, UnavailableDevice(target_info("sm_90a")))
    drawn = random.Random(SEED)  # noqa: S311, a sample
    pools = {}
    for workload in drawn.choices(plan.config.workloads, k=count):
        if workload not in pools:
            pools[workload] = valid_configs(plan.space, evaluator.names(workload))
        yield evaluator.request(workload, pools[workload][drawn.randrange(len(pools[workload]))])


def measured(name: str, count: int) -> dict[str, Any]:
    """Compile configs of one operator; every one has to compile."""
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool

    with (
        tempfile.TemporaryDirectory() as folder,
        closing(NvrtcPool(1, cache=Cache(Path(folder)))) as compiler,
    ):
        made = [compiler.submit(one).result() for one in requests(name, count, compiler)]
        assert all(one.ok for one in made), next(one.error for one in made if not one.ok)
        seconds = sorted(one.seconds for one in made)
        found = {"operator": name, "configs": len(made), "compiler": compiler.version}
    return {
        **found,
        "median_s": round(median(seconds), 3),
        "longest_tenth_s": round(seconds[len(seconds) * 9 // 10], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--configs", type=int, default=60, help="of each operator")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    require_clean()
    rows = []
    for name in OPERATORS:
        rows.append(measured(name, asked.configs))
        print(rows[-1], flush=True)
    write_result(asked.out or "compile_time", {"environment": environment(), "rows": rows})


if __name__ == "__main__":
    main()
