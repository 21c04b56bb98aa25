"""Tuned times against what production runs: one table from a result of `tune --json`.

    python benchmarks/against_production.py RESULT.json TARGETS.json [--markdown]

Exits with 1 where a figure is missed: every tuned cell within 2 % of the best peer or faster,
faster than the prebuilt operator up to T = 1024, geometric mean over the baseline at least 1.5.
"""

from __future__ import annotations

import argparse
import json
from math import exp, log
from pathlib import Path

WITHIN = 1.02
SMALL_T = 1024
PREBUILT = "sgl-aot"
GEOMETRIC_MEAN = 1.5


def rows_of(result, targets):
    """Join the tuned workloads of a result with the peers of the same cell."""
    rows = []
    for workload in result["workloads"]:
        key = ",".join(f"{name}={value}" for name, value in workload["workload"].items())
        peers = targets["peers"].get(key)
        if peers is not None:
            rows.append((key, workload, peers))
    return rows


def misses(rows):
    """Name every figure that is missed."""
    for key, workload, peers in rows:
        best = min(peers.values())
        tuned_us = workload["tuned_us"]
        if tuned_us > best * WITHIN:
            yield f"{key}: {tuned_us:.2f} us, {tuned_us / best:.3f} times the best peer's {best}"
        if workload["workload"]["T"] <= SMALL_T and tuned_us >= peers[PREBUILT]:
            yield f"{key}: {tuned_us:.2f} us, not under {PREBUILT}'s {peers[PREBUILT]}"
    mean = geometric_mean([workload["speedup"] for _, workload, _ in rows])
    if mean < GEOMETRIC_MEAN:
        yield f"geometric mean over the baseline {mean:.3f}, under {GEOMETRIC_MEAN}"


def geometric_mean(values):
    """Average ratios."""
    return exp(sum(map(log, values)) / len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("targets", type=Path)
    asked = parser.parse_args()
    result = json.loads(asked.result.read_text(encoding="utf-8"))
    targets = json.loads(asked.targets.read_text(encoding="utf-8"))
    rows = rows_of(result, targets)
    names = sorted({name for _, _, peers in rows for name in peers})
    head = ["workload", "baseline us", "tuned us", "speedup", "95 % interval", *names, "best/tuned"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for key, workload, peers in rows:
        low, high = workload["interval"]
        cells = [
            key,
            f"{workload['baseline_us']:.2f}",
            f"{workload['tuned_us']:.2f}",
            f"{workload['speedup']:.2f}x",
            f"{low:.3f} to {high:.3f}",
            *(f"{peers[name]:.2f}" for name in names),
            f"{min(peers.values()) / workload['tuned_us']:.2f}x",
        ]
        print("| " + " | ".join(cells) + " |")
    over_baseline = geometric_mean([workload["speedup"] for _, workload, _ in rows])
    over_peers = geometric_mean([min(p.values()) / w["tuned_us"] for _, w, p in rows])
    print(f"\ngeometric mean: {over_baseline:.2f}x over the baseline, ", end="")
    print(f"{over_peers:.2f}x over the best peer of each cell")
    missed = list(misses(rows))
    for line in missed:
        print("MISSED", line)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
