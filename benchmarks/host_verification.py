"""How long the `host` device takes to compile and verify a config that it has not seen.

    python benchmarks/host_verification.py

Each config is rendered, compiled with g++ (what all kernels share is compiled before, a config's
own code is in no cache), loaded into a process of its own and verified in full.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import environment, write_result

from tuner.compiler.cache import Cache
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

ROOT = Path(__file__).resolve().parents[1]
SPACE = ROOT / "search_spaces/sglang/silu_and_mul.yaml"
OPERATORS = {"ACTIVATION": "silu"}
WORKLOAD = Workload.of({"T": 16, "D": 4096})
CONFIGS = 10
ASKED_S = 1.5


def measured(evaluator, device, config):
    """Compile one config, then verify it thoroughly; both in seconds."""
    began_s = time.perf_counter()
    program = evaluator.ready(evaluator.start(WORKLOAD, config))
    compiled_s = time.perf_counter()
    outcome = device.verify(program)
    ended_s = time.perf_counter()
    assert outcome.status is Status.CORRECT, outcome.reason
    return compiled_s - began_s, ended_s - compiled_s


def spread(pool):
    """Choose one more config than is measured, evenly over the space."""
    count = CONFIGS + 1
    return [pool[(2 * k + 1) * len(pool) // (2 * count)] for k in range(count)]


def main() -> None:
    definition = load_definition(SPACE)
    spec, space = definition.spec, definition.space
    device = HostDevice(spec, OPERATORS)
    with tempfile.TemporaryDirectory() as folder:
        compiler = HostCompiler(cache=Cache(Path(folder)))
        candidate = Candidate("measured", space, Template.load(spec.template, spec.include_dirs))
        evaluator = Evaluator(spec, candidate, OPERATORS, compiler, device)
        first, *configs = spread(valid_configs(space, evaluator.names(WORKLOAD)))
        measured(evaluator, device, first)  # compiles the runtime, opens the workload
        rows = [measured(evaluator, device, config) for config in configs]
        compiler.close()
    device.close()
    totals = [sum(row) for row in rows]
    result = {
        "benchmark": "host_verification",
        "workload": WORKLOAD.key,
        "configs": len(rows),
        "compiler": compiler.version,
        "median_s": round(median(totals), 3),
        "longest_s": round(max(totals), 3),
        "compile_s": [round(compile_s, 3) for compile_s, _ in rows],
        "verify_s": [round(verify_s, 3) for _, verify_s in rows],
        "asked_s": ASKED_S,
        "met": max(totals) < ASKED_S,
        "environment": environment(),
    }
    print({name: result[name] for name in ("median_s", "longest_s", "met")})
    write_result("host_verification", result)


if __name__ == "__main__":
    main()
