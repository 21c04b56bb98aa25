"""How many runs of right kernels are refused, or their baselines blamed, beside busy loops?

    python benchmarks/beside_loops.py [--runs COUNT] [--out FILE]                     (needs g++)

Each run verifies one of the honest kernels of tests/adversarial on `host` with all kinds of inputs,
times it, then compares it with its operator's plain kernel; one in nineteen is a whole run of
tests/support/faulty. Other processes keep two cores busy meanwhile. A run waits while the machine
has much more to do than that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

from environment import environment, require_clean, write_result
from operators import Operator
from unusual_kernels import UNUSUAL, Unusual

import tuner
from tuner.compiler.base import CompileRequest, source_key
from tuner.compiler.cache import Cache
from tuner.device.base import Program
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.model.errors import TunerError
from tuner.model.kernel import Launch
from tuner.model.trial import Status

ROOT = Path(__file__).resolve().parents[1]
WHOLE = ROOT / "tests/support/faulty/scale.cu"
LOOPS = 2
MOST_LOAD = 8.0
ROUNDS = 12


def compiled(
    compiler: HostCompiler, operator: Operator, source: str, launches: tuple[Launch, ...]
) -> Program:
    names = tuple(sorted({launch.kernel for launch in launches}))
    result = compiler.submit(CompileRequest(source, names, "sm_90a")).result(120)
    assert result.ok, result.error
    key = source_key(source, (), "sm_90a")
    return Program(key, operator.workload, launches, result.cubin, result.lowered)


def run_once(compiler: HostCompiler, unusual: Unusual) -> str:
    """Verify, time and compare a right kernel in processes of its own; say what was refused."""
    operator = unusual.operator
    program = compiled(compiler, operator, unusual.source, unusual.launched)
    beside = replace(program, source_key="beside it")
    if operator.kernel("plain").exists():
        beside = compiled(compiler, operator, operator.plain, operator.launches)
    with closing(HostDevice(operator.spec, {})) as device:
        outcome = device.run(program, full_verification=True)
        if outcome.status is not Status.CORRECT:
            return outcome.reason
        return "; ".join(filter(None, device.compare([beside, program], rounds=ROUNDS).faults))


def tune_once() -> str:
    """Tune a kernel all of whose configs are right; say what became of those that were refused."""
    with TemporaryDirectory() as folder:
        result = tuner.tune(
            WHOLE,
            space=WHOLE.with_suffix(".yaml"),
            device="host",
            trials=3,
            seed=1,
            session=Path(folder, "session"),
        )
    trials = [*(trial for trial, _ in result.data.records), *result.data.finals]
    reasons = [trial.reason for trial in trials if trial.status is not Status.CORRECT]
    reasons += [check.reason for check in result.data.checks if check.passed is False]
    if not reasons and not result.results:
        reasons = ["no winner"]
    return "; ".join(reasons)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=350)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results/cpu/beside_loops.json"
    )
    asked = parser.parse_args()
    require_clean()
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
    refused: list[dict[str, str]] = []
    seconds: list[float] = []
    loads: list[float] = []
    try:
        with closing(HostCompiler(cache=Cache())) as compiler:
            for number, kernel in enumerate(islice(cycle([*UNUSUAL, None]), asked.runs), 1):
                while os.getloadavg()[0] > MOST_LOAD:
                    time.sleep(5)
                began_s = time.perf_counter()
                name = kernel.name if kernel else "a whole run"
                try:
                    reason = run_once(compiler, kernel) if kernel else tune_once()
                except TunerError as error:
                    reason = f"{type(error).__name__}: {error}"
                if reason:
                    refused.append({"kernel": name, "reason": reason})
                seconds.append(time.perf_counter() - began_s)
                loads.append(os.getloadavg()[0])
                print(number, f"{seconds[-1]:.2f} s", name, reason or "passed", flush=True)
    finally:
        for loop in loops:
            loop.kill()
    result: dict[str, Any] = {
        "benchmark": "beside_loops",
        "busy_loops": LOOPS,
        "runs": len(seconds),
        "kernels": len(UNUSUAL) + 1,
        "refused": refused,
        "median_s": round(median(seconds), 2),
        "longest_s": round(max(seconds), 2),
        "load": [round(min(loads), 1), round(max(loads), 1)],
        "environment": environment(),
    }
    write_result(asked.out, result)


if __name__ == "__main__":
    main()
