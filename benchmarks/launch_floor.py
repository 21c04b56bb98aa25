"""The least that a call takes: a kernel that writes one number, with and without overlap.

    python benchmarks/launch_floor.py [--out FILE]                         (needs an NVIDIA GPU)

Tunes benchmarks/spaces/launch_floor.cu, whose two configs differ in that alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from environment import write_result
from running import tuned

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ROOT / "benchmarks/spaces/launch_floor.cu"
OUT = ROOT / "benchmarks/results/h200/launch_floor.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    result = tuned(str(KERNEL), "--space", str(KERNEL.with_suffix(".yaml")))
    result["session"] = KERNEL.stem  # where it lay is nobody's concern
    write_result(asked.out, result)


if __name__ == "__main__":
    main()
