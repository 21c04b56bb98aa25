"""OpenCL configs compiled, verified and timed per second, beside Kernel Tuner's OpenCL backend.

    python benchmarks/opencl_throughput.py [--out FILE]        (needs pip install '.[opencl]')

Both take the same 36 configs of the same convolution on the first OpenCL device, from cold caches,
in turns. Kernel Tuner runs as its documentation says, with an `answer` at our tolerance. It defines
every parameter in the source; in a template of ours the sizes of a work-group stand in the launch
alone, and sources that are equal are compiled once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

from environment import write_result

ROOT = Path(__file__).resolve().parents[1]
SPACE = ROOT / "benchmarks/spaces/convolution.yaml"
ROUNDS = 3


class SearchClock:
    """Note when the search began and when it ended."""

    def __init__(self):
        self.began_s = self.ended_s = None

    def update(self, progress):
        now_s = time.perf_counter()
        if progress.phase == "search":
            self.began_s = self.began_s or now_s
            self.ended_s = now_s


def ours(folder):
    """Search the whole space with a fresh cache, session and set of compilers."""
    from tuner.app.plan import manifest_of
    from tuner.app.run import tune
    from tuner.compiler.cache import Cache
    from tuner.compiler.opencl import OpenclPool
    from tuner.device.select import open_device
    from tuner.model.run_config import RunConfig
    from tuner.model.trial import Status
    from tuner.session.session import Session
    from tuner.space.load import load_definition
    from tuner.space.plan import Plan
    from tuner.space.template import Template

    definition = load_definition(SPACE)
    spec = definition.spec
    config = RunConfig(
        space=spec.path,
        template=spec.template,
        device="opencl",
        searcher="exhaustive",
        workloads=spec.tuned,
        operators={},
    )
    plan = Plan(config, spec, definition.space, Template.load(spec.template, spec.include_dirs))
    device = open_device("opencl", spec, {})
    compiler = OpenclPool(0, cache=Cache(folder / "cache"))
    clock = SearchClock()
    manifest = manifest_of(plan, ("opencl_throughput",))
    with Session.create(folder / "session", manifest, {}) as session:
        tune(plan, session=session, device=device, compiler=compiler, listener=clock)
        counts = session.status_counts()
        best_us = min(t.time_us for t in session.trials() if t.time_us is not None)
    environment = dict(device.info.environment) | {"device": device.info.name}
    device.close()
    compiler.close()
    configs = sum(counts.values())
    assert counts[Status.CORRECT] == configs, counts
    seconds = clock.ended_s - clock.began_s
    return {"configs": configs, "seconds": seconds, "best_us": best_us}, environment


def kernel_tuners(folder):
    """Run `tune_kernel` over the same configs, its results checked against the reference."""
    import kernel_tuner
    import numpy as np

    from tuner.device.reference import load_reference
    from tuner.space.load import load_definition

    definition = load_definition(SPACE)
    axes = definition.spec.tuned[0].values
    height, width, size = (axes[name] for name in "HWF")
    rng = np.random.default_rng(0)
    image = rng.standard_normal((height + size - 1, width + size - 1), dtype=np.float32)
    weights = rng.standard_normal((size, size), dtype=np.float32)
    drawn = {"image": image.astype(float), "filter": weights.astype(float)}
    reference = load_reference(definition.spec.reference)
    expected = reference.compute(np, drawn, axes)["output"].astype(np.float32)
    output = np.zeros((height, width), np.float32)
    scalars = [np.int32(height), np.int32(width), np.int32(size)]
    os.chdir(folder)  # it leaves files where it runs
    started_s = time.perf_counter()
    results, _ = kernel_tuner.tune_kernel(
        "convolution",
        str(definition.spec.source),
        (width, height),
        [output, image, weights, *scalars],
        {parameter.name: list(parameter.values) for parameter in definition.space.parameters},
        grid_div_x=["block_size_x", "tile_size_x"],
        grid_div_y=["block_size_y", "tile_size_y"],
        lang="OpenCL",
        answer=[expected, None, None, None, None, None],
        atol=2e-3,
        quiet=True,
    )
    seconds = time.perf_counter() - started_s
    times_us = [r["time"] * 1e3 for r in results if isinstance(r["time"], float)]
    return {"configs": len(times_us), "seconds": seconds, "best_us": min(times_us)}


def in_a_process_of_its_own(tool):
    """Run one of the two with empty caches of PoCL and pyopencl."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"POCL_CACHE_DIR": f"{folder}/pocl", "XDG_CACHE_HOME": f"{folder}/user"}
        Path(caches["POCL_CACHE_DIR"]).mkdir()
        answer = subprocess.run(
            [sys.executable, __file__, "--tool", tool],
            env={**os.environ, **caches},
            capture_output=True,
            text=True,
            check=True,
        )
    return json.loads(answer.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    out = ROOT / "benchmarks/results/cpu/opencl_throughput.json"
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tool", choices=("tune", "kernel_tuner"))
    asked = parser.parse_args()
    if asked.tool:
        with tempfile.TemporaryDirectory() as folder:
            run = ours if asked.tool == "tune" else kernel_tuners
            found = run(Path(folder))
            print(json.dumps(found))
            os.chdir(ROOT)
        return
    rows, environment = {"tune": [], "kernel_tuner": []}, {}
    for _ in range(asked.rounds):
        row, environment = in_a_process_of_its_own("tune")
        rows["tune"].append(row)
        rows["kernel_tuner"].append(in_a_process_of_its_own("kernel_tuner"))
        print(json.dumps({name: runs[-1] for name, runs in rows.items()}), flush=True)
    rates = {name: median(r["configs"] / r["seconds"] for r in runs) for name, runs in rows.items()}
    ratio = rates["tune"] / rates["kernel_tuner"]
    for name, runs in rows.items():
        best = min(row["best_us"] for row in runs)
        print(f"{name:14} {rates[name]:7.2f} configs/s   best {best:.0f} us")
    print(f"ratio {ratio:.2f}")
    environment |= {
        "cpus": str(os.cpu_count()),
        "python": platform.python_version(),
        "kernel_tuner": version("kernel_tuner"),
        "pyopencl": version("pyopencl"),
        "load": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_result(
        asked.out.resolve(),
        {"rates": rates, "ratio": ratio, "runs": rows, "environment": environment},
    )


if __name__ == "__main__":
    main()
