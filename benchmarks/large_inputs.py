"""How long a run of 20 trials takes on large inputs, and what of it verification takes.

    python benchmarks/large_inputs.py [NAME ...] [--out FILE]             (needs a GPU and PyTorch)

A LayerNorm and a GELU of 268 MB, drafted from problems in KernelBench's style, and a histogram of
16 M keys. Each is tuned as the command does by itself, broken versions included, with an empty
cache for compiled kernels and without a store of past runs. The verifier's share is what inputs,
references and verdicts take of the whole.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import write_result

ROOT = Path(__file__).resolve().parents[1]
PROBLEMS = ROOT / "benchmarks/kernelbench"
HISTOGRAM = ROOT / "benchmarks/unseen/key_histogram/key_histogram"
# What of a statement is larger here: 8,192 x 8,192 numbers.
LARGE = {
    "layer_norm": {"rows": 8192, "features": 8192},
    "tanh_gelu": {"batch_size": 8192, "dim": 8192},
}
TRIALS = 20
ASKED_S, ASKED_SHARE = 25.0, 0.3
LIMIT_S = 150


def tune(*words, folder):
    """Run the command with nothing kept of other runs; its JSON object, or what it says instead."""
    caches = {"TUNER_CACHE_DIR": f"{folder}/cache", "TUNE_STORE": "none"}
    command = [sys.executable, "-m", "tuner", *map(str, words), "--json"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **caches},
            cwd=ROOT,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"no end after {LIMIT_S} s"
    return (json.loads(done.stdout), "") if done.returncode == 0 else (None, done.stderr[-600:])


def drafted(name, folder):
    """Draft a problem of a larger size with its kernel; the kernel's and the space's file."""
    text = (PROBLEMS / f"{name}.py").read_text(encoding="utf-8")
    for size, number in LARGE[name].items():
        text = re.sub(rf"^{size} = \d+$", f"{size} = {number}", text, flags=re.MULTILINE)
    problem, kernel = Path(folder, f"{name}.py"), Path(folder, f"{name}.cu")
    problem.write_text(text, encoding="utf-8")
    kernel.write_bytes((PROBLEMS / f"{name}.cu").read_bytes())
    made, said = tune("init", problem, "--out", f"{folder}/draft", folder=folder)
    if made is None:
        raise SystemExit(f"{name}: {said}")
    (space,) = Path(folder, "draft").rglob("*.yaml")
    return space


def measured(name):
    """Tune one kernel from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        if name in LARGE:
            words = [Path(folder, f"{name}.cu"), "--space", drafted(name, folder)]
        else:
            words = [f"{HISTOGRAM}.cu", "--space", f"{HISTOGRAM}.yaml"]
            words += ["--workload", "N=16777216,B=8"]
        words += ["--device", "cuda", "--trials", TRIALS, "--seed", 1, "--quiet"]
        began_s = time.perf_counter()
        found, problem = tune(*words, "--session", f"{folder}/session", folder=folder)
        wall_s = time.perf_counter() - began_s
    if found is None:
        return {"wall_s": round(wall_s, 1), "problem": problem}, None
    inside_s = found["time"]["inside_s"]
    verifier_s = sum(
        seconds
        for parts in inside_s.values()
        for part, seconds in parts.items()
        if {"verifier", "verdicts"} & set(part.split("/"))
    )
    return {
        "wall_s": round(wall_s, 1),
        "verifier_s": round(verifier_s, 2),
        "verifier_share": round(verifier_s / wall_s, 3),
        "phases_s": found["time"]["phases_s"],
        "inside_s": inside_s,
        "trials": found["trials"],
        "speedups": [one["speedup"] for one in found["workloads"]],
        "mutants": found.get("mutants"),
    }, found["device"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=[*LARGE, "key_histogram"])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/h200")
    asked = parser.parse_args()
    rows, devices = {}, []
    for name in asked.names:
        rows[name], device = measured(name)
        devices += [device] if device else []
        met = "problem" not in rows[name] and (
            rows[name]["wall_s"] <= ASKED_S and rows[name]["verifier_share"] <= ASKED_SHARE
        )
        rows[name]["met"] = met
        print(name, json.dumps(rows[name]), flush=True)
        content = {
            "benchmark": "large_inputs",
            "trials": TRIALS,
            "asked": {"seconds": ASKED_S, "share": ASKED_SHARE},
            "runs": rows,
            "environment": {"device": devices[0] if devices else ""},
        }
        out = asked.out / "large_inputs.json" if asked.out.is_dir() else asked.out
        write_result(out, content)


if __name__ == "__main__":
    main()
