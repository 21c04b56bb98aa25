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
from recorded_spaces import recorded, space_of

from tuner.session import Session
from tuner.trial import INITIAL, Status

ROOT = Path(__file__).resolve().parents[1]


def shares(kernel: str, folder: Path) -> dict[str, float]:
    """Divide the best recorded time of each tuned workload by the best that the search found."""
    found = {}
    recording = recorded(space_of(kernel))
    with Session.open(folder, read_only=True) as session:
        for workload in (w for w in session.manifest.workloads if not w.held_out):
            known = recording.workloads[workload.key]
            least_us = min(
                program.outcome().measurement.median_us
                for key, program in known.programs.items()
                if key != known.baseline and program.status is Status.CORRECT
            )
            times_us = [trial.time_us for trial in session.trials(INITIAL, workload)]
            found[workload.key] = round(least_us / min(t for t in times_us if t is not None), 4)
    return found


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
            content[name] = {"seconds": seconds, "shares": shares(name, session)}
        print(name, seconds, min(content[name]["shares"].values()), flush=True)
    total_s = round(sum(one["seconds"] for one in content.values()), 1)
    result = {"seconds": total_s, "operators": content, "environment": environment()}
    write_result("recorded_operators", result)


if __name__ == "__main__":
    main()
