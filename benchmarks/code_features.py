"""What the compiler's word on a config is worth before it is timed, and what it costs.

    python benchmarks/code_features.py [--seeds N] [--trees N] [--out FILE]

For every workload recorded on the H200: a forest learns from 20 or 40 configs drawn at random and
ranks the others, once from the parameters alone, once with what the launch says (blocks, threads)
and once with all of tuner/foresight.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from environment import environment, write_result  # noqa: E402
from recorded_spaces import WHOLE, load  # noqa: E402

LEARNED_FROM = (20, 40)
# Known without a compiler.
LAUNCH = ("launches", "blocks", "warps", "threads", "dynamic_shared_bytes", "cluster_blocks")
REPEATS = 20
BEST_SHARE, LOOKED_AT_SHARE, LOOKED_AT = 0.01, 0.05, 10


def columns(space):
    """Make the matrices that are compared, one row per config; constant columns left out."""
    pool = space.pool
    numbers = [
        [place if isinstance(value, str) else value for place, value in enumerate(one.values)]
        for one in pool.parameters
    ]
    encoded = np.asarray(pool.encoded).astype(int)
    parameters = np.array([np.array(v, float)[encoded[:, k]] for k, v in enumerate(numbers)]).T
    names = next(tuple(one) for one in space.features if one is not None)
    unknown = dict.fromkeys(names, np.nan)
    known = np.array([[(one or unknown)[name] for name in names] for one in space.features])
    varying = np.nanmax(known, 0) > np.nanmin(known, 0)
    launch = varying & np.isin(names, LAUNCH)
    return {
        "parameters": parameters,
        "with_launch": np.hstack([parameters, known[:, launch]]),
        "with_features": np.hstack([parameters, known[:, varying]]),
    }


def ranking(space, matrix, learned_from, trees, seed):
    """Learn from a few configs, rank the others; return the three figures."""
    from scipy.stats import spearmanr
    from sklearn.ensemble import ExtraTreesRegressor

    times = space.times_us
    timed = np.flatnonzero(~np.isnan(times))
    known = np.random.default_rng(seed).choice(timed, learned_from, replace=False)
    others = np.setdiff1d(timed, known)
    forest = ExtraTreesRegressor(trees, random_state=seed, n_jobs=1, max_features=0.3)
    forest.fit(matrix[known], np.log(times[known]))
    guessed = forest.predict(matrix[others])
    order = others[np.argsort(guessed, kind="stable")]
    best = set(timed[np.argsort(times[timed])[: max(1, round(BEST_SHARE * len(timed)))]].tolist())
    found = best & set(order[: round(LOOKED_AT_SHARE * len(timed))].tolist())
    return {
        "spearman": float(spearmanr(guessed, np.log(times[others])).statistic),
        "best_1_percent_in_first_5_percent": len(found) / max(1, len(best - set(known.tolist()))),
        "share_of_optimum_in_first_10": float(space.best_us / times[order[:LOOKED_AT]].min()),
    }


def worth(spaces, seeds, trees):
    """Average the figures over workloads and seeds."""
    matrices = [columns(space) for space in spaces]
    found = {}
    smallest = min(len(space.pool) for space in spaces)
    enough = [count for count in LEARNED_FROM if 2 * count <= smallest]
    for learned_from, kind in product(enough, matrices[0]):
        rows = [
            ranking(space, matrix[kind], learned_from, trees, seed)
            for space, matrix in zip(spaces, matrices, strict=True)
            for seed in range(seeds)
        ]
        means = {name: round(statistics.fmean(row[name] for row in rows), 4) for name in rows[0]}
        found.setdefault(str(learned_from), {})[kind] = means
        print(f"{spaces[0].kernel:14} {learned_from} configs, {kind:14} {means}", flush=True)
    return found


def cost(spaces):
    """Say what the features of one config take once it is compiled."""
    seconds = sorted(second for space in spaces for second in space.seconds)
    return {
        "median_ms": round(1e3 * statistics.median(seconds), 3),
        "p99_ms": round(1e3 * seconds[int(0.99 * len(seconds))], 3),
        "configs": len(seconds),
    }


def decoding():
    """Time both ways to count the instructions of one kernel of about 1,000."""
    from tuner.analysis.sass import codes, disassemble
    from tuner.analysis.static_features import count_instructions
    from tuner.compiler.base import CompileRequest
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool

    body = "".join(f"x = fmaf(x, in[{k} * n + i], __expf(x));\n" for k in range(200))
    source = (
        'extern "C" __global__ void long_one(float* out, const float* in, int n) {\n'
        f"const int i = threadIdx.x;\nfloat x = n;\n{body}out[i] = x;\n}}"
    )
    with NvrtcPool(workers=1, cache=Cache()) as compiler:
        request = CompileRequest(source, ("long_one",), "sm_90a")
        cubin = compiler.submit(request).result().cubin
    return {
        "instructions": count_instructions(cubin, "long_one").instructions,
        "bits_ms": _median_ms(partial(count_instructions, cubin, "long_one")),
        "text_ms": _median_ms(lambda: codes(disassemble(cubin), {"long_one": "long_one"}, ())),
    }


def _median_ms(act):
    taken = []
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        act()
        taken.append(time.perf_counter() - started_s)
    return round(1e3 * statistics.median(taken), 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    content = {"seeds": asked.seeds, "trees": asked.trees, "decoding": decoding(), "kernels": {}}
    print(content["decoding"])
    for kernel in WHOLE:
        spaces = load(kernel)
        content["kernels"][kernel] = {
            "workloads": len(spaces),
            "per_config": cost(spaces),
            "ranking_from": worth(spaces, asked.seeds, asked.trees),
        }
    content["environment"] = environment()
    write_result(asked.out or "code_features", content)


if __name__ == "__main__":
    main()
