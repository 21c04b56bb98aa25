"""Time what two seeds put into files for SGLang's fused MoE kernel against each other.

    python benchmarks/fused_moe_seeds.py [--columns 768] [--draws 48] [--result FILE] [--out FILE]
                                          (needs an NVIDIA GPU, SGLang 0.5.17 and sglang-kernel)

FILE is the result of fused_moe_figures.py, with two fleets of these columns. Where their configs
for a number of tokens differ, both are timed in the same rounds, with inputs and routes of their
own in each draw: what a config is worth depends on them. An interval is that of the draws.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
from environment import ROOT, write_result
from fused_moe import COLUMNS, KERNEL, SLICES, axes_of, operators_of
from running import ranking

RESULT = ROOT / "benchmarks/results/h200/fused_moe.json"
RESAMPLES = 10_000
Config = Mapping[str, int] | None


def differing(
    content: Mapping[str, Any], columns: int
) -> tuple[int, dict[int, tuple[Config, Config]]]:
    """Count the numbers of tokens that two seeds have a config for; give those that differ.

    The smaller seed's comes first. None is what the engine does by itself.
    """
    fleets = [one for one in content["fleets"] if one["columns"] == columns and not one["two"]]
    if len(fleets) != 2:
        raise SystemExit(f"{len(fleets)} fleets have {columns} columns, and two are compared")
    fleets.sort(key=lambda one: one["seed"])
    first, second = ({row["tokens"]: row["config"] for row in one["rows"]} for one in fleets)
    shared = sorted(first.keys() & second.keys())
    return len(shared), {n: (first[n], second[n]) for n in shared if first[n] != second[n]}


def summary(draws: Sequence[float]) -> dict[str, Any]:
    """Say what the first takes of the second: the mean of the draws, and its interval."""
    logs = np.log(draws)
    drawn = np.random.default_rng(0).integers(0, len(logs), (RESAMPLES, len(logs)))
    low, high = np.quantile(logs[drawn].mean(axis=1), (0.025, 0.975))
    return {
        "ratio": round(exp(logs.mean()), 4),
        "interval": [round(exp(low), 4), round(exp(high), 4)],
        "draws": [round(exp(one), 4) for one in logs],
    }


def measured(
    columns: int, pairs: Mapping[int, tuple[Config, Config]], draws: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Time each pair of configs."""
    settings = {
        "device": "cuda",
        "workloads": [axes_of(tokens, columns) for tokens in pairs],
        "operators": operators_of(columns, "real"),
    }
    rows = []
    with ranking(KERNEL, settings) as (run, evaluator):
        for workload in run.plan.config.workloads:
            pair = pairs[workload.values["M"]]
            programs = [
                evaluator.baseline_program(workload)
                if one is None
                else evaluator.program(workload, whole(run.plan.space.default, one))
                for one in pair
            ]
            # Each row has inputs of its own.
            ratios = [a / b for a, b in run.device.rank(programs, rounds=draws) if a and b]
            row = {"tokens": workload.values["M"], "configs": pair, **summary(ratios)}
            print(row["tokens"], row["ratio"], row["interval"], row["draws"], flush=True)
            rows.append(row)
        return rows, {**run.device.info.environment, "device": run.device.info.name}


def whole(default: Any, config: Mapping[str, int]) -> Any:
    """Give both GEMMs the config of a file that serves both."""
    from tuner.extensions.engines.configs.winners import DOWN
    from tuner.model.config import Config as Complete

    return Complete.of({name: config[name.removeprefix(DOWN)] for name in default})


def main() -> None:
    """Read, time and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--columns", type=int, default=COLUMNS, choices=SLICES)
    parser.add_argument("--draws", type=int, default=48)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--out", type=Path, default=RESULT.with_name("fused_moe_seeds.json"))
    asked = parser.parse_args()
    content = json.loads(asked.result.read_text(encoding="utf-8"))
    shared, pairs = differing(content, asked.columns)
    out = asked.out.resolve()
    os.chdir(ROOT)
    os.environ["TUNE_STORE"] = "none"
    rows, environment = [], content["environment"]
    if pairs:
        rows, environment = measured(asked.columns, pairs, asked.draws)
    found = {"columns": asked.columns, "shared": shared, "rows": rows, "environment": environment}
    write_result(out, found)


if __name__ == "__main__":
    main()
