"""Random configs of the portable kernels in HIP: compiled, limits read, run on the CPU.

    python benchmarks/hip_configs.py [--targets gfx950 ...]

What is counted for each kernel: configs that clang compiles, whose registers, LDS and scratch are
read from the code object, whose waves on a SIMD are those of clang's own remark
(`-Rpass-analysis=kernel-resource-usage`), and, for gfx942, that are right against the float64
reference on the CPU, on the smallest tuned workload and on every edge case that the config is
valid for. There is no AMD GPU in any of this. Targets that are not named keep what the result file
says of them.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import RESULTS, environment, write_result

from tuner.app.check import UnavailableDevice
from tuner.compiler.cache import Cache
from tuner.device.base import amd_info
from tuner.extensions.backends.hip.compiler import (
    HipCompiler,
    code_options,
    find_clang,
    kernel_resources,
)
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.model.expressions import ceil_div
from tuner.model.hardware import AMD_TARGETS, DEFAULT_TARGET, AmdLimits
from tuner.model.kernel import Launch
from tuner.model.trial import Resources, Status
from tuner.search.pool import valid_configs
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ("silu_and_mul", "rmsnorm", "row_sum", "gemm_f32")
CONFIGS, SEED = 50, 0
_OCCUPANCY = re.compile(r"Occupancy \[waves/SIMD\]: (\d+)")
# Newer clangs count what the best size of a block up to the bound would have: here the bound is
# the only size.
_ONE_SIZE = """#undef TUNE_BOUNDS_1
#define TUNE_BOUNDS_1(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#line 1
"""


def waves(clang, request, folder, limits) -> tuple[int, int]:
    """Count the waves of a kernel that a SIMD holds, as we do and as clang does."""
    (folder / "kernel.cu").write_text(_ONE_SIZE + request.source)
    options = [*code_options(clang, request), "-Rpass-analysis=kernel-resource-usage"]
    command = [clang.path, *options, "-o", "remarked.hsaco", "kernel.cu"]
    log = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    (theirs,) = _OCCUPANCY.findall(log)
    (resources,) = kernel_resources((folder / "remarked.hsaco").read_bytes()).values()
    return waves_on_simd(limits, resources, resources.max_threads), int(theirs)


def waves_on_simd(limits: AmdLimits, resources: Resources, threads: int) -> int:
    """Count the waves of a SIMD as clang's remark on a kernel's resources does.

    `threads` is the block that the kernel was compiled for. Unlike the occupancy of a launch it
    counts no dynamic LDS, not that LDS is given in units, and not that only whole blocks come
    to a compute unit.
    """
    to_the_byte = replace(limits, shared_unit_bytes=1)
    rooms = to_the_byte.rooms(resources, Launch("", (1, 1, 1), (threads, 1, 1)))
    del rooms["registers"]
    waves = min(rooms.values()) * ceil_div(threads, limits.threads_per_warp)
    return min(limits.waves_by_registers(resources), ceil_div(waves, limits.partitions))


class Kernel:
    """Random configs of one kernel for one target; `found` counts what holds of them."""

    def __init__(self, name: str, target: str, hip: HipCompiler) -> None:
        definition = load_definition(ROOT / f"search_spaces/portable/{name}.hip.yaml")
        self.spec, self.space = definition.spec, definition.space
        self.candidate = Candidate("hip", self.space, Template.load(self.spec.template))
        self.info = amd_info(target)
        device = UnavailableDevice(self.info)
        self.on_gpu = Evaluator(self.spec, self.candidate, {}, hip, device)
        self.workload = min(self.spec.tuned, key=self.spec.footprint_bytes)
        self.pool = valid_configs(self.space.unpruned, self.on_gpu.names(self.workload))
        chosen = random.Random(SEED).sample(range(len(self.pool)), CONFIGS)  # noqa: S311
        self.chosen = [self.pool[index] for index in chosen]
        self.found: Counter[str] = Counter()
        self.differing: list[str] = []

    def compile(self, hip, clang, folder) -> None:
        for config in self.chosen:
            request = self.on_gpu.request(self.workload, config)
            result = hip.submit(request).result()
            if not result.ok:
                self.differing.append(f"{config}: {result.error}")
                continue
            resources = result.resources[self.spec.launch[0].kernel]
            self.found["compiled"] += 1
            self.found["limits_read"] += bool(resources.registers and resources.max_threads)
            ours, theirs = waves(clang, request, folder, self.info.own_limits)
            self.found["occupancy_as_clang"] += ours == theirs
            if ours != theirs:
                self.differing.append(f"{config}: {ours} waves on a SIMD, clang says {theirs}")
            trial = self.on_gpu.finish(self.on_gpu.start(self.workload, config))
            self.found["over_a_limit"] += trial.status is Status.RESOURCE_LIMIT

    def verify(self, host: HostCompiler) -> None:
        with closing(HostDevice(self.spec, {})) as cpu:
            on_cpu = Evaluator(self.spec, self.candidate, {}, host, cpu)
            for config in self.chosen:
                workloads = (self.workload, *self.spec.edge_cases)
                valid = [w for w in workloads if self._is_valid(config, on_cpu.names(w))]
                outcomes = [on_cpu.verify(on_cpu.start(one, config)) for one in valid]
                wrong = [one for one in outcomes if one.status is not Status.CORRECT]
                self.found["runs_verified"] += len(outcomes) - len(wrong)
                self.found["verified_on_cpu"] += not wrong
                self.differing += [f"{config}: {one.status}: {one.reason}" for one in wrong]

    def _is_valid(self, config, names) -> bool:
        return self.space.violated(config, names) is None

    @property
    def counts(self) -> dict[str, object]:
        total = {"of": CONFIGS, "valid_configs": len(self.pool)}
        return {**total, **self.found, "differing": self.differing}


def counted(target: str, folder: Path) -> dict[str, object]:
    """Count what holds of the configs of all kernels for one target."""
    clang, cache, kernels = find_clang(target), Cache(folder / "cache"), {}
    began_s = time.perf_counter()
    with (
        closing(HipCompiler(target, cache=cache)) as hip,
        closing(HostCompiler(cache=cache)) as host,
    ):
        for name in KERNELS:
            kernel = Kernel(name, target, hip)
            kernel.compile(hip, clang, folder)
            if target == DEFAULT_TARGET:
                kernel.verify(host)
            kernels[name] = kernel.counts
            print(target, name, kernels[name], flush=True)
    seconds = round(time.perf_counter() - began_s)
    return {"clang": clang.name, "seconds": seconds, "kernels": kernels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", nargs="+", choices=AMD_TARGETS, default=AMD_TARGETS)
    asked, measured = parser.parse_args().targets, {"environment": environment()}
    path = RESULTS / "hip_configs.json"
    targets = json.loads(path.read_text(encoding="utf-8"))["targets"] if path.exists() else {}
    for target in asked:
        with tempfile.TemporaryDirectory() as folder:
            targets[target] = {**measured, **counted(target, Path(folder))}
    ordered = {one: targets[one] for one in AMD_TARGETS if one in targets}
    write_result(path.stem, {**measured, "seed": SEED, "targets": ordered})


if __name__ == "__main__":
    main()
