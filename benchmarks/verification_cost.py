"""What timing a config takes on the GPU, what verifying it adds, and how good the medians are.

    python benchmarks/verification_cost.py [--configs N] [--out FILE]  (needs a GPU and CuPy)

Every config is timed alone, loading its code included, and then goes through the device as in a
search: what that takes longer is verification. There is no incumbent, so that none is stopped
early. The medians are then compared with those that the finals' own measurement gives.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import write_result

from tuner.compiler.pool import NvrtcPool
from tuner.device.cuda.device import CudaDevice
from tuner.device.layout import UNCHANGED
from tuner.device.timing import SEARCH
from tuner.model.surroundings import ALONE
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.load import load_definition
from tuner.space.surroundings import choose_surroundings
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

ROOT = Path(__file__).resolve().parents[1]
SPACE = ROOT / "search_spaces/sglang/silu_and_mul.yaml"
OPERATORS = {"ACTIVATION": "silu"}
CONFIGS = 50
WITHIN = 0.01
# What a search's time is held against.
LONGER = replace(SEARCH, target_error=0.002, min_samples=30, max_samples=150, budget_s=0.5)


def spread(pool, count):
    """Choose configs evenly over the space."""
    return [pool[(2 * k + 1) * len(pool) // (2 * count)] for k in range(min(count, len(pool)))]


def measure(device, evaluator, space, workload, count):
    """Run the configs of one workload as a search would, then once more for longer."""
    configs = spread(valid_configs(space, evaluator.names(workload)), count)
    pending = [evaluator.start(workload, config) for config in configs]
    programs = [p for p in map(evaluator.ready, pending) if not hasattr(p, "status")]
    device.run(
        programs[0], full_verification=True
    )  # opens the workload, has CuPy compile for every kind of input
    rows = []
    for program in programs:
        began_s = time.perf_counter()
        again = replace(program, source_key=f"{program.source_key} alone")
        device._runner.time(again, SEARCH, None, UNCHANGED, lambda *judged: None)
        alone_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        outcome = device.run(program)
        total_s = time.perf_counter() - began_s
        assert outcome.status is Status.CORRECT, outcome.reason
        rows.append((program, outcome.measurement.median_us, alone_s, total_s))
    ratios = []
    for program, median_us, _, _ in rows:
        long = device._runner.time(program, LONGER, None, UNCHANGED, lambda *judged: None)
        ratios.append(median_us / long.median_us)
    shift = median(ratios)  # of the whole workload: it moves no config against another
    errors = [abs(ratio / shift - 1) for ratio in ratios]
    timing_s, total_s = mean(row[2] for row in rows), mean(row[3] for row in rows)
    return {
        "workload": workload.key,
        "configs": len(rows),
        "timing_ms": timing_s * 1e3,
        "verification_ms": (total_s - timing_s) * 1e3,
        "verification_share": total_s / timing_s - 1,
        "shift_against_longer": shift - 1,
        "median_error": median(errors),
        "medians_within_1_percent": mean(error <= WITHIN for error in errors),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", type=int, default=CONFIGS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    definition = load_definition(SPACE)
    spec, space = choose_surroundings(definition.spec, ALONE), definition.space
    device = CudaDevice(0, spec, OPERATORS)
    rows = []
    with NvrtcPool() as compiler:
        candidate = Candidate("measured", space, Template.load(spec.template, spec.include_dirs))
        evaluator = Evaluator(spec, candidate, OPERATORS, compiler, device)
        for workload in spec.tuned:
            rows.append(measure(device, evaluator, space, workload, options.configs))
            print(json.dumps(rows[-1]), file=sys.stderr)
        environment = {"device": device.info.name, **device.info.environment}
        environment["compiler"] = compiler.version
    device.close()
    small = [row for row in rows if spec.tuned[rows.index(row)].values["T"] <= 1024]
    result = {
        "benchmark": "verification_cost",
        "date": datetime.now(UTC).date().isoformat(),
        "mean_timing_ms_up_to_T_1024": mean(row["timing_ms"] for row in small),
        "verification_share": sum(row["verification_ms"] for row in rows)
        / sum(row["timing_ms"] for row in rows),
        "largest_verification_share": max(row["verification_share"] for row in rows),
        "workloads": rows,
        "environment": environment,
    }
    if options.out:
        write_result(options.out, result)
    print(json.dumps({k: v for k, v in result.items() if k != "environment"}, indent=1))


if __name__ == "__main__":
    main()
