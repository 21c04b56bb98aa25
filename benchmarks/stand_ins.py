"""Do stand-ins rank configs as the products of a model do? Costs of the same configs between both.

    python benchmarks/stand_ins.py [--tokens 1,16,64,128] [--configs 30] [--rounds 32] [--out FILE]
                                                            (needs an NVIDIA GPU and CuPy)

Per number of tokens: the rank correlation of the costs, what it is between two halves of the same
rounds, and the regret, by how much the config that is best between stand-ins is slower between the
products than the best there.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from environment import write_result

if TYPE_CHECKING:
    from tuner.compiler.pool import NvrtcPool
    from tuner.device.base import Device, Program
    from tuner.model.config import Config
    from tuner.model.kernel import KernelSpec, Workload
    from tuner.space.plan import Plan
    from tuner.tuning.evaluator import Evaluator

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ROOT / "kernels/sglang/fused_add_rmsnorm.cu"
HIDDEN = 4096
REAL, STAND_IN = "decode", "stand_in"
CONFIGS, ROUNDS = 30, 32
OUT = ROOT / "benchmarks/results/h200/stand_ins.json"


@dataclass(frozen=True, slots=True)
class Costs:
    """What programs cost in a chain, by all rounds and by those of even and of odd number."""

    us: list[float]
    even_us: list[float]
    odd_us: list[float]

    @property
    def repeats(self) -> float:
        """The rank correlation with themselves: no other one can be expected to be higher."""
        return rank_correlation(self.even_us, self.odd_us)


@contextmanager
def opened(plan: Plan, compiler: NvrtcPool, spec: KernelSpec) -> Iterator[tuple[Device, Evaluator]]:
    """Open the GPU for a spec of the plan's kernel, with what tries its configs."""
    from tuner.device.cuda.device import CudaDevice
    from tuner.tuning.evaluator import evaluator_of

    device = CudaDevice(0, spec, plan.config.operators)
    try:
        yield device, evaluator_of(replace(plan, spec=spec), compiler, device)
    finally:
        device.close()


def described(device: Device, compiler: NvrtcPool) -> dict[str, str]:
    """Describe the GPU and its software; the commit is for `write_result` to say."""
    from tuner.app.environment import environment_of

    known = environment_of(device, compiler, ROOT)
    return {name: value for name, value in known.items() if name != "commit"}


def sampled(plan: Plan, evaluator: Evaluator, workload: Workload, count: int) -> list[Config]:
    """Take the suggestions, and valid configs at random, the same ones every time."""
    from tuner.model.config import Config

    rng, names = random.Random(5), evaluator.names(workload)  # noqa: S311 - any sample will do
    tried = [config for config in (plan.space.default, *plan.space.suggestions) if config]
    found = [one for one in tried if plan.space.violated(one, names) is None]
    for _ in range(100_000):
        config = Config.of({p.name: rng.choice(p.values) for p in plan.space.parameters})
        if len(found) == count:
            break
        if plan.space.violated(config, names) is None and config not in found:
            found.append(config)
    return found


def programs(plan: Plan, evaluator: Evaluator, workload: Workload, count: int) -> list[Program]:
    """Compile the baseline and a sample of configs that can run."""
    from tuner.device.base import Program

    # Some spill, which the space forbids.
    pending = [evaluator.start(workload, c) for c in sampled(plan, evaluator, workload, 2 * count)]
    ready = (one for one in map(evaluator.ready, pending) if isinstance(one, Program))
    return [evaluator.baseline_program(workload), *islice(ready, count)]


def costs_us(device: Device, everything: Sequence[Program], rounds: int) -> Costs:
    """Compare half of them at a time: graphs of real products take memory."""
    columns: list[tuple[float, ...]] = []
    half = len(everything) // 2
    for some in (everything[:half], everything[half:]):
        rows = device.compare(some, rounds=rounds)
        assert not any(rows.faults), rows.faults
        columns += zip(*rows.times_us, strict=True)
    return Costs(
        [median(column) for column in columns],
        [median(column[0::2]) for column in columns],
        [median(column[1::2]) for column in columns],
    )


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Compute Spearman's, for values without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def both(
    plan: Plan, compiler: NvrtcPool, tokens: int, configs: int, rounds: int
) -> tuple[Costs, Costs, dict[str, str]]:
    """Cost the same programs between products and between stand-ins, and say on which GPU."""
    from tuner.model.kernel import Workload
    from tuner.space.surroundings import choose_surroundings

    workload, found = Workload.of({"T": tokens, "H": HIDDEN}), []
    for name in (REAL, STAND_IN):
        with opened(plan, compiler, choose_surroundings(plan.spec, name)) as (device, evaluator):
            everything = programs(plan, evaluator, workload, configs)
            found.append(costs_us(device, everything, rounds))
            environment = described(device, compiler)
    real, stand_in = found
    return real, stand_in, environment


def row_of(tokens: int, real: Costs, stand_in: Costs) -> dict[str, Any]:
    """Compare two lists of costs; the first of each is the baseline's."""
    chosen = min(range(1, len(real.us)), key=lambda k: stand_in.us[k])
    return {
        "T": tokens,
        "configs": len(real.us) - 1,
        "rank_correlation": round(rank_correlation(real.us, stand_in.us), 4),
        "repeats": [round(one.repeats, 4) for one in (real, stand_in)],
        "regret": round(real.us[chosen] / min(real.us[1:]) - 1.0, 4),
        "real_us": [round(us, 4) for us in real.us],
        "stand_in_us": [round(us, 4) for us in stand_in.us],
    }


def with_earlier(out: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the rows of an earlier result for other numbers of tokens, with its commit."""
    known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"rows": []}
    made = {row["T"]: row for row in rows}
    earlier = {row["T"]: {"commit": known["environment"]["commit"], **row} for row in known["rows"]}
    found = earlier | made
    return [found[tokens] for tokens in sorted(found)]


def main() -> None:
    from tuner.app.plan import new_plan
    from tuner.compiler.pool import NvrtcPool

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--tokens", type=lambda t: list(map(int, t.split(","))), default="1,16,64,128"
    )
    parser.add_argument("--configs", type=int, default=CONFIGS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    plan, rows = new_plan(KERNEL, {}), []
    with NvrtcPool() as compiler:
        for tokens in asked.tokens:
            *costs, environment = both(plan, compiler, tokens, asked.configs, asked.rounds)
            rows.append(row_of(tokens, *costs))
            print(
                {name: rows[-1][name] for name in ("T", "rank_correlation", "repeats", "regret")},
                flush=True,
            )
            content = {"kernel": KERNEL.stem, "H": HIDDEN, "configs": asked.configs}
            content |= {"real": REAL, "stand_in": STAND_IN, "rounds": asked.rounds}
            content |= {"rows": with_earlier(asked.out, rows)}
            write_result(asked.out, {**content, "environment": environment})


if __name__ == "__main__":
    main()
