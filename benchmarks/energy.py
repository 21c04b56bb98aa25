"""Energy per call of a baseline and four configs: how far two windows of one program differ.

    python benchmarks/energy.py [--out FILE] [--seconds 5] [--short 0.5]
                                                            (needs an NVIDIA GPU and CuPy)

Each program is measured in two windows, in two passes over all of them, between two windows of an
idle GPU. Then the baseline once more in four windows that are too short, to show what a window of
`--seconds` is for. About four minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import write_result

from tuner.compiler.pool import NvrtcPool
from tuner.device.cuda.device import CudaDevice
from tuner.device.cuda.driver import gpu_uuid
from tuner.device.cuda.energy import NvmlCounter
from tuner.model.config import Config
from tuner.model.energy import accounts
from tuner.model.kernel import Workload
from tuner.model.surroundings import ALONE
from tuner.model.trial import INITIAL, Energy, EnergyWindow, Status, Variant
from tuner.space.load import load_definition
from tuner.space.surroundings import choose_surroundings
from tuner.space.template import Template
from tuner.tuning.evaluator import BASELINE, Candidate, Evaluator

ROOT = Path(__file__).resolve().parents[1]
SPACE = ROOT / "search_spaces/sglang/silu_and_mul.yaml"
OPERATORS = {"ACTIVATION": "silu"}
WORKLOADS = ({"T": 8192, "D": 14336}, {"T": 128, "D": 11008})
# As the default but for what is named: overlapping launches; evict-first accesses; a persistent
# grid; narrow accesses by small blocks, which take more instructions for the same bytes.
CONFIGS = {
    "default": {},
    "flat": {"layout": "flat", "streaming": True, "specialize": True},
    "persistent": {
        "layout": "flat",
        "specialize": True,
        "persistent": True,
        "min_blocks": 4,
        "streaming": True,
    },
    "narrow": {"block_size": 64, "vector_bytes": 8, "vectors_per_thread": 4, "unroll": 4},
}
PASSES = 2
SHORT_WINDOWS = 4
TICKS = 30


def programs(evaluator, space, workload, device):
    """Compile and verify the baseline and the configs; the baseline's name is the empty config."""
    made = {BASELINE: evaluator.baseline_program(workload)}
    for changes in CONFIGS.values():
        config = Config.of({**space.default, **changes})
        made[config] = evaluator.program(workload, config)
    for config, program in made.items():
        outcome = device.run(program, full_verification=True)
        assert outcome.status is Status.CORRECT, (config, outcome.reason)
    return made


def measured(meter, workload, made, seconds):
    """Idle, every program twice, idle."""
    found = [Energy(workload, "idle", meter.idle_energy(seconds=seconds))]
    for number in range(PASSES):
        for config, program in made.items():
            window = meter.energy(program, seconds=seconds)
            assert isinstance(window, EnergyWindow), window
            if config is BASELINE:
                found.append(Energy(workload, "baseline", window))
            else:
                found.append(Energy(workload, "variant", window, Variant(INITIAL, config)))
            told = f"  pass {number + 1}: {window.power_w:6.1f} W {window.time_us:9.3f} us {config}"
            print(told, file=sys.stderr)
    return [*found, Energy(workload, "idle", meter.idle_energy(seconds=seconds))]


def row(one):
    """Lay out one program."""
    windows = [
        {
            "energy_j": w.energy_j,
            "seconds": w.seconds,
            "calls": round(w.calls),
            "power_w": w.power_w,
            "time_us": w.time_us,
            "clock_mhz": w.clock_mhz,
            "temperature_c": w.temperature_c,
            "limited_by": list(w.limited_by),
            "cold": w.cold,
        }
        for w in one.windows
    ]
    return {
        "config": None if one.variant is None else dict(one.variant.config),
        "net_mj": one.net_mj,
        "net_range_mj": list(one.net_range_mj),
        "gross_mj": one.gross_mj,
        "power_w": one.power_w,
        "time_us": one.time_us,
        "edp_mj_us": one.edp,
        "spread": one.spread,
        "windows": windows,
    }


def workload_part(meter, evaluator, space, workload, options, device):
    """Measure one workload and print what each program takes."""
    print(f"{workload}", file=sys.stderr)
    made = programs(evaluator, space, workload, device)
    (account,) = accounts(measured(meter, workload, made, options.seconds)).values()
    names = ["baseline", *CONFIGS]
    for name, one in zip(names, account.programs, strict=True):
        print(
            f"  {name:10} {one.time_us:9.3f} us  net {one.net_mj:8.4f} mJ  gross "
            f"{one.gross_mj:8.4f} mJ  {one.power_w:6.1f} W  windows apart {one.spread:.2%}",
            file=sys.stderr,
        )
    front = [
        name for name, one in zip(names, account.programs, strict=True) if one in account.front()
    ]
    return {
        "workload": workload.key,
        "idle_w": list(account.idle_w),
        "programs": {name: row(one) for name, one in zip(names, account.programs, strict=True)},
        "front": front,
        "energy_order": [names[1 + account.variants.index(v)] for v in account.ranked("energy")],
        "edp_order": [names[1 + account.variants.index(v)] for v in account.ranked("edp")],
    }, made[BASELINE]


def tick_ms():
    """Time the ticks of the counter on an idle GPU."""
    counter, ends = NvmlCounter(gpu_uuid(0)), []
    last = counter.energy_mj()
    while len(ends) < TICKS:
        now = counter.energy_mj()
        if now != last:
            ends.append(time.perf_counter())
            last = now
    return sorted(1e3 * (b - a) for a, b in pairwise(ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--short", type=float, default=0.5)
    options = parser.parse_args()
    definition = load_definition(SPACE)
    spec, space = choose_surroundings(definition.spec, ALONE), definition.space
    device = CudaDevice(0, spec, OPERATORS)
    device.require_energy()
    ticks = tick_ms()
    print(f"the counter ticks every {ticks[len(ticks) // 2]:.1f} ms", file=sys.stderr)
    template = Template.load(spec.template, spec.include_dirs)
    with NvrtcPool() as compiler:
        candidate = Candidate(INITIAL, space, template)
        evaluator = Evaluator(spec, candidate, OPERATORS, compiler, device)
        parts = []
        for axes in WORKLOADS:
            part, baseline = workload_part(
                device, evaluator, space, Workload.of(axes), options, device
            )
            parts.append(part)
        windows = [device.energy(baseline, seconds=options.short) for _ in range(SHORT_WINDOWS)]
        compiler_version = compiler.version
    short_mj = [w.power_w * w.time_us * 1e-3 for w in windows]
    environment = {"device": device.info.name, **device.info.environment}
    environment["compiler"] = compiler_version
    device.close()
    result = {
        "benchmark": "energy",
        "date": datetime.now(UTC).date().isoformat(),
        "window_s": options.seconds,
        "tick_ms": {"median": ticks[len(ticks) // 2], "least": ticks[0], "most": ticks[-1]},
        "spread_most": max(p["spread"] for part in parts for p in part["programs"].values()),
        "short": {
            "window_s": options.short,
            "gross_mj": short_mj,
            "spread": (max(short_mj) - min(short_mj)) / (sum(short_mj) / len(short_mj)),
        },
        "workloads": parts,
        "environment": environment,
    }
    if options.out:
        write_result(options.out, result)
    print(json.dumps({k: v for k, v in result.items() if k != "workloads"}, indent=1))


if __name__ == "__main__":
    main()
