"""What `tune` finds of each operator without a GPU, beside the best that its recording holds.

    python benchmarks/recorded_operators.py

Runs `tune kernels/sglang/NAME.cu` on every recording, one after the other, as the README does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import environment, write_result
from record_all import operators
from recorded_spaces import shares_of_optimum, space_of

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    content = {}
    for name in operators():
        with tempfile.TemporaryDirectory() as folder:
            session = Path(folder, "session")
            words = [str(ROOT / f"kernels/sglang/{name}.cu"), "--device", "recorded", "--quiet"]
            started_s = time.perf_counter()
            command = [sys.executable, "-m", "tuner", *words, "--session", str(session)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds = round(time.perf_counter() - started_s, 1)
            found = shares_of_optimum(space_of(name), session)
            shares = {workload: round(one["share"], 4) for workload, one in found.items()}
            content[name] = {"seconds": seconds, "shares": shares}
        print(name, seconds, min(content[name]["shares"].values()), flush=True)
    total_s = round(sum(one["seconds"] for one in content.values()), 1)
    result = {"seconds": total_s, "operators": content, "environment": environment()}
    write_result("recorded_operators", result)


if __name__ == "__main__":
    main()
