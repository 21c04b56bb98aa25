"""What compiling configs of SGLang's fused MoE kernel takes, in one process and in many at once.

    python benchmarks/compile_ahead.py [--processes 1,16] [--configs 10] [--columns 768]
                                       [--tokens 64] [--device cuda:0] [--out FILE]
                                              (needs an NVIDIA GPU, SGLang 0.5.17 and sglang-kernel)

Each process compiles so many configs of its own as `tune` does ahead of a search, with an empty
cache of Triton's, and then once more, when all is compiled: what is left is the rest. Said are the
seconds until the engine is imported, and of a config those of the clock, of a core (Triton's
assembler among it) and of each of Triton's stages.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from environment import ROOT, environment, require_clean, versions, write_result
from fused_moe import COLUMNS, KERNEL, SLICES, axes_of, operators_of

SEED = 0
OUT = ROOT / "benchmarks/results/h200/compile_ahead.json"


def plan_of(columns: int, tokens: int) -> Any:
    """Read the space as a fleet has it."""
    from tuner.app.plan import new_plan

    operators = operators_of(columns, "real")
    settings: Any = {"device": "cuda", "workloads": [axes_of(tokens, columns)]}
    return new_plan(KERNEL, {**settings, "operators": operators})


def sources(plan: Any, count: int) -> list[str]:
    """Draw so many of the valid configs, and render them as modules."""
    from tuner.app.check import UnavailableDevice, target_info
    from tuner.compiler.base import PythonCompiler
    from tuner.search.pool import valid_configs
    from tuner.tuning.evaluator import evaluator_of

    device = UnavailableDevice(target_info("sm_90a"))
    evaluator = evaluator_of(plan, PythonCompiler(), device)
    (workload,) = plan.config.workloads
    pool = valid_configs(plan.space, evaluator.names(workload))
    places = random.Random(SEED).sample(range(len(pool)), count)  # noqa: S311, a sample
    return [evaluator.request(workload, pool[place]).source for place in places]


@contextmanager
def stages(seconds: Counter[str]) -> Iterator[None]:
    """Add up what Triton says of each of its stages."""
    from triton import knobs  # type: ignore[import-not-found,unused-ignore]

    def listen(*, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            seconds["its Python"] += times.ir_initialization / 1e6
            seconds["writing"] += times.store_results / 1e6
            for stage, spent in times.lowering_stages:
                seconds[stage] += spent / 1e6

    knobs.compilation.listener = listen
    try:
        yield
    finally:
        knobs.compilation.listener = None


def passed(preparer: Any, modules: Sequence[str]) -> dict[str, float]:
    """Compile all modules once; give seconds a module."""
    seconds: Counter[str] = Counter()
    began_s, before = time.perf_counter(), os.times()
    with stages(seconds):
        for one in modules:
            said = preparer.prepare(one)
            if not (said.called or said.error):
                raise SystemExit("nothing was compiled: is the engine installed, and memory left?")
    after = os.times()
    seconds["clock"] = time.perf_counter() - began_s
    seconds["core"] = sum(after[:4]) - sum(before[:4])
    return {name: spent / len(modules) for name, spent in seconds.items()}


def in_a_process(given: tuple[Any, str, list[str], str]) -> dict[str, Any]:
    """Import the engine with the first module, compile the others, and once more."""
    from tuner.device.cuda.prepare import Preparer

    spec, device, modules, cache = given
    os.environ["TRITON_CACHE_DIR"] = cache
    preparer = Preparer(spec, device)
    began_s = time.perf_counter()
    preparer.prepare(modules[0])
    ready_s = time.perf_counter() - began_s
    return {
        "ready": ready_s,
        "first": passed(preparer, modules[1:]),
        "again": passed(preparer, modules[1:]),
    }


def measured(plan: Any, device: str, processes: int, configs: int) -> dict[str, Any]:
    """Compile in so many processes at once."""
    modules = sources(plan, processes * (configs + 1))
    shares = [modules[place::processes] for place in range(processes)]
    with tempfile.TemporaryDirectory() as cache:
        given = [(plan.spec, device, share, cache) for share in shares]
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            found = list(pool.map(in_a_process, given))
    return {"processes": processes, "configs": configs, **mean_of(found)}


def mean_of(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Give the means of all processes."""
    return {
        "ready_s": round(fmean(one["ready"] for one in found), 3),
        **{
            f"{name}_s": {
                part: round(fmean(one[name].get(part, 0.0) for one in found), 4)
                for part in found[0][name]
            }
            for name in ("first", "again")
        },
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--processes", type=lambda text: [*map(int, text.split(","))], default=[1, 16]
    )
    parser.add_argument("--configs", type=int, default=10, help="that each process compiles")
    parser.add_argument("--columns", type=int, default=COLUMNS, choices=SLICES)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    require_clean()
    plan, rows = plan_of(asked.columns, asked.tokens), []
    for processes in asked.processes:
        rows.append(measured(plan, asked.device, processes, asked.configs))
        print(rows[-1], flush=True)
    here = {**environment(), "packages": versions(("torch", "triton", "sglang"))}
    about = {"columns": asked.columns, "tokens": asked.tokens}
    write_result(asked.out.resolve(), {**about, "rows": rows, "environment": here})


if __name__ == "__main__":
    main()
