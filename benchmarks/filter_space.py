"""Time the filtering of 2.4 million combinations of nine parameters to the valid ones."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from statistics import median

from environment import environment, write_result

from tuner.model.config import Parameter, SearchSpace
from tuner.model.expressions import Expression, substitute
from tuner.search.enumeration import enumerate_rows
from tuner.search.pool import valid_configs

SPACE = SearchSpace(
    (
        Parameter("block_x", (16, 32, 64, 128, 256, 512)),
        Parameter("block_y", (1, 2, 4, 8, 16, 32)),
        Parameter("tile_x", (1, 2, 3, 4, 5, 6, 7, 8)),
        Parameter("tile_y", (1, 2, 3, 4, 5, 6, 7, 8)),
        Parameter("vector", (1, 2, 4, 8)),
        Parameter("unroll", (1, 2, 4, 8)),
        Parameter("stages", (1, 2, 3, 4)),
        Parameter("use_shared", (False, True)),
        Parameter("min_blocks", (1, 2, 3, 4, 5, 6, 7, 8)),
    ),
    tuple(
        Expression.parse(text)
        for text in (
            "32 <= block_x * block_y <= max_threads",
            "tile_x % vector == 0",
            "unroll == 1 or tile_y % unroll == 0",
            "tile_x * tile_y <= 32",
            "use_shared or stages == 1",
            "not use_shared or "
            "(block_x * tile_x + 4) * (block_y * tile_y + 4) * 4 * stages <= max_shared",
            "block_x * block_y * min_blocks <= threads_per_multiprocessor",
            "ceil_div(W, block_x * tile_x) * ceil_div(H, block_y * tile_y) >= multiprocessors",
        )
    ),
)
# a large image on an H200
NAMES = {
    "W": 4096,
    "H": 4096,
    "max_threads": 1024,
    "max_shared": 232448,
    "threads_per_multiprocessor": 2048,
    "multiprocessors": 132,
}


def by_kernel_tuner() -> float:
    """Have Kernel Tuner filter the same; return the seconds it takes."""
    from kernel_tuner.searchspace import Searchspace

    values = {parameter.name: list(parameter.values) for parameter in SPACE.parameters}
    constraints = [substitute(constraint, NAMES).text for constraint in SPACE.constraints]
    # its solver knows no `ceil_div`
    texts = [re.sub(r"ceil_div\(([^,]+), ([^)]+)\)", r"-(-(\1) // (\2))", t) for t in constraints]
    start = time.perf_counter()
    found = Searchspace(values, texts, max_threads=1024, block_size_names=[])
    seconds = time.perf_counter() - start
    assert found.size == len(valid_configs(SPACE, NAMES))
    return seconds


def main() -> None:
    """Filter several times with an empty cache, once with a warm one, and write the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="another place for the JSON")
    options = parser.parse_args()
    seconds = []
    for _ in range(options.repeats):
        enumerate_rows.cache_clear()
        start = time.perf_counter()
        pool = valid_configs(SPACE, NAMES)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    valid_configs(SPACE, NAMES)
    again_seconds = time.perf_counter() - start
    kernel_tuner_seconds = [by_kernel_tuner() for _ in range(options.repeats)]
    print(
        f"{SPACE.size} combinations of {len(SPACE.parameters)} parameters, {len(pool)} valid: "
        f"median {median(seconds):.3f} s of {len(seconds)}, again {again_seconds * 1e3:.1f} ms, "
        f"Kernel Tuner {median(kernel_tuner_seconds):.3f} s"
    )
    content = {
        "environment": environment(),
        "combinations": SPACE.size,
        "parameters": len(SPACE.parameters),
        "valid": len(pool),
        "seconds": [round(value, 4) for value in seconds],
        "median_seconds": round(median(seconds), 4),
        "repeated_seconds": round(again_seconds, 5),
        "kernel_tuner_seconds": [round(value, 4) for value in kernel_tuner_seconds],
    }
    write_result(options.out or "filter_space", content)


if __name__ == "__main__":
    main()
