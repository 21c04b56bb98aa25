"""Does another seed find another winner? Two searches of an operator, their winners side by side.

    python benchmarks/two_seeds.py [--operator NAME ...] [--workload T=1,H=4096 ...] [--trials N]
                                   [--rounds N] [--out FILE]      (needs an NVIDIA GPU and CuPy)

Each operator is tuned twice, in its surroundings, with seeds 0 and 1 and nothing else in common.
Then both winners of each tuned workload run in the same rounds, until their ratio is known to 0.3 %
or there are N: the regret is how much slower the slower one is, 0 where both are the same config.
Where its interval begins below 0 the two were not told apart. FILE keeps what it has of other
operators.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from environment import provenance, write_result
from running import tuned
from stand_ins import described, opened

if TYPE_CHECKING:
    from tuner.device.base import Device
    from tuner.model.config import Config
    from tuner.model.kernel import KernelSpec, Workload
    from tuner.tuning.evaluator import Evaluator

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks/results/h200/two_seeds.json"
OPERATORS = ("fused_add_rmsnorm", "silu_and_mul")
SEEDS = (0, 1)
# A round of an operator of a microsecond scatters by 5 to 20 %.
ROUNDS, BATCH = 1024, 64
APART = 0.003


def winners(
    spec: KernelSpec, seed: int, trials: int | None, session: Path, workloads: Sequence[str] = ()
) -> dict[Workload, Config]:
    """Tune, and return the winning config of every tuned workload, or of these."""
    from tuner.session.session import Session

    words = [str(spec.source), "--device", "cuda", "--quiet", "--seed", str(seed)]
    words += ["--session", str(session), *(["--trials", str(trials)] if trials else [])]
    for key in workloads or [workload.key for workload in spec.tuned]:
        words += ["--workload", key]
    tuned(*words)
    with Session.open(session, read_only=True) as found:
        return {one.workload: one.config for one in found.results()}


def compared(
    device: Device, evaluator: Evaluator, workload: Workload, configs: list[Config], rounds: int
) -> dict[str, Any]:
    """Run the two winners in the same rounds, unless they are one."""
    from tuner.model.statistics import paired_interval

    row = {"workload": workload.key, "configs": [dict(config) for config in configs]}
    if configs[0] == configs[1]:
        return {**row, "same": True, "regret": 0.0}
    made = [evaluator.program(workload, config) for config in configs]
    rows: list[Sequence[float | None]] = []
    while True:
        rows += device.rank(made, rounds=min(BATCH, rounds - len(rows)))
        first, second = zip(*rows, strict=True)
        if None in (*first, *second):
            raise RuntimeError(f"{workload}: a winner is wrong after the rounds")
        slower, faster = sorted((first, second), key=median, reverse=True)
        ratio, interval = paired_interval(slower, faster, 0)
        if len(rows) >= rounds or interval[1] - interval[0] <= 2 * APART:
            break
    return {
        **row,
        "same": False,
        "rounds": len(rows),
        "us": [round(median(times), 4) for times in (first, second)],
        "regret": round(max(ratio - 1.0, 0.0), 5),
        "interval": [round(bound - 1.0, 5) for bound in interval],
    }


def measured(
    name: str, trials: int | None, rounds: int, workloads: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Search one operator with both seeds and compare what they found; tell after each workload."""
    from tuner.app.plan import new_plan
    from tuner.compiler.pool import NvrtcPool

    plan = new_plan(ROOT / f"kernels/sglang/{name}.cu", {})
    found, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            began_s = time.monotonic()
            found.append(winners(plan.spec, seed, trials, Path(folder, str(seed)), workloads))
            seconds.append(round(time.monotonic() - began_s, 1))
    rows = []
    with NvrtcPool() as compiler, opened(plan, compiler, plan.spec) as (device, evaluator):
        for workload in [one for one in found[0] if one in found[1]]:
            configs = [of[workload] for of in found]
            rows.append(compared(device, evaluator, workload, configs, rounds))
            environment = {**provenance(), **described(device, compiler)}
            searched = {"kernel": name, "trials": trials, "rounds": rounds, "seconds": seconds}
            yield {**searched, "workloads": rows, "environment": environment}


def kept(path: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Read what was measured before of operators that are not asked for now."""
    if not path.exists():
        return []
    known: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["operators"]
    return [one for one in known if one["kernel"] not in names]


def main() -> None:
    from tuner.model.errors import TunerError

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operator", action="append", metavar="NAME", help="repeatable")
    parser.add_argument("--workload", action="append", default=[], metavar="KEY", help="repeatable")
    parser.add_argument("--trials", type=int, help="of each workload; else what `tune` takes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    names = asked.operator or OPERATORS
    done, failed = kept(asked.out, names), []
    for name in names:
        try:
            for one in measured(name, asked.trials, asked.rounds, asked.workload):
                operators = [*done, one]
                content = {"seeds": list(SEEDS), "operators": operators}
                write_result(asked.out, content | {"environment": one["environment"]})
        except (subprocess.CalledProcessError, TunerError, RuntimeError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
            continue
        done.append(one)
        regrets = [row["regret"] for row in one["workloads"]]
        print(f"{name}: median {median(regrets):.2%}, worst {max(regrets):.2%}", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
