"""OpenCL configs compiled, verified and timed per second, beside Kernel Tuner's OpenCL backend.

    python benchmarks/opencl_throughput.py [--out FILE]        (needs pip install '.[opencl]')

Both take the same 36 configs of the same convolution on the first OpenCL device, from cold caches,
each in a process of its own, in rounds of shuffled order. Kernel Tuner runs as its documentation
says, with an `answer` at our tolerance, and is timed from the call of `tune_kernel` to its end.
Here the seconds are those of the search, from its start to the last result; with opening the
device and verifying and timing the baseline, which Kernel Tuner does not do, they are `in_all`.

Kernel Tuner defines every parameter in the source; in a template of ours the sizes of a work-group
stand in the launch alone, and sources that are equal are compiled once. It has no second worker to
compile on a CPU: `parallel` gives each worker a GPU of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path

from beside import (
    ROOT,
    PhaseClock,
    alternating,
    in_a_process_of_its_own,
    moment,
    spent,
    summary,
    surroundings,
)
from environment import cpu_model, write_result

SPACE = ROOT / "benchmarks/spaces/convolution.yaml"
ROUNDS = 7
ITERATIONS = 7  # Kernel Tuner's own default
CACHES = {"POCL_CACHE_DIR": "pocl", "XDG_CACHE_HOME": "user", "TUNER_CACHE_DIR": "tune"}
# What each does for one config.
DONE = {
    "tune": (
        "2 runs verified against float64, on fresh inputs of two kinds with guards, outputs "
        "poisoned and inputs compared; 1 call timed roughly, then 3 to 7 timed, each on another "
        "copy of the arrays, until the standard error is 2 %, or 3 where it is clearly slower; "
        "2 of the timed calls' results verified"
    ),
    "kernel_tuner": "1 run compared with the answer on the same inputs; 7 calls timed",
}


def ours(folder):
    """Search the whole space with a fresh cache, session and set of compilers."""
    from tuner.app.run import tune
    from tuner.app.session_plan import manifest_of
    from tuner.device.select import open_device
    from tuner.model.settings import RunConfig
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
    opened = moment()
    device = open_device("opencl", spec, {})
    compiler = device.compiler(None)
    clock = PhaseClock()
    manifest = manifest_of(plan, ("opencl_throughput",))
    with Session.create(folder / "session", manifest, {}) as session:
        tune(plan, session=session, device=device, compiler=compiler, listener=clock)
        counts = session.status_counts()
        trials = [trial for trial in session.trials() if trial.measurement is not None]
    environment = dict(device.info.environment) | {"device": device.info.name}
    device.close()
    compiler.close()
    configs = sum(counts.values())
    assert counts[Status.CORRECT] == configs, counts
    began, ended = clock.first["search"], clock.last("search")
    return {
        **row([trial.time_us for trial in trials], began, ended),
        "in_all": row([trial.time_us for trial in trials], opened, ended),
        "timed_calls": sum(len(one.measurement.times_us) for one in trials),
        "environment": environment,
    }


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
    began = moment()
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
        iterations=ITERATIONS,
        quiet=True,
    )
    ended = moment()
    os.chdir(ROOT)
    found = [one for one in results if isinstance(one["time"], float)]
    parts = ("compile_time", "verification_time", "benchmark_time")
    parts_s = {name: sum(one[name] for one in found) * 1e-3 for name in parts}
    times_us = [one["time"] * 1e3 for one in found]
    return {
        **row(times_us, began, ended),
        "timed_calls": ITERATIONS * len(found),
        "parts_s": parts_s,
    }


def row(times_us, began, ended):
    """Say how many configs took so long, by the clock and of the CPU."""
    return {"configs": len(times_us), **spent(began, ended), "best_us": min(times_us)}


TOOLS = {"tune": ours, "kernel_tuner": kernel_tuners}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    out = ROOT / "benchmarks/results/cpu/opencl_throughput.json"
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tool", choices=TOOLS)
    asked = parser.parse_args()
    if asked.tool:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(TOOLS[asked.tool](Path(folder))))
        return
    run = {
        name: partial(in_a_process_of_its_own, __file__, "--tool", name, caches=CACHES)
        for name in TOOLS
    }
    rows = alternating(run, asked.rounds)
    device = [one.pop("environment") for one in rows["tune"]][-1]
    packages = {name: version(name) for name in ("pyopencl", "pocl-binary-distribution")}
    environment = {**device, **surroundings(), **packages, "cpu": cpu_model()}
    content = {"done_for_a_config": DONE, **summary(rows), "environment": environment}
    write_result(asked.out.resolve(), content)


if __name__ == "__main__":
    main()
