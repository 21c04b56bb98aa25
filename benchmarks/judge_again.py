"""Compute the operators' costs and ratios anew from the rounds that their recordings hold.

    python benchmarks/judge_again.py [NAME ...]

What the definition of a cost or of its interval changes is not measured again: the rounds of each
workload stand in `kernels/sglang/recordings`, column by column as in the result. A workload is left
as it is, and named, where the recording holds other rounds than the result's: its medians are then
not those that the result has, or that an earlier pass of this program was checked with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from environment import write_result
from summarize_session import DIGITS, cost_interval

from tuner.device.recorded.recording import TICK_US, RecordedFinals, load_recording
from tuner.dispatch.evidence import CHOOSING_SHARE
from tuner.model.statistics import cost_us, paired_interval, unpaired_interval

ROOT = Path(__file__).resolve().parents[1]
RESULTS, RECORDINGS = ROOT / "benchmarks/results/h200", ROOT / "kernels/sglang/recordings/h200"


def judge(workload: dict[str, Any], finals: RecordedFinals, seed: int) -> bool:
    """Write costs, ratios and intervals into a result's workload; tell whether these are its."""
    rounds = np.asarray(finals.rounds, float) * TICK_US
    chosen = 0 if finals.raced or len(workload["programs"]) < 3 else len(rounds) // CHOOSING_SHARE
    programs = workload["programs"]
    if rounds.shape[1] != len(programs):
        return False
    columns = [tuple(map(float, column)) for column in rounds[chosen:].T]
    for one, column in zip(programs, columns, strict=True):
        known = one.get("median_us", one["us"])
        if abs(median(column) - known) > 2 * TICK_US + 10.0**-DIGITS:
            return False
    compare = paired_interval if workload["paired"] else unpaired_interval
    for one, column in zip(programs, columns, strict=True):
        speedup, bounds = compare(column, columns[workload["winner"]], seed)
        one["median_us"] = one.get("median_us", one["us"])
        one["us"] = round(cost_us(column), DIGITS)
        one["interval_us"] = cost_interval(column)
        one["over_winner"] = round(speedup, DIGITS)
        one["over_winner_interval"] = [round(bound, DIGITS) for bound in bounds]
    return True


def main() -> None:
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        source = RECORDINGS / f"{path.stem}.json.xz"
        named = not sys.argv[1:] or path.stem in sys.argv[1:]
        if "created" not in content or not source.exists() or not named:
            continue
        recording, kept = load_recording(source), []
        for workload in content["workloads"]:
            known = recording.workloads.get(workload["workload"])
            finals = known.finals if known else None
            if finals is None or not judge(workload, finals, content["seed"]):
                kept.append(workload["workload"])
        write_result(path, content)
        print(f"{path.stem}: {len(content['workloads']) - len(kept)} judged again, kept: {kept}")


if __name__ == "__main__":
    main()
