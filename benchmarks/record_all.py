"""Renew all recordings and all results of this GPU, one after the other or on several GPUs at once.

    python benchmarks/record_all.py [NAME ...] [--trials N] [--folder DIR] [--fresh]

NAME is an operator, or a benchmark whose result lies in results/h200/; all, unless some are named.
What ended well is noted in FOLDER/done.json with a hash of its files: started again, the script
goes on with what is left, and a recording goes on from its last trial. A job that fails is told;
the others are done all the same. All of it must come from one clean commit: in a copy without .git
`TUNE_COMMIT` names it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from environment import provenance, require_clean, write_result

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/h200"
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
LONGEST = frozenset({"energy", "two_seeds", *MORE_TRIALS})
# What depends on the compilers' speed has the machine to itself.
ALONE = frozenset({"verification_cost", "throughput", "cold_tune"})


@dataclass(frozen=True, slots=True)
class Job:
    """One thing to renew: `run` takes the GPU's number; `alone` wants the machine for itself.

    `finish` needs no GPU: the next job runs meanwhile.
    """

    name: str
    run: Callable[[int], None]
    inputs: Sequence[Path]
    alone: bool = False
    finish: Callable[[], None] = lambda: None

    @property
    def key(self) -> str:
        """A hash of the files that the outcome depends on."""
        content = hashlib.sha256()
        for path in sorted(self.inputs):
            content.update(path.read_bytes())
        return content.hexdigest()[:16]


class Campaign:
    """Run jobs and keep what is done, with the seconds of each and those of all runs together.

    The seconds of a job are those of its GPU, with what it took in runs that ended before it did.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "done.json"
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        known = {"wall_s": 0.0, "runs": 0, "jobs": {}, "unfinished": {}}
        if self._path.exists():
            known |= json.loads(self._path.read_text(encoding="utf-8"))
        self.done: dict[str, Any] = known["jobs"]
        self.failed: list[str] = []
        self.runs: int = known["runs"] + 1
        self._unfinished: dict[str, float] = known["unfinished"]
        self._before_s, self._started_s = known["wall_s"], time.monotonic()

    @property
    def wall_s(self) -> float:
        """How long it has taken so far, without the pauses between its runs."""
        return round(self._before_s + time.monotonic() - self._started_s, 1)

    def forget(self) -> None:
        """Begin anew."""
        self.done.clear()
        self._unfinished.clear()
        self._before_s, self.runs = 0.0, 1

    def left(self, jobs: Sequence[Job]) -> list[Job]:
        """List what isn't done, or was done with other files."""
        return [job for job in jobs if self.done.get(job.name, {}).get("key") != job.key]

    def run(self, job: Job, gpus: SimpleQueue[int]) -> None:
        """Run one job on a GPU that is free; a failure is told and kept for the end."""
        gpu = gpus.get()
        print(f"{_clock()} {job.name} on GPU {gpu}", flush=True)
        self.save()
        started_s = time.monotonic()
        try:
            try:
                job.run(gpu)
            finally:
                with self._lock:
                    before_s = self._unfinished.get(job.name, 0.0)
                    seconds = round(before_s + time.monotonic() - started_s, 1)
                    self._unfinished[job.name] = seconds
                gpus.put(gpu)
            job.finish()
        except subprocess.CalledProcessError as error:
            print(f"{_clock()} {job.name} FAILED: exit code {error.returncode}", flush=True)
            self.failed.append(job.name)
            return
        print(f"{_clock()} {job.name} done, {seconds} s on the GPU", flush=True)
        with self._lock:
            self.done[job.name] = {"key": job.key, "seconds": self._unfinished.pop(job.name)}
        self.save()

    def save(self) -> None:
        """Write down what is done."""
        with self._lock:
            known = {
                "wall_s": self.wall_s,
                "runs": self.runs,
                "jobs": self.done,
                "unfinished": self._unfinished,
            }
            content = json.dumps(known, indent=1)
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(content + "\n", encoding="utf-8")
            temporary.replace(self._path)


def operators() -> list[str]:
    """Name the operators that have a search space."""
    return sorted(path.stem for path in _spaces().glob("*.yaml") if "." not in path.stem)


def recording_job(name: str, folder: Path, trials: int) -> Job:
    """Make the job that measures an operator beside its peers; writes its recording and result."""
    kernel, session = ROOT / f"kernels/sglang/{name}.cu", folder / name

    def run(gpu: int) -> None:
        words = [
            "record",
            str(kernel),
            "--device",
            f"cuda:{gpu}",
            "--trials",
            str(trials),
            "--peers",
        ]
        known = (session / "session.db").exists()
        resumed = ["record", "--resume", str(session)]
        # A session of other files can't go on: it makes room.
        if not (known and _tune(*resumed, check=False) == 0):
            if known:
                session.rename(session.with_name(f"{name}-{time.time_ns()}"))
            _tune(*words, "--session", str(session))

    def finish() -> None:
        script = ROOT / "benchmarks/summarize_session.py"
        out = RESULTS / f"{name}.json"
        command = [sys.executable, str(script), str(session), "--out", str(out)]
        subprocess.run(command, check=True)

    return Job(name, run, _files(name), finish=finish)


def benchmark_job(name: str) -> Job:
    """Make the job that runs one of the benchmarks beside this file."""
    script = ROOT / f"benchmarks/{name}.py"
    inputs = [script, *(ROOT / "benchmarks/spaces").glob(f"{name}.*")]

    def run(gpu: int) -> None:
        out = RESULTS / f"{name}.json"
        command = [sys.executable, str(script), "--out", str(out)]
        subprocess.run(command, check=True, env=_environment(gpu))

    return Job(name, run, inputs, alone=name in ALONE)


def _tune(*words: str, check: bool = True) -> int:
    command = [sys.executable, "-m", "tuner", *words]
    done = subprocess.run(command, check=check, stdout=subprocess.DEVNULL, env=_environment())
    return done.returncode


def _environment(gpu: int | None = None) -> dict[str, str]:
    chosen = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
    return {**os.environ, "TUNE_STORE": "none", **chosen}


def _files(operator: str) -> list[Path]:
    """List what an operator's measurements depend on."""
    kernel = ROOT / f"kernels/sglang/{operator}.cu"
    template = ROOT / f"templates/sglang/{operator}.cu.j2"
    shared = [path for path in (ROOT / "templates/include").rglob("*") if path.is_file()]
    return [kernel, kernel.with_suffix(".py"), template, _spaces() / f"{operator}.yaml", *shared]


def _spaces() -> Path:
    return ROOT / "search_spaces/sglang"


def _clock() -> str:
    return datetime.now(UTC).strftime("%H:%M:%S")


def _run(jobs: Sequence[Job], campaign: Campaign, gpus: int) -> None:
    free: SimpleQueue[int] = SimpleQueue()
    for gpu in range(gpus):
        free.put(gpu)
    # One more than there are GPUs: while a job finishes, the next has its GPU.
    with ThreadPoolExecutor(gpus + 1) as pool:
        list(pool.map(lambda job: campaign.run(job, free), [j for j in jobs if not j.alone]))
    for job in jobs:
        if job.alone:
            campaign.run(job, free)


def main() -> None:
    from tuner.device.select import gpu_count

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--trials", type=int, help=f"of each workload; {TRIALS}, more for the README's example"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--fresh", action="store_true", help="forget what is done")
    asked = parser.parse_args()
    gpus = gpu_count()
    if not gpus:
        parser.exit(2, "no NVIDIA GPU was found\n")
    os.environ["TUNE_COMMIT"] = require_clean()
    jobs = [benchmark_job(name) for name in BENCHMARKS]
    for name in operators():
        trials = asked.trials or MORE_TRIALS.get(name, TRIALS)
        jobs.append(recording_job(name, asked.folder, trials))
    # The longest first, so that no GPU waits for one at the end.
    jobs.sort(key=lambda job: job.name not in LONGEST)
    unknown = set(asked.names) - {job.name for job in jobs}
    if unknown:
        parser.error(f"no job named {min(unknown)}: {', '.join(job.name for job in jobs)}")
    jobs = [job for job in jobs if not asked.names or job.name in asked.names]
    campaign = Campaign(asked.folder)
    if asked.fresh:
        campaign.forget()
    left = campaign.left(jobs)
    try:
        _run(left, campaign, gpus)
    finally:
        campaign.save()
    print(f"{len(left)} of {len(jobs)} jobs; {campaign.wall_s:.0f} s in all on {gpus} GPUs")
    if campaign.failed:
        print("FAILED:", ", ".join(campaign.failed))
        raise SystemExit(1)
    if not asked.names:
        _write_times(campaign, gpus)


def _write_times(campaign: Campaign, gpus: int) -> None:
    """Keep how long the whole campaign took."""
    content = {
        "gpus": gpus,
        "cores": os.cpu_count(),
        "environment": provenance(),
        "runs": campaign.runs,
        "wall_s": campaign.wall_s,
        "seconds": {name: one["seconds"] for name, one in sorted(campaign.done.items())},
    }
    write_result(RESULTS / "record_all.json", content)


if __name__ == "__main__":
    main()
