"""Random configs of the portable kernels in HIP: compiled for gfx942, limits read, run on the CPU.

    python benchmarks/hip_configs.py

What is counted for each kernel: configs that clang compiles, whose registers, LDS and scratch are
read from the code object, whose waves on a SIMD are those of clang's own remark
(`-Rpass-analysis=kernel-resource-usage`), and that are right against the float64 reference on the
CPU, on the smallest tuned workload and on every edge case that the config is valid for. There is
no AMD GPU in any of this.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import environment, write_result

from tuner.app.check import UnavailableDevice
from tuner.compiler.cache import Cache
from tuner.compiler.hip import HipCompiler, code_options, find_clang
from tuner.compiler.host import HostCompiler
from tuner.device.base import amd_info
from tuner.device.cpu.device import HostDevice
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ("silu_and_mul", "rmsnorm", "row_sum", "gemm_f32")
TARGET = "gfx942"
CONFIGS, SEED = 50, 0
_OCCUPANCY = re.compile(r"Occupancy \[waves/SIMD\]: (\d+)")


def remarked(clang, request, folder) -> int:
    """Ask clang how many waves of a kernel a SIMD holds."""
    (folder / "kernel.cu").write_text(request.source)
    options = [*code_options(clang, request), "-Rpass-analysis=kernel-resource-usage"]
    command = [clang.path, *options, "-o", "remarked.hsaco", "kernel.cu"]
    log = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    (waves,) = _OCCUPANCY.findall(log)
    return int(waves)


def counted(name, clang, folder) -> dict[str, object]:
    """Count what holds of the configs of one kernel."""
    definition = load_definition(ROOT / f"search_spaces/portable/{name}.hip.yaml")
    spec, space = definition.spec, definition.space
    candidate = Candidate("hip", space, Template.load(spec.template))
    info, found, differing = amd_info(TARGET), Counter(), []
    cache = Cache(folder / "cache")
    with (
        closing(HipCompiler(TARGET, cache=cache)) as hip,
        closing(HostCompiler(cache=cache)) as host,
        closing(HostDevice(spec, {})) as cpu,
    ):
        on_gpu = Evaluator(spec, candidate, {}, hip, UnavailableDevice(info))
        on_cpu = Evaluator(spec, candidate, {}, host, cpu)
        workload = min(spec.tuned, key=spec.footprint_bytes)
        pool = valid_configs(space.unpruned, on_gpu.names(workload))
        chosen = random.Random(SEED).sample(range(len(pool)), CONFIGS)  # noqa: S311
        for index in chosen:
            config = pool[index]
            request = on_gpu.request(workload, config)
            result = hip.submit(request).result()
            if not result.ok:
                differing.append(f"{config}: {result.error}")
                continue
            resources = result.resources[spec.launch[0].kernel]
            found["compiled"] += 1
            found["limits_read"] += bool(resources.registers and resources.max_threads)
            ours = info.own_limits.waves_on_simd(resources, resources.max_threads)
            theirs = remarked(clang, request, folder)
            found["occupancy_as_clang"] += ours == theirs
            if ours != theirs:
                differing.append(f"{config}: {ours} waves on a SIMD, and clang says {theirs}")
            trial = on_gpu.finish(on_gpu.start(workload, config))
            found["over_a_limit"] += trial.status is Status.RESOURCE_LIMIT
            right = True
            for one in (workload, *spec.edge_cases):
                if space.violated(config, on_cpu.names(one)) is None:
                    outcome = on_cpu.verify(on_cpu.start(one, config))
                    found["runs_verified"] += outcome.status is Status.CORRECT
                    if outcome.status is not Status.CORRECT:
                        right = False
                        differing.append(f"{config} on {one}: {outcome.status}: {outcome.reason}")
            found["verified_on_cpu"] += right
    return {"of": CONFIGS, "valid_configs": len(pool), **found, "differing": differing}


def main() -> None:
    clang = find_clang()
    began_s = time.perf_counter()
    kernels = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in KERNELS:
            kernels[name] = counted(name, clang, Path(folder))
            print(name, kernels[name], flush=True)
    content = {
        "environment": environment(),
        "clang": clang.name,
        "target": TARGET,
        "seed": SEED,
        "seconds": round(time.perf_counter() - began_s),
        "kernels": kernels,
    }
    write_result("hip_configs", content)


if __name__ == "__main__":
    main()
