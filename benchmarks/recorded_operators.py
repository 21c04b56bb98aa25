"""What `tune` finds of each operator without a GPU, beside the best that its recording holds.

    python benchmarks/recorded_operators.py

Runs `tune kernels/sglang/NAME.cu` on every recording, one after the other, as the README does. A
recording of few configs is searched to its end by that; so once more, with trials for half of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import environment, write_result
from record_all import operators
from recorded_spaces import recorded, shares_of_optimum, space_of

ROOT = Path(__file__).resolve().parents[1]


def shares(name: str, *options: str) -> dict[str, float]:
    """Tune an operator on its recording; give the share of the recorded best on each workload."""
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder, "session")
        words = [str(ROOT / f"kernels/sglang/{name}.cu"), "--device", "recorded", "--quiet"]
        command = [sys.executable, "-m", "tuner", *words, *options, "--session", str(session)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = shares_of_optimum(space_of(name), session)
    return {workload: round(one["share"], 4) for workload, one in found.items()}


def with_a_recording() -> list[str]:
    """Name the operators that were recorded."""
    from tuner.device.recorded.recording import recordings_of

    return [name for name in operators() if recordings_of(ROOT / f"kernels/sglang/{name}.cu")]


def main() -> None:
    content = {}
    for name in with_a_recording():
        known = recorded(space_of(name)).workloads.values()
        configs = min(len(one.configs) for one in known)
        started_s = time.perf_counter()
        found = shares(name)
        seconds = round(time.perf_counter() - started_s, 1)
        halved = shares(name, "--trials", str(configs // 2))
        content[name] = {
            "configs": configs,
            "seconds": seconds,
            "shares": found,
            "shares_with_half_the_trials": halved,
        }
        print(name, configs, seconds, min(found.values()), min(halved.values()), flush=True)
    total_s = round(sum(one["seconds"] for one in content.values()), 1)
    result = {"seconds": total_s, "operators": content, "environment": environment()}
    write_result("recorded_operators", result)


if __name__ == "__main__":
    main()
