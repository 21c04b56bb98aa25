"""A/A test: a kernel against itself, and against itself made 2 % slower.

    python benchmarks/same_kernel.py [--comparisons N] [--out FILE] [--raw FILE]
                                                            (needs an NVIDIA GPU and CuPy)

Every comparison is the one that a run reports: interleaved rounds in the worker, a bootstrap over
whole rounds of the ratio of the two costs. The two programs are the same machine code loaded twice.
The slower one does 2 % more of what limits it: memory traffic or dependent arithmetic.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import write_result

from tuner.compiler.base import CompileRequest, source_key
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Program
from tuner.device.cuda.device import CudaDevice
from tuner.model.settings import RunConfig
from tuner.model.statistics import paired_interval
from tuner.model.trial import RESOLUTION, Status
from tuner.space.load import load_definition

ROOT = Path(__file__).resolve().parents[1]
SPACE = ROOT / "benchmarks/spaces/same_kernel.yaml"
ROUNDS = next(field.default for field in fields(RunConfig) if field.name == "comparison_rounds")
COMPARISONS = 200
LONG_ROUNDS = 1000
SAME = "no difference"


def programs(definition, workload, compiler, device):
    """Compile the kernel as it is and slowed; the first a second time under another key."""
    spec = definition.spec
    source = spec.source.read_text(encoding="utf-8")
    made = []
    for slowed in ("0", "1"):
        options = (*spec.compile_options, f"-DSLOWED={slowed}")
        launches = spec.baseline_launches({**workload.values, "multiprocessors": 132})
        kernels = tuple(launch.kernel for launch in launches)
        request = CompileRequest(source, kernels, device.info.architecture, options)
        result = compiler.submit(request).result()
        assert result.ok, result.error
        key = source_key(source, options, device.info.architecture)
        made.append(Program(key, workload, launches, result.cubin, result.lowered))
    plain, slowed = made
    return plain, replace(plain, source_key=plain.source_key + "-again"), slowed


def compare(device, first, second, count):
    """Compare two programs `count` times; each comparison is its rounds."""
    found = []
    for number in range(count):
        rounds = device.compare([first, second], rounds=ROUNDS).times_us
        found.append([[row[k] for row in rounds] for k in (0, 1)])
        if number % 20 == 19:
            print(f"  {number + 1} of {count}", file=sys.stderr)
    return found


def said(comparisons):
    """Count what the intervals allow to say of the second program."""
    counts = {"faster": 0, "slower": 0, SAME: 0}
    for seed, (first, second) in enumerate(comparisons):
        _, (low, high) = paired_interval(first, second, seed)
        word = "faster" if low > 1 + RESOLUTION else "slower" if high < 1 - RESOLUTION else SAME
        counts[word] += 1
    return counts


def spread(comparisons):
    """Tell how far the reported speedup and the median time scatter from run to run."""
    speedups = sorted(paired_interval(*pair, 0, resamples=10)[0] for pair in comparisons)
    times = sorted(median(second) for _, second in comparisons)
    return {
        "speedup_5_to_95_percent": [speedups[len(speedups) // 20], speedups[-len(speedups) // 20]],
        "time_us_5_to_95_percent": [times[len(times) // 20], times[-len(times) // 20]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--raw", type=Path, help="write all rounds of all comparisons")
    options = parser.parse_args()
    definition = load_definition(SPACE)
    workloads = definition.spec.tuned
    device = CudaDevice(0, definition.spec, {})
    share = options.comparisons // len(workloads)
    raw, rows = {}, []
    with NvrtcPool() as compiler:
        for workload in workloads:
            plain, again, slowed = programs(definition, workload, compiler, device)
            for program in (plain, again, slowed):
                outcome = device.run(program, full_verification=True)
                assert outcome.status is Status.CORRECT, outcome.reason
            rounds = device.compare([plain, slowed], rounds=LONG_ROUNDS).times_us
            same = compare(device, plain, again, share)
            planted = compare(device, plain, slowed, share)
            row = {
                "workload": workload.key,
                "time_us": median(row[0] for row in rounds),
                "planted_slowdown": median(row[1] / row[0] for row in rounds) - 1,
                "same": said(same),
                "planted": said(planted),
                **spread(same),
            }
            print(json.dumps(row), file=sys.stderr)
            rows.append(row)
            raw[workload.key] = {"same": same, "planted": planted}
        environment = {"device": device.info.name, **device.info.environment}
        environment["compiler"] = compiler.version
    device.close()
    compared = share * len(rows)
    different = sum(row["same"]["faster"] + row["same"]["slower"] for row in rows)
    found = sum(row["planted"]["slower"] for row in rows)
    result = {
        "benchmark": "same_kernel",
        "date": datetime.now(UTC).date().isoformat(),
        "rounds": ROUNDS,
        "comparisons": compared,
        "said_to_differ_though_the_same": different,
        "planted_slowdown_found": found,
        "share_wrongly_different": different / compared,
        "share_found": found / compared,
        "workloads": rows,
        "environment": environment,
    }
    if options.raw:
        options.raw.write_text(json.dumps(raw))
    if options.out:
        write_result(options.out, result)
    print(json.dumps({k: v for k, v in result.items() if k != "environment"}, indent=1))


if __name__ == "__main__":
    main()
