"""Renew all recordings and all results of this GPU, one after the other or on several GPUs at once.

    python benchmarks/record_all.py [NAME ...] [--trials N] [--folder DIR] [--fresh]
    python benchmarks/record_all.py NAME [--workload T=1,H=4096 ...] [--operator SCALES=block ...]
                                         [--peer pytorch ...]

NAME is an operator, or a benchmark whose result lies in results/GPU/; all, unless some are named.
It is a campaign (docs/campaigns.md): started again, it goes on with what is left, and a recording
goes on from its last trial. A job that fails is told; the others are done all the same. All of it
must come from one clean commit: in a copy without .git `TUNE_COMMIT` names it.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environment import provenance, require_clean, write_result
from rich.console import Console

from tuner.app.record import gpu_folder
from tuner.cli.exits import interrupt_on_sigterm
from tuner.device.cuda.driver import gpu_name
from tuner.device.select import gpu_count
from tuner.extensions.scale.campaign.jobs import CampaignJob, tuning_job
from tuner.extensions.scale.campaign.run import Campaign
from tuner.extensions.scale.campaign_view import make_campaign_view
from tuner.model.errors import INTERRUPTED, InputError
from tuner.model.settings import GivenSettings

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
FOLDER = ROOT / "sessions/record"
TRIALS = 20
# What the README runs: whoever has no GPU tries other searches and budgets on it.
MORE_TRIALS = {"silu_and_mul": 60}
BENCHMARKS = (
    "energy",
    "two_seeds",
    "stand_ins",
    "launch_floor",
    "same_kernel",
    "verification_cost",
    "throughput",
    "cold_tune",
)
# Longer than any recording.
LONGEST = frozenset({"energy", "two_seeds"})
# What depends on the compilers' speed has the machine to itself.
ALONE = frozenset({"verification_cost", "throughput", "cold_tune"})


def operators() -> list[str]:
    """Name the operators whose kernels are CUDA."""
    return sorted(path.stem for path in (ROOT / "kernels/sglang").glob("*.cu"))


@dataclass(frozen=True, slots=True)
class Part:
    """What is asked of an operator: some workloads and peers, or all, of one of its choices.

    Beside a kernel lies the recording of its first choice; another's stays with its session.
    """

    workloads: Sequence[str] = ()
    peers: Sequence[str] = ()
    operators: Mapping[str, str] = field(default_factory=dict)

    def named(self, operator: str) -> str:
        """Name its job and its result: `gemm_fp8`, or `gemm_fp8-block` for another choice."""
        return "-".join((operator, *self.operators.values()))


WHOLE = Part()


def recording_job(
    name: str, folder: Path, trials: int, compilers: int, results: Path, part: Part = WHOLE
) -> CampaignJob:
    """Make the job that measures an operator beside its peers; writes its recording and result."""
    job = part.named(name)
    script, out = ROOT / "benchmarks/summarize_session.py", results / f"{job}.json"
    how = ["--jobs", str(compilers)]
    if part.operators:
        how += ["--out", str(folder / f"{job}.json.xz")]
    settings: GivenSettings = {"device": "cuda", "trials": trials, "peers": part.peers or True}
    if part.workloads:
        settings["workloads"] = tuple(part.workloads)
    if part.operators:
        settings["operators"] = dict(part.operators)
    return tuning_job(
        job,
        ROOT / f"kernels/sglang/{name}.cu",
        settings,
        folder,
        record=True,
        how=tuple(how),
        finish=((sys.executable, str(script), str(folder / job), "--out", str(out)),),
    )


def benchmark_job(name: str, results: Path) -> CampaignJob:
    """Make the job that runs one of the benchmarks beside this file."""
    script = ROOT / f"benchmarks/{name}.py"
    content = hashlib.sha256()
    for path in sorted([script, *(ROOT / "benchmarks/spaces").glob(f"{name}.*")]):
        content.update(path.read_bytes())
    return CampaignJob(
        name=name,
        kernel="",
        key=content.hexdigest()[:16],
        start=(sys.executable, str(script), "--out", str(results / f"{name}.json")),
        needs_gpu=True,
        alone=name in ALONE,
        cost=math.inf if name in LONGEST else 0.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--trials", type=int, help=f"of each workload; {TRIALS}, more for the README's example"
    )
    parser.add_argument(
        "--workload", action="append", default=[], help="in place of all of its space; repeatable"
    )
    parser.add_argument(
        "--operator", action="append", default=[], metavar="NAME=VALUE", help="repeatable"
    )
    parser.add_argument(
        "--peer", action="append", default=[], help="in place of all of its reference; repeatable"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--fresh", action="store_true", help="forget what is done")
    asked = parser.parse_args()
    gpus = gpu_count()
    if not gpus:
        parser.exit(2, "no NVIDIA GPU was found\n")
    names = [*BENCHMARKS, *operators()]
    unknown = set(asked.names) - set(names)
    if unknown:
        parser.error(f"no job named {min(unknown)}: {', '.join(names)}")
    part = _part(parser, asked)
    commit = require_clean()
    results = RESULTS / gpu_folder(gpu_name(0))
    wanted = [name for name in names if not asked.names or name in asked.names]
    try:
        campaign = Campaign(
            list(_jobs(wanted, asked, part, results, gpus)),
            asked.folder,
            gpus=range(gpus),
            environment={"TUNE_STORE": "none", "TUNE_COMMIT": commit},
            fresh=asked.fresh,
        )
        _run(campaign)
    except KeyboardInterrupt:
        parser.exit(INTERRUPTED, "interrupted; the same command goes on with what is left\n")
    except InputError as error:
        parser.exit(2, f"Error: {error}\n")
    states = campaign.states
    left = [one.name for one in states if not one.kept]
    print(
        f"{len(left)} of {len(states)} jobs; {campaign.ledger.wall_s:.0f} s in all on {gpus} GPUs"
    )
    if campaign.exit_code:
        print("FAILED:", ", ".join(one.name for one in states if one.status != "done"))
        raise SystemExit(campaign.exit_code)
    if not asked.names:
        _write_times(campaign, gpus, results)


def _jobs(
    names: Sequence[str], asked: argparse.Namespace, part: Part, results: Path, gpus: int
) -> Iterator[CampaignJob]:
    compilers = max(1, len(os.sched_getaffinity(0)) // min(gpus, len(names)))
    for name in names:
        if name in BENCHMARKS:
            yield benchmark_job(name, results)
        else:
            trials = asked.trials or MORE_TRIALS.get(name, TRIALS)
            yield recording_job(name, asked.folder, trials, compilers, results, part)


def _part(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> Part:
    choices = [text.partition("=") for text in asked.operator]
    part = Part(asked.workload, asked.peer, {name: value for name, _, value in choices})
    if part != Part([], []) and (len(asked.names) != 1 or asked.names[0] in BENCHMARKS):
        parser.error("--workload, --peer and --operator are of one operator: name it alone")
    return part


def _run(campaign: Campaign) -> None:
    with interrupt_on_sigterm(), make_campaign_view(Console(highlight=False)) as view:
        campaign.run(view)


def _write_times(campaign: Campaign, gpus: int, results: Path) -> None:
    """Keep how long the whole campaign took."""
    content = {
        "gpus": gpus,
        "cores": len(os.sched_getaffinity(0)),
        "environment": provenance(),
        "runs": campaign.ledger.runs,
        "wall_s": campaign.ledger.wall_s,
        "seconds": {one.name: one.seconds for one in campaign.states},
    }
    write_result(results / "record_all.json", content)


if __name__ == "__main__":
    main()
