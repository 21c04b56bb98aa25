"""The portable kernels in OpenCL on this machine's first OpenCL device, each over its baseline.

    python benchmarks/portable_kernels.py [--out FILE] [--trials N]

It needs pip install '.[opencl]'. Each is tuned by the command line, as a user would; the intervals
are those of the interleaved final comparison.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from math import exp, log
from pathlib import Path
from statistics import fmean

from environment import RESULTS, ROOT, environment, write_result

KERNELS = ("silu_and_mul", "rmsnorm", "row_sum", "gemm_f32")
TRIALS = 60


def tuned(kernel: str, trials: int) -> dict[str, object]:
    """Tune one kernel; return what `--json` says of its workloads, and the device's name."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"kernels/portable/{kernel}.cl", "--device", "opencl", "--json"]
        words += ["--trials", str(trials), "--session", f"{folder}/session"]
        done = subprocess.run(
            [sys.executable, "-m", "tuner", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found = json.loads(done.stdout)
    kept = ("axes", "workload", "held_out", "config", "baseline_us", "time_us", "speedup")
    rows = [
        {name: row[name] for name in (*kept, "interval") if name in row}
        for row in found["workloads"]
    ]
    return {"device": found["device"], "workloads": rows, "trials": found["trials"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "portable_kernels.json")
    parser.add_argument("--trials", type=int, default=TRIALS)
    asked = parser.parse_args()
    found = {}
    for kernel in KERNELS:
        found[kernel] = tuned(kernel, asked.trials)
        for row in found[kernel]["workloads"]:
            low, high = row["interval"]
            print(f"{kernel:14} {row['speedup']:6.2f}x  95 % {low:.2f} to {high:.2f}", flush=True)
    rows = [row for one in found.values() for row in one["workloads"]]
    mean = exp(fmean(log(row["speedup"]) for row in rows))
    slower = sum(row["interval"][1] < 1.0 for row in rows)
    print(f"geometric mean {mean:.2f}x over {len(rows)} workloads, {slower} of them slower")
    content = {"kernels": found, "geometric_mean": mean, "slower": slower}
    write_result(asked.out.resolve(), {**content, "environment": environment()})


if __name__ == "__main__":
    main()
