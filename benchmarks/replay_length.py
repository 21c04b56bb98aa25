"""How much do times scatter by how long a replay is: of calls alone, and of a chain's?

    python benchmarks/replay_length.py [--out FILE]          (needs an NVIDIA GPU and CuPy)

Alone: all 96 configs of `throughput.py` are searched several times with replays of each length, in
turn. A time scatters by what it is off the median of the config's times with that length; the
seconds are those that `throughput.py` counts.

In a chain: the baseline of fused_add_rmsnorm and two configs take turns in rounds of chains of so
many calls. What a config takes longer than the baseline scatters from round to round by the
interquartile range over 1.35, the standard deviation of a normal one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
from environment import ROOT, environment, write_result
from stand_ins import KERNEL, opened
from throughput import SPACE, ours

from tuner.app.plan import new_plan
from tuner.compiler.pool import NvrtcPool
from tuner.device import timing
from tuner.device.base import Program
from tuner.model.kernel import Workload
from tuner.search.pool import valid_configs
from tuner.session.session import Session
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Evaluator

RESULT = ROOT / "benchmarks/results/h200/replay_length.json"
REPLAYS_US = (300.0, 150.0, 100.0)
SEARCHES = 4
CHAINS = (32, 20, 16, 8)
# Of a layer of Llama and Qwen: one row, a decode step, and a prefill.
WORKLOADS = ("T=1,H=2048", "T=1,H=8192", "T=16,H=4096", "T=256,H=4096", "T=2048,H=4096")
ROUNDS = 48
# Places in the list of all valid configs: two that have little in common.
PLACES = (1 / 7, 1 / 2)


def alone() -> list[dict[str, Any]]:
    """Search the same configs with each length in turn; the first search of all is not counted."""
    definition = load_definition(SPACE)
    template = Template.load(definition.spec.template, definition.spec.include_dirs)
    times: dict[float, list[dict[str, float]]] = {us: [] for us in REPLAYS_US}
    seconds: dict[float, list[float]] = {us: [] for us in REPLAYS_US}
    searched(definition, template, REPLAYS_US[0])
    for _ in range(SEARCHES):
        for us in REPLAYS_US:
            took_s, found = searched(definition, template, us)
            seconds[us].append(took_s)
            times[us].append(found)
    return [
        {
            "replay_us": us,
            "seconds": seconds[us],
            "scatter": scatter(times[us]),
            "best_us": [min(one.values()) for one in times[us]],
        }
        for us in REPLAYS_US
    ]


def searched(definition: Any, template: Any, replay_us: float) -> tuple[float, dict[str, float]]:
    """Search once; give the seconds, and the time of each config that was not stopped early."""
    policy = replace(timing.SEARCH, min_replay_us=replay_us)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("tuner.device.verify.verified_device.SEARCH", policy),
    ):
        found, _ = ours(definition, template, Path(folder))
        with Session.open(Path(folder, "session"), read_only=True) as session:
            measured = [(t.config.key, t.measurement) for t in session.trials() if t.measurement]
    return found["seconds"], {key: one.median_us for key, one in measured if not one.stopped_early}


def scatter(searches: list[dict[str, float]]) -> float:
    """Say how far times of the same config are apart: the root of the mean square, as a share."""
    common = set.intersection(*(set(one) for one in searches))
    table = np.array([[one[key] for key in sorted(common)] for one in searches])
    return float(np.sqrt(((table / np.median(table, axis=0) - 1.0) ** 2).mean()))


def chains(of: Evaluator) -> list[dict[str, Any]]:
    """Compare the same programs in chains of each length."""
    return [
        {
            "workload": workload.key,
            "calls": calls,
            "costs_us": np.median(rows, axis=0).tolist(),
            "scatter_us": _scatter_us(rows),
            "round_ms": seconds / len(rows) * 1e3,
        }
        for workload in of.spec.tuned
        if workload.key in WORKLOADS
        for programs in [programs_of(of, workload)]
        for calls in CHAINS
        for rows, seconds in [compared(of.device, programs, calls)]
    ]


def programs_of(of: Evaluator, workload: Workload) -> list[Program]:
    """Compile the baseline and the chosen configs."""
    pool = valid_configs(of.candidate.space, of.names(workload))
    configs = [pool[int(share * len(pool))] for share in PLACES]
    return [of.baseline_program(workload), *(of.program(workload, one) for one in configs)]


def compared(device: Any, programs: list[Program], calls: int) -> tuple[np.ndarray, float]:
    """Time programs in chains of so many calls; give a row a round, in us, and all seconds."""
    with patch("tuner.device.cuda.device.FINALS", replace(timing.FINALS, links=calls)):
        device.rank(programs, rounds=4)  # brings all of it to the GPU
        began_s = time.perf_counter()
        rows = device.rank(programs, rounds=ROUNDS)
        return np.array(rows, dtype=float), time.perf_counter() - began_s


def _scatter_us(rows: np.ndarray) -> float:
    low, high = np.percentile(rows[:, 1:] - rows[:, :1], [25, 75], axis=0)
    return median(((high - low) / 1.35).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    rows: dict[str, Any] = {"alone": alone()}
    plan = new_plan(KERNEL, {})
    with NvrtcPool() as compiler, opened(plan, compiler, plan.spec) as (device, of):
        rows["chains"] = chains(of)
    for row in [*rows["alone"], *rows["chains"]]:
        print(row)
    write_result(asked.out, {**rows, "environment": {**environment(), "device": device.info.name}})


if __name__ == "__main__":
    main()
