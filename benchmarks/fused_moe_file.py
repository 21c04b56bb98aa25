"""Write the engine's files again that a fleet's result came from, to measure a step with them.

    python benchmarks/fused_moe_file.py --to DIR [--columns 768] [--two] [--seed 0] [RESULT]

RESULT is what fused_moe_figures.py wrote, and --columns one of the slices of fused_moe.py:
Qwen3-30B-A3B's, or with 256 and 2048 DeepSeek-V3's. Where it has no config the engine's own was in
the file: SGLang, which has to be installed, is asked for it. DIR is for SGLANG_MOE_CONFIG_DIR, and
DIR's recorded.json says how much faster the kernel was with each config.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environment import ROOT
from fused_moe import COLUMNS, SLICES
from moe_modes import NO_FILE, RECORDED

if TYPE_CHECKING:
    from tuner.extensions.engines.configs.files import MoeKey
    from tuner.extensions.engines.configs.winners import Tables

RESULT = ROOT / "benchmarks/results/h200/fused_moe.json"
# What a row is compared with, as a step's modes are called.
OVER = {"over_engine": "sglang", "over_default": NO_FILE}


def fleet_of(content: Mapping[str, Any], columns: int, seed: int, *, two: bool) -> dict[str, Any]:
    """Find one fleet of a result."""
    for one in content["fleets"]:
        if (one["columns"], one["seed"], one.get("two", False)) == (columns, seed, two):
            return dict(one)
    raise SystemExit(f"has no fleet of {columns} columns, seed {seed}{', two configs' * two}")


def key_of(fleet: Mapping[str, Any]) -> MoeKey:
    """Say what the engine finds a fleet's files by; the oldest fleets name their columns alone."""
    from tuner.extensions.engines.configs.files import MoeKey

    columns = fleet["columns"]
    one = SLICES[columns]
    experts = fleet.get("experts", one.experts)
    if fleet.get("weights", one.weights) == "fp8_block":
        return MoeKey(experts, columns, "fp8_w8a8", (128, 128))
    return MoeKey(experts, columns)


def tables_of(fleet: Mapping[str, Any]) -> Tables:
    """Read the configs of each GEMM by tokens; where there are none the engine's own was taken."""
    from tuner.extensions.engines.configs.files import CONFIG_KEYS
    from tuner.extensions.engines.configs.winners import DOWN, Tables

    found = Tables(two=fleet.get("two", False))
    for row in fleet["rows"]:
        tokens, config = row["tokens"], row["config"]
        if config is None:
            found.undecided[tokens] = "nothing was proved faster"
            continue
        found.own[tokens] = {key: config[key] for key in CONFIG_KEYS}
        if found.two:
            found.down[tokens] = {
                key: config.get(f"{DOWN}{key}", config[key]) for key in CONFIG_KEYS
            }
    return found


def recorded(fleet: Mapping[str, Any]) -> dict[str, Any]:
    """Keep how much faster the kernel was, by tokens and by what it was compared with."""
    rows = [
        {"tokens": row["tokens"], "over": {name: row[key][0] for key, name in OVER.items()}}
        for row in fleet["rows"]
        if all(key in row for key in OVER)
    ]
    return {**{key: value for key, value in fleet.items() if key != "rows"}, "rows": rows}


def main() -> None:
    """Read a result and write the files of one fleet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("result", type=Path, nargs="?", default=RESULT)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--columns", type=int, default=COLUMNS, choices=SLICES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--two", action="store_true", help="with a config for each GEMM")
    asked = parser.parse_args()
    from tuner.compiler.base import measured_with
    from tuner.extensions.engines.configs.files import write_files
    from tuner.extensions.engines.configs.winners import files_of_tables

    content = json.loads(asked.result.read_text(encoding="utf-8"))
    fleet = fleet_of(content, asked.columns, asked.seed, two=asked.two)
    gpu, compiler = (content["environment"][name] for name in ("device", "compiler"))
    triton = measured_with(compiler, "triton")
    assert triton is not None, compiler
    tables = {key_of(fleet): tables_of(fleet)}
    made = files_of_tables(tables, "sglang", gpu, triton, (sys.executable,))
    kept = json.dumps(recorded(fleet), indent=1) + "\n"
    write_files(asked.to, {**made.files, Path(RECORDED): kept}, replace=True)
    print("\n".join((*made.notes, *(str(asked.to / name) for name in made.files))))


if __name__ == "__main__":
    main()
