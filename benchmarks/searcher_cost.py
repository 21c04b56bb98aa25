"""What a searcher itself takes: time per proposed config, time to the first, memory.

    python benchmarks/searcher_cost.py [--searchers auto,random] [--sizes 1k,10M] [--out FILE]

Synthetic spaces of 8 to 10 parameters with 1,134 to 15 million valid configs, and a time that is
smooth but for a few steps. Each search of 100 trials runs in a process of its own with one
thread; on a busy machine the processor's time says more than the clock's. A config costs what
`ask` and `tell` take for it, and `shortlist` and `foresee` where the searcher has them; everything
that a trial itself takes is left out. With 8 in flight each config is told when 7 later ones have
been asked for, as `tune` does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environment import environment, write_result

from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.expressions import Expression, Value
from tuner.model.kernel import Workload
from tuner.model.trial import Measurement, Status, Trial
from tuner.search.base import StaticFeatureAware
from tuner.search.factory import make_searcher
from tuner.search.pool import valid_configs

TRIALS = 100
# Longer than that, a search is given up and noted as such.
MOST_S = 300
SEARCHERS = (
    "auto",
    "random",
    "exhaustive",
    "optuna",
    "kernel_tuner:genetic_algorithm",
    "kernel_tuner:adaptive_tabu_greywolf",
)
IN_FLIGHT = (1, 8)
VALUES: dict[str, tuple[Value, ...]] = {
    "threads": (64, 128, 256, 512, 1024, 96, 192, 384),
    "tile_m": (1, 2, 4, 8, 16, 3, 6),
    "tile_n": (1, 2, 4, 8, 16, 3, 6),
    "vector": (1, 2, 4, 8),
    "unroll": (1, 2, 4, 8, 3, 6),
    "stages": (1, 2, 3, 4, 5, 6, 7, 8),
    "layout": ("row", "column", "swizzled"),
    "prefetch": (False, True),
    "rows": (1, 2, 4, 8, 3, 6, 12, 16),
    "carveout": (0.25, 0.5, 0.75, 1.0, 0.125, 0.375, 0.625),
}
CONSTRAINTS = (
    "threads * tile_m * tile_n <= 16384",
    "tile_n % vector == 0 or vector % tile_n == 0",
    "unroll * vector <= 32",
    "(tile_m + tile_n) * threads * 4 * stages <= 232448",
    "prefetch or stages > 1 or layout == 'row'",
)
# how many of the values above each parameter has
SIZES = {
    "1k": (3, 3, 3, 3, 2, 2, 2, 2),
    "4k": (4, 4, 4, 4, 2, 2, 2, 2, 1),
    "20k": (5, 4, 4, 4, 3, 3, 2, 2, 2),
    "200k": (5, 5, 5, 4, 4, 4, 3, 2, 2, 3),
    "10M": (8, 7, 7, 4, 6, 8, 3, 2, 8, 7),
}


def space_of(size: str) -> SearchSpace:
    """Make the synthetic space called `size`."""
    counts = zip(VALUES.items(), SIZES[size], strict=False)
    return SearchSpace(
        tuple(Parameter(name, values[:count]) for (name, values), count in counts),
        tuple(Expression.parse(text) for text in CONSTRAINTS),
    )


def time_us(config: Config) -> float | None:
    """A time as of a kernel: too many registers fail, waves round up, the rest is smooth."""
    threads, tile_m, tile_n = (float(config[name]) for name in ("threads", "tile_m", "tile_n"))
    vector, unroll, stages = (float(config[name]) for name in ("vector", "unroll", "stages"))
    registers = 24 + 3 * tile_m * tile_n / 4 + 2 * vector * unroll
    if registers > 255:
        return None
    resident = min(2048, 65536 / registers // threads * threads)
    waves = math.ceil(4096 * 64 / (threads * tile_m * tile_n) / 132)
    time = 5 + 0.4 * waves * tile_m * tile_n / (0.2 + resident / 2048)
    time *= 1 + 0.2 * abs(math.log2(vector / 4)) + 0.1 * abs(math.log2(unroll / 2))
    time *= 1 + 0.05 * abs(stages - 3) - (0.1 if config["prefetch"] else 0.0)
    time *= {"row": 1.1, "column": 1.3, "swizzled": 1.0}[str(config["layout"])]
    return time * (1 + 0.03 * abs(float(config.get("rows", 4)) - 4) / 4)


def features_of(config: Config) -> dict[str, float]:
    """Say what a compiler could say of a config."""
    tile = float(config["tile_m"]) * float(config["tile_n"])
    return {
        "registers": 24 + 3 * tile / 4 + 2 * float(config["vector"]) * float(config["unroll"]),
        "waves": math.ceil(4096 * 64 / (float(config["threads"]) * tile) / 132),
    }


def trial_of(config: Config) -> Trial:
    """Run a config on the synthetic kernel."""
    time = time_us(config)
    if time is None:
        return Trial("c", Workload(()), config, Status.RESOURCE_LIMIT, "over 255 registers")
    measurement = Measurement((time,), calls_per_replay=1, buffer_sets=1)
    return Trial("c", Workload(()), config, Status.CORRECT, measurement=measurement)


class Clock:
    """Add up what calls take: by the clock, and of the processor."""

    def __init__(self) -> None:
        self.total_s = self.cpu_s = 0.0

    def of(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call; return what it does."""
        start, cpu_start = time.perf_counter(), time.process_time()
        result = call(*arguments)
        self.total_s += time.perf_counter() - start
        self.cpu_s += time.process_time() - cpu_start
        return result


def search_once(name: str, size: str, in_flight: int) -> dict[str, object]:
    """Search one space with one searcher, and say what that took."""
    space = space_of(size)
    start = time.perf_counter()
    pool = valid_configs(space, {})
    pool_s = time.perf_counter() - start
    seeds = (pool[0],)
    searcher = make_searcher(name, pool, space, seed=0, budget=TRIALS, seeds=seeds)
    clock, under_way = Clock(), deque[Trial]()
    first_s = None
    asked = 0
    most_s = 0.0
    while True:
        before_s = clock.total_s
        room = min(in_flight - len(under_way), TRIALS - asked)
        configs: list[Config] = []
        if room and isinstance(searcher, StaticFeatureAware):
            for config in clock.of(searcher.shortlist, room):
                clock.of(searcher.foresee, config, features_of(config))
        if room:
            configs = clock.of(searcher.ask, room)
        first_s = first_s or time.perf_counter() - start
        asked += len(configs)
        under_way.extend(map(trial_of, configs))
        if not under_way:
            break
        clock.of(searcher.tell, under_way.popleft())
        most_s = max(most_s, clock.total_s - before_s)
    return {
        "configs": pool.estimated_size,
        "held": len(pool),
        "ms_per_config": round(1e3 * clock.total_s / asked, 3),
        "cpu_ms_per_config": round(1e3 * clock.cpu_s / asked, 3),
        # where a searcher loads its libraries late, that is one turn
        "ms_per_config_but_slowest": round(1e3 * (clock.total_s - most_s) / asked, 3),
        "slowest_turn_ms": round(1e3 * most_s, 3),
        "trials": asked,
        "pool_s": round(pool_s, 3),
        "first_proposal_s": round(first_s, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def search_in_process(name: str, size: str, in_flight: int) -> dict[str, object]:
    """Search in a process of its own; say what went wrong where nothing came of it."""
    command = [sys.executable, __file__, "--one", name, size, str(in_flight)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **threads},
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took over {MOST_S} s"}
    if done.returncode:
        return {"failed": " ".join(done.stderr.split("\n")[-3:]).strip()}
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Search every space with every searcher, and write what each took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searchers", default=",".join(SEARCHERS), help="names, with commas")
    parser.add_argument("--sizes", default=",".join(SIZES), help=f"of {', '.join(SIZES)}")
    parser.add_argument("--out", type=Path, help="another place for the JSON")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, size, in_flight = options.one
        print(json.dumps(search_once(name, size, int(in_flight))))
        return
    rows = []
    for name in options.searchers.split(","):
        for size in options.sizes.split(","):
            for in_flight in IN_FLIGHT:
                found = search_in_process(name, size, in_flight)
                rows.append({"searcher": name, "space": size, "in_flight": in_flight, **found})
                print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    content = {"environment": environment(), "trials": TRIALS, "threads": 1, "searches": rows}
    write_result(options.out or "searcher_cost", content)


if __name__ == "__main__":
    main()
