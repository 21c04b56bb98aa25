"""How far off the `host` device's speedups are: short honest kernels, compared often.

    python benchmarks/host_speedups.py [--runs 200]

Each run opens the device anew, as each `tune` does, and compares two honest kernels in 40 rounds; a
loop keeps every core busy in every second run. What it says is held against 4,000 rounds of
the idle machine. A kernel was once said to be 7,705 times as fast, for a clock that had not moved.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import environment, write_result

from tuner.compiler.base import CompileRequest
from tuner.device.base import Program
from tuner.dispatch.evidence import compare_with_baseline
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.model.config import Config
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Comparison, Variant
from tuner.space.load import load_definition

ROUNDS, LONG_ROUNDS = 40, 4000
TOO_FAR = 3.0
WORKLOAD = Workload.of({"T": 256})
SPACE = """\
version: 1
kernel: scale
source: scale.cu
reference: scale.py
template: scale.cu
axes: [T]
arguments:
  - {name: y, dtype: float32, shape: [T], role: output}
  - {name: x, dtype: float32, shape: [T], role: input}
  - {name: T, dtype: int32, value: T}
workloads: {tuned: [{T: 256}]}
min_bytes: 8 * T
tolerance: {y: {relative: 1.0e-6}}
baseline: {launch: [{kernel: scale, grid: [1], block: [32]}]}
parameters: {block: [32, 64]}
launch: [{kernel: scale, grid: [1], block: [block]}]
"""
REFERENCE = "def reference(xp, inputs, axes):\n    return {'y': 2.0 * inputs['x']}\n"
KERNEL = """\
extern "C" __global__ void scale(float* y, const float* x, int T) {
  for (int i = threadIdx.x; i < T; i += blockDim.x) y[i] = 2.0f * x[i];
}
"""


def programs() -> list[Program]:
    """Build one kernel launched with 32 threads and with 128."""
    with closing(HostCompiler()) as compiler:
        result = compiler.submit(CompileRequest(KERNEL, ("scale",), "sm_90a")).result()
    assert result.ok, result.error
    launches = [Launch("scale", (1, 1, 1), (threads, 1, 1)) for threads in (32, 128)]
    return [
        Program(f"honest {one.block[0]}", WORKLOAD, (one,), result.cubin, result.lowered)
        for one in launches
    ]


def said(spec, pair, rounds) -> tuple[float, tuple[float, float], float]:
    """Open a device and compare: the speedup, its interval, and the clock's noise in us."""
    with closing(HostDevice(spec, {})) as device:
        found = device.compare(pair, rounds=rounds)
    assert not any(found.faults), found.faults
    variant = Variant("initial", Config({}))
    comparison = Comparison(WORKLOAD, (variant,), found.times_us, noise_us=found.noise_us)
    one = compare_with_baseline(comparison, 1, 0)
    return one.speedup, one.interval, found.noise_us


def spin() -> None:
    while True:
        pass


@contextmanager
def busy(wanted: bool):
    """Keep every core busy meanwhile."""
    count = len(os.sched_getaffinity(0)) if wanted else 0
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("yaml", SPACE), ("py", REFERENCE), ("cu", KERNEL)):
            Path(folder, f"scale.{name}").write_text(text, encoding="utf-8")
        spec = load_definition(Path(folder, "scale.yaml")).spec
        pair = programs()
        long, _, noise_us = said(spec, pair, LONG_ROUNDS)
        found = []
        for run in range(runs):
            with busy(run % 2 == 1):
                found.append(said(spec, pair, ROUNDS))
    speedups = sorted(one for one, _, _ in found)
    result = {
        "benchmark": "host_speedups",
        "runs": runs,
        "speedup_of_long": round(long, 3),
        "speedup_lowest_median_highest": [
            round(one, 3) for one in (speedups[0], median(speedups), speedups[-1])
        ],
        "over_3x_faster_than_long": sum(one > TOO_FAR * long for one in speedups),
        "over_3x_slower_than_long": sum(one * TOO_FAR < long for one in speedups),
        "no_difference": sum(low <= 1.0 <= high for _, (low, high), _ in found),
        "noise_us_of_long": round(noise_us, 2),
        "noise_us_highest": round(max(noise for *_, noise in found), 2),
        "environment": environment(),
    }
    print(result)
    write_result("host_speedups", result)


if __name__ == "__main__":
    main()
