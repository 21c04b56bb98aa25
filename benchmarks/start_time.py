"""How long `tune --help` takes, as a whole process.

python benchmarks/start_time.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from environment import environment, write_result

RUNS = 15


def main():
    seconds = []
    for _ in range(RUNS + 1):
        started_s = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tuner", "--help"], capture_output=True, check=True)
        seconds.append(round(time.perf_counter() - started_s, 4))
    counted = seconds[1:]  # the first one reads the files from the disk
    median_s = statistics.median(counted)
    print(f"median {median_s:.3f} s, longest {max(counted):.3f} s")
    content = {"environment": environment(), "seconds": counted, "median_seconds": median_s}
    write_result("start_time", content)


if __name__ == "__main__":
    main()
