"""Time the filtering of 2.4 million combinations of nine parameters to the valid ones."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

from environment import environment, write_result

from tuner.expressions import Expression
from tuner.search.enumeration import enumerate_rows
from tuner.search.pool import valid_configs
from tuner.space import Parameter, SearchSpace

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


def main() -> None:
    """Filter several times with an empty cache, once with a warm one, and write the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="another place for the JSON")
    options = parser.parse_args()
    start = time.perf_counter()
    valid_configs(SearchSpace(SPACE.parameters[:1], SPACE.constraints[:0]), NAMES)
    import kernel_tuner.searchspace  # noqa: F401

    import_seconds = time.perf_counter() - start
    seconds = []
    for _ in range(options.repeats):
        enumerate_rows.cache_clear()
        start = time.perf_counter()
        pool = valid_configs(SPACE, NAMES)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    valid_configs(SPACE, NAMES)
    again_seconds = time.perf_counter() - start
    print(
        f"{SPACE.size} combinations of {len(SPACE.parameters)} parameters, {len(pool)} valid: "
        f"median {median(seconds):.3f} s of {len(seconds)}, again {again_seconds * 1e3:.1f} ms, "
        f"importing the solver {import_seconds:.3f} s"
    )
    content = {
        "environment": environment(),
        "combinations": SPACE.size,
        "parameters": len(SPACE.parameters),
        "valid": len(pool),
        "seconds": [round(value, 4) for value in seconds],
        "median_seconds": round(median(seconds), 4),
        "repeated_seconds": round(again_seconds, 5),
        "import_seconds": round(import_seconds, 4),
    }
    write_result(options.out or "filter_space", content)


if __name__ == "__main__":
    main()
