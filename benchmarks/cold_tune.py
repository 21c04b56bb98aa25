"""How long `tune` takes from nothing, in the surroundings and alone, and how busy the device is.

    python benchmarks/cold_tune.py [--kernel NAME] [--workloads N] [--surroundings auto,alone]
                                   [--workload M=16,N=6144,K=4096] [--searcher NAME]
                                   [--seed 0] [--trials N] [--out FILE]
                                                            (needs an NVIDIA GPU and CuPy)

Runs the whole command in a process of its own on N tuned workloads of all sizes and up to N that
are held out, or on the one that `--workload` names, with an empty cache for compiled kernels and
without a store of past runs. The first run in any surroundings finds CuPy's cache empty too
(`first, ...`), as on a fresh machine; CuPy keeps there what verification compiles, for whatever is
tuned later. *Busy* is the share of the search's wall time in which the device has a trial; `nvml`
is the mean of NVML's own utilization over the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from environment import write_result
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_MS = 100
RUNS = ("auto", "alone")


class Stopwatch:
    """A view that notes when each phase begins."""

    def __init__(self):
        self.phases = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.update(None)

    def update(self, progress):
        """Take a snapshot; None is the end."""
        name = progress.phase if progress else "end"
        if not self.phases or self.phases[-1][0] != name:
            self.phases.append((name, time.perf_counter()))

    def seconds(self):
        """Add up the seconds of every phase."""
        total = Counter()
        for (name, start), (_, stop) in pairwise(self.phases):
            total[name] += stop - start
        return {name: round(value, 2) for name, value in total.items()}

    def spans(self, name):
        """Give the beginnings and ends of one phase."""
        return [(start, stop) for (one, start), (_, stop) in pairwise(self.phases) if one == name]


def child(words, out):
    """Run `tune` here, and write what was seen of it."""
    from tuner.cli import cli, view
    from tuner.device.verify.verified_device import VerifiedDevice

    watch, busy, used = Stopwatch(), [], []
    view.make_view = lambda console, *, quiet: watch
    run = VerifiedDevice.run

    def timed(self, program, **options):
        start = time.perf_counter()
        try:
            return run(self, program, **options)
        finally:
            busy.append((start, time.perf_counter()))

    VerifiedDevice.run = timed
    threading.Thread(target=sample, args=(used,), daemon=True).start()
    cli.main(words, standalone_mode=False)
    spans = watch.spans("search")
    wall_s = sum(stop - start for start, stop in spans)

    def inside(moment):
        return any(start <= moment <= stop for start, stop in spans)

    searched = [(start, stop) for start, stop in busy if inside(start)]
    shares = [share for moment, share in used if inside(moment)]
    if not shares:
        raise SystemExit("nvidia-smi told nothing of the GPU's utilization")
    seen = {
        "phases_s": watch.seconds(),
        "search_s": round(wall_s, 2),
        "trials": len(searched),
        "busy_share": round(sum(stop - start for start, stop in searched) / wall_s, 3),
        "nvml_share": round(sum(shares) / len(shares) / 100, 3),
        "ms_per_trial": round(1e3 * sum(b - a for a, b in searched) / len(searched), 1),
    }
    Path(out).write_text(json.dumps(seen))


def sample(used):
    """Ask the driver for the GPU's utilization, ten times a second."""
    from tuner.device.cuda.driver import gpu_uuid

    # nvidia-smi knows nothing of CUDA_VISIBLE_DEVICES, and would answer for all GPUs.
    query = [f"--id={gpu_uuid(0)}", "--query-gpu=utilization.gpu", f"-lms={SAMPLE_MS}"]
    command = ["nvidia-smi", *query, "--format=csv,noheader,nounits"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            used.append((time.perf_counter(), float(line)))


def run(space, surroundings, asked, folder, cupy_cache):
    """Tune once with an empty cache and no store; give what was seen of it."""
    session, seen = Path(folder, "session"), Path(folder, "seen.json")
    words = [str(ROOT / f"kernels/sglang/{asked.kernel}.cu"), "--space", str(space)]
    words += ["--device", "cuda", "--quiet", "--seed", str(asked.seed), "--json", "--no-mutants"]
    words += ["--session", str(session), "--surroundings", surroundings]
    words += ["--trials", str(asked.trials)] if asked.trials else []
    words += ["--searcher", asked.searcher] if asked.searcher else []
    caches = {"TUNER_CACHE_DIR": f"{folder}/tune", "CUPY_CACHE_DIR": cupy_cache}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(seen), *words],
        env={**os.environ, **caches, "TUNE_STORE": "none"},
        stdout=subprocess.PIPE,
        check=True,
    )
    wall_s = time.perf_counter() - start
    result, watched = json.loads(done.stdout), json.loads(seen.read_text())
    # Before the view there is nobody who could watch it.
    opening = {"opening": round(result["time"]["phases_s"]["opening"], 2)}
    return result["device"], {
        "wall_s": round(wall_s, 1),
        **watched,
        "phases_s": opening | watched["phases_s"],
        "inside_s": result["time"]["inside_s"],
        "speedups": {
            ",".join(f"{k}={v}" for k, v in one["workload"].items()): one["speedup"]
            for one in result["workloads"]
        },
        "checks": result["checks"],
    }


def chosen_workloads(spec, asked):
    """Give the tuned workloads and those held out that were asked for."""
    if not asked.workload:
        return spread(spec, asked.workloads), spec.held_out[: asked.workloads]
    found = [one for one in spec.tuned if one.key == asked.workload]
    if not found:
        raise SystemExit(f"{asked.workload!r} is none of {[one.key for one in spec.tuned]}")
    return found, ()


def spread(spec, count):
    """Choose workloads of all sizes."""
    by_size = sorted(spec.tuned, key=lambda workload: spec.min_bytes.integer(workload.values))
    count = min(count, len(by_size))
    return [by_size[k * len(by_size) // count] for k in range(count)]


@contextmanager
def with_workloads(space, tuned, held_out):
    """Write the space anew beside itself, where its paths hold, with some of its workloads."""
    yaml = YAML()
    document = yaml.load(space)
    document["workloads"]["tuned"] = [dict(one.values) for one in tuned]
    document["workloads"]["held_out"] = [dict(one.values) for one in held_out]
    file = space.with_name(f"{space.stem}.cold_tune.yaml")
    yaml.dump(document, file)
    try:
        yield file
    finally:
        file.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernel", default="fused_add_rmsnorm")
    parser.add_argument("--workloads", type=int, default=10, help="how many")
    parser.add_argument("--workload", help="this one alone, and nothing held out")
    parser.add_argument("--searcher", help="as the command calls it")
    parser.add_argument("--surroundings", type=lambda text: text.split(","), default=RUNS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--beside", default="", help="what else was at work on the host, in words")
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/h200/cold_tune.json")
    asked = parser.parse_args()
    if asked.child:
        child(asked.child[1:], asked.child[0])
        return
    from tuner.space.load import load_definition

    space = ROOT / f"search_spaces/sglang/{asked.kernel}.yaml"
    spec = load_definition(space).spec
    tuned, held_out = chosen_workloads(spec, asked)
    runs = {}
    first, *_ = asked.surroundings
    with with_workloads(space, tuned, held_out) as chosen, tempfile.TemporaryDirectory() as cupy:
        for name in (f"first, {first}", *asked.surroundings):
            with tempfile.TemporaryDirectory() as folder:
                around = name.removeprefix("first, ")
                device, runs[name] = run(chosen, around, asked, folder, cupy)
            content = {
                "kernel": asked.kernel,
                "searcher": asked.searcher or "auto",
                "seed": asked.seed,
                "workloads": [workload.key for workload in tuned],
                "held_out": [workload.key for workload in held_out],
                "cores": len(os.sched_getaffinity(0)),
                "beside": asked.beside,
                "runs": runs,
                "environment": {"device": device},
            }
            write_result(asked.out, content)
    print(json.dumps({name: run["wall_s"] for name, run in runs.items()}))


if __name__ == "__main__":
    main()
