"""How much faster a campaign of eleven operators ends on two and four places than on one.

    python benchmarks/campaign_scaling.py [--scale N] [--out FILE]
    python benchmarks/campaign_scaling.py --gpus 1,2 [--workloads N] [--trials N] --out FILE
                                                            (needs NVIDIA GPUs and CuPy)

With `--gpus` the jobs are `tune` on the first tuned workloads of each operator, in a fresh folder
and with empty caches each time, on so many GPUs of this machine, with all of its cores.

Without it no GPU is used. Each job is a process that waits as long as its operator's recording took
on an H200, by results/h200/, divided by the scale, and uses no core meanwhile: what is measured is
the campaign itself, which starts the processes, follows them, and fills the places as they come
free. What jobs take from one another on a real machine, cores above all, is not in it. Those with
the most workloads begin first, as in a campaign. `allowed` is what the waits alone allow in this
order, and `allowed_in_order_of_names` in that of a pattern.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from pathlib import Path

from environment import RESULTS as CPU_RESULTS
from environment import environment, require_clean, write_result

from tuner.device.cuda.driver import gpu_name
from tuner.extensions.scale.campaign.jobs import CampaignJob, tuning_job
from tuner.extensions.scale.campaign.run import Campaign
from tuner.model.settings import GivenSettings
from tuner.space.load import load_definition

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/h200"
OPERATORS = (
    "awq_dequantize",
    "fused_add_rmsnorm",
    "fused_qk_norm_rope",
    "merge_state",
    "moe_align_block_size",
    "moe_sum_reduce",
    "per_token_group_quant",
    "per_token_quant_fp8",
    "rmsnorm",
    "silu_and_mul",
    "topk_softmax",
)
PLACES = (1, 2, 4)
OUT = CPU_RESULTS / "campaign_scaling.json"


class Silent:
    """A listener that shows nothing."""

    def update(self, states: object) -> None:
        """Take the states."""


@dataclass(frozen=True, slots=True)
class Operator:
    """What its recording took, and on how many workloads."""

    name: str
    seconds: float
    workloads: int


def recorded() -> list[Operator]:
    """Read the eleven operators' results."""
    found = {
        name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in OPERATORS
    }
    return [Operator(n, one["seconds"], len(one["workloads"])) for n, one in found.items()]


def took_s(operators: Sequence[Operator], places: int, scale: float) -> float:
    """Run a campaign of jobs that wait; return its seconds."""
    waiting = "import sys, time; time.sleep(float(sys.argv[1]))"
    jobs = [
        CampaignJob(
            name=one.name,
            kernel="",
            key=one.name,
            start=(sys.executable, "-c", waiting, str(one.seconds / scale)),
            cost=one.workloads,
        )
        for one in operators
    ]
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(jobs, Path(folder), parallel=places)
        started_s = time.perf_counter()
        campaign.run(Silent())
        seconds = time.perf_counter() - started_s
    assert campaign.exit_code == 0
    return seconds


def tuned(gpus: int, workloads: int, trials: int | None) -> dict[str, object]:
    """Tune the operators on so many GPUs; tell the seconds in all and of each, and what failed."""
    compilers = max(1, len(os.sched_getaffinity(0)) // gpus)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [job_of(one, folder, workloads, trials, compilers) for one in OPERATORS]
        fresh = {"TUNER_CACHE_DIR": f"{folder}/tune", "CUPY_CACHE_DIR": f"{folder}/cupy"}
        campaign = Campaign(
            jobs, folder, gpus=range(gpus), environment={**fresh, "TUNE_STORE": "none"}
        )
        started_s = time.perf_counter()
        states = campaign.run(Silent())
        seconds = time.perf_counter() - started_s
    return {
        "gpus": gpus,
        "seconds": round(seconds, 1),
        "jobs": {one.name: round(one.seconds, 1) for one in states},
        "failed": {one.name: one.message for one in states if one.status != "done"},
    }


def job_of(
    operator: str, folder: Path, workloads: int, trials: int | None, compilers: int
) -> CampaignJob:
    """Make the job that tunes an operator on its first workloads."""
    kernel = ROOT / f"kernels/sglang/{operator}.cu"
    tuned = load_definition(ROOT / f"search_spaces/sglang/{operator}.yaml").spec.tuned
    settings: GivenSettings = {
        "device": "cuda",
        "workloads": tuple(one.key for one in tuned[:workloads]),
        "mutants": False,
    }
    if trials is not None:
        settings["trials"] = trials
    return tuning_job(operator, kernel, settings, folder, how=("--jobs", str(compilers)))


def on_gpus(asked: argparse.Namespace) -> None:
    """Run the campaign on each number of GPUs; write what is known after each."""
    known = {"device": gpu_name(0), **environment()}
    rows = []
    for gpus in map(int, asked.gpus.split(",")):
        rows.append(tuned(gpus, asked.workloads, asked.trials))
        print(rows[-1], flush=True)
        content = {"workloads_each": asked.workloads, "trials": asked.trials, "rows": rows}
        write_result(asked.out.resolve(), content | {"environment": known})


def allowed(operators: Sequence[Operator], places: int) -> float:
    """Return the speedup of jobs that each begin, in this order, on the first free place."""
    free_s = [0.0] * places
    for one in operators:
        heapreplace(free_s, free_s[0] + one.seconds)
    return sum(one.seconds for one in operators) / max(free_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=15.0, help="of the waits; 15 by default")
    parser.add_argument("--gpus", help="real ones: how many, each number a campaign")
    parser.add_argument("--workloads", type=int, default=2, help="of each operator on GPUs")
    parser.add_argument("--trials", type=int, help="of each workload on GPUs")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    require_clean()
    if asked.gpus:
        on_gpus(asked)
    else:
        write_result(asked.out.resolve(), simulated(asked.scale))


def simulated(scale: float) -> dict[str, object]:
    """Run the campaign of jobs that wait on each number of places."""
    operators = recorded()
    largest_first = sorted(operators, key=lambda one: -one.workloads)
    rows: list[dict[str, float]] = []
    for places in PLACES:
        seconds = took_s(operators, places, scale)
        alone_s = rows[0]["seconds"] if rows else seconds
        rows.append(
            {
                "places": places,
                "seconds": round(seconds, 2),
                "speedup": round(alone_s / seconds, 3),
                "allowed": round(allowed(largest_first, places), 3),
                "allowed_in_order_of_names": round(allowed(operators, places), 3),
            }
        )
        print(rows[-1], flush=True)
    return {
        "scale": scale,
        "recorded_s": {one.name: one.seconds for one in operators},
        "rows": rows,
        "environment": environment(),
    }


if __name__ == "__main__":
    main()
