"""The least that a call takes: a kernel that writes one number, with and without overlap.

python benchmarks/launch_floor.py [--out FILE]                         (needs an NVIDIA GPU)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ROOT / "benchmarks/spaces/launch_floor.cu"
OUT = ROOT / "benchmarks/results/h200/launch_floor.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    space = KERNEL.with_suffix(".yaml")
    command = [sys.executable, "-m", "tuner", str(KERNEL), "--space", str(space), "--json"]
    done = subprocess.run(
        command,
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "TUNE_STORE": "none"},
    )
    result = json.loads(done.stdout)
    result["session"] = KERNEL.stem  # where it lay is nobody's concern
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
