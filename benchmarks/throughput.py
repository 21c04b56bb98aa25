"""Configs compiled, verified and timed per second, side by side with Kernel Tuner in one run.

    python benchmarks/throughput.py [--out FILE] [--against CHECKOUT]   (needs a GPU and CuPy)

Both take the same 96 configs of the same template on the same workload, from a cold compile
cache. Kernel Tuner runs as its documentation says, through its CuPy backend, each time in a
process of its own: CuPy and NVRTC keep what they have compiled. It is given a verification in
NumPy at the same tolerance, and in a second series none at all. `--against` compares with the
code of an earlier commit instead, each in processes of its own, whose first run warms up.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from beside import ROOT, PhaseClock, alternating, in_a_process_of_its_own, summary, surroundings
from environment import write_result

SPACE = ROOT / "benchmarks/spaces/silu_and_mul_96.yaml"
OPERATORS = {"ACTIVATION": "silu"}
REPEATS = 3
ROUNDS_AGAINST = 4
WARM_RUNS = 2


def ours(definition, template, folder):
    """Search the whole space with a fresh cache, session and set of compilers."""
    from tuner.app.run import tune
    from tuner.app.session_plan import manifest_of
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.device.select import open_device
    from tuner.model.settings import RunConfig
    from tuner.model.trial import Status
    from tuner.report.data import from_session
    from tuner.report.sections.course import time_spent
    from tuner.session.session import Session
    from tuner.space.plan import Plan

    spec = definition.spec
    config = RunConfig(
        space=spec.path,
        template=spec.template,
        device="cuda",
        searcher="exhaustive",
        workloads=spec.tuned,
        operators=OPERATORS,
    )
    plan = Plan(config, spec, definition.space, template)
    device = open_device("cuda", spec, OPERATORS)
    compiler = NvrtcPool(cache=Cache(folder / "cache"))
    version = compiler.version  # as the command asks for it, and so starts the first process
    clock = PhaseClock()
    manifest = manifest_of(plan, ("throughput",))
    with Session.create(folder / "session", manifest, {}) as session:
        tune(plan, session=session, device=device, compiler=compiler, listener=clock)
        counts = session.status_counts()
        best_us = min(t.time_us for t in session.trials() if t.time_us is not None)
        inside_s = time_spent(from_session(session)).inside_s
    environment = dict(device.info.environment) | {"device": device.info.name}
    environment["compiler"] = version
    device.close()
    compiler.close()
    configs = sum(counts.values())
    assert counts[Status.CORRECT] == configs, counts
    seconds = clock.last("search")[0] - clock.first["baseline"][0]
    inside_s = {phase: inside_s[phase] for phase in ("baseline", "search")}
    found = {"configs": configs, "seconds": seconds, "best_us": best_us, "inside_s": inside_s}
    return found, environment


def kernel_tuners(definition, template, folder, verified):
    """Run `tune_kernel` over the same configs with CuPy's kernel cache in a fresh folder."""
    import kernel_tuner
    import numpy as np

    spec, space = definition.spec, definition.space
    axes = spec.tuned[0].values
    tokens, width = axes["T"], axes["D"]
    rng = np.random.default_rng(0)
    values = rng.standard_normal((tokens, 2 * width), dtype=np.float32)
    stored = (values.view(np.uint32) >> 16).astype(np.uint16)
    gate, up = np.split((stored.astype(np.uint32) << 16).view(np.float32).astype(float), 2, axis=1)
    expected = gate / (1.0 + np.exp(-gate)) * up
    out = np.zeros((tokens, width), np.uint16)

    def verify(answer, results, atol):
        found = (results[0].astype(np.uint32) << 16).view(np.float32)
        return np.allclose(found, expected, rtol=4e-3, atol=1e-6)

    def grid(config):
        covered = config["vector_bytes"] * config["vectors_per_thread"] * config["block_size"]
        if config["layout"] == "rows":
            return tokens, -(-width * 2 // covered)
        return -(-tokens * width * 2 // covered), 1

    def render(config):
        return template.render({**axes, **OPERATORS, **config}).source

    os.chdir(folder)  # it leaves files where it runs
    checked = {"answer": [expected, None, None, None], "verify": verify} if verified else {}
    started_s = time.perf_counter()
    results, _ = kernel_tuner.tune_kernel(
        "silu_and_mul",
        render,
        grid,
        [out, stored, np.int32(tokens), np.int32(width)],
        {parameter.name: list(parameter.values) for parameter in space.parameters},
        grid_div_x=[],
        grid_div_y=[],
        restrictions=[constraint.text for constraint in space.constraints],
        block_size_names=["block_size"],
        defines={},
        lang="CUPY",
        compiler_options=["-std=c++17", "-DACTIVATION=silu", *_include_options()],
        quiet=True,
        **checked,
    )
    seconds = time.perf_counter() - started_s
    times_us = [r["time"] * 1e3 for r in results if isinstance(r["time"], float)]
    return {"configs": len(times_us), "seconds": seconds, "best_us": min(times_us)}


def beside(mode):
    """Run `kernel_tuners` with empty caches of CuPy and NVRTC."""
    caches = {"CUPY_CACHE_DIR": "cupy", "CUDA_CACHE_PATH": "nvrtc"}
    return in_a_process_of_its_own(__file__, "--kernel-tuner", mode, caches=caches)


def _include_options():
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudart")
    return [f"-I{found}"] if found else []


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/throughput.json")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--kernel-tuner", choices=("checked", "unchecked"))
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    out = asked.out.resolve()
    from tuner.space.load import load_definition
    from tuner.space.template import Template

    definition = load_definition(SPACE)
    template = Template.load(definition.spec.template, definition.spec.include_dirs)
    if asked.kernel_tuner:
        with tempfile.TemporaryDirectory() as folder:
            verified = asked.kernel_tuner == "checked"
            print(json.dumps(kernel_tuners(definition, template, Path(folder), verified)))
            os.chdir(ROOT)
        return
    environments = []

    def mine():
        with tempfile.TemporaryDirectory() as folder:
            result, environment = ours(definition, template, Path(folder))
        environments.append(environment)
        return result

    if asked.ours:
        runs = [mine() for _ in range(WARM_RUNS + 1)][1:]
        best_us = min(run["best_us"] for run in runs)
        seconds = median(run["seconds"] for run in runs)
        print(json.dumps(runs[-1] | {"seconds": seconds, "best_us": best_us}))
        return
    tools = {
        "tune": mine,
        "kernel_tuner": partial(beside, "checked"),
        "kernel_tuner, nothing verified": partial(beside, "unchecked"),
    }
    if asked.against is not None:
        alone = partial(in_a_process_of_its_own, __file__, "--ours", caches={})
        before = partial(alone, root=asked.against.resolve())
        tools = {"tune": alone, f"tune, {asked.against.name}": before}
    found = summary(alternating(tools, REPEATS if asked.against is None else ROUNDS_AGAINST))
    known = environments[-1] if environments else {}
    write_result(out, {**found, "environment": {**known, **surroundings()}})


if __name__ == "__main__":
    main()
