"""Tuned kernels beside what is installed: peers verified and timed in the finals' own rounds.

    python benchmarks/peers.py [OPERATOR ...] [--trials N] [--out FILE]
                                          (needs an NVIDIA GPU, PyTorch and what else peers import)

Tunes each operator on its smallest and its largest workload, with all peers that are installed.
The peers of `targets/sglang_h200.json` were measured elsewhere; these in the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from running import tuned

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "sglang-kernel", "flashinfer-python")
OUT = ROOT / "benchmarks/results/h200/peers.json"


def workloads(name: str) -> list[str]:
    """Name the operator's workloads of the least and of the most traffic."""
    from recorded_spaces import space_of

    from tuner.space.load import load_definition

    spec = load_definition(space_of(name)).spec
    by_size = sorted(spec.tuned, key=lambda workload: spec.min_bytes.integer(workload.values))
    return [by_size[0].key, by_size[-1].key]


def measured(name: str, trials: int) -> dict[str, Any]:
    """Run `tune --peers` and keep what says something of the peers."""
    words = [str(ROOT / f"kernels/sglang/{name}.cu"), "--peers", "--trials", str(trials)]
    for workload in workloads(name):
        words += ["--workload", workload]
    found = tuned(*words)
    kept = ("workload", "baseline_us", "tuned_us", "interval", "peers")
    return {
        "kernel": name,
        "device": found["device"],
        "trials": trials,
        "workloads": [{key: one[key] for key in kept if key in one} for one in found["workloads"]],
    }


def environment(device: str) -> dict[str, Any]:
    """Name the GPU, the date and the versions of what peers import."""
    return {
        "device": device,
        "date": datetime.now(UTC).date().isoformat(),
        "packages": {name: known for name in PACKAGES if (known := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    from record_all import MORE_TRIALS, TRIALS, operators

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", default=operators())
    parser.add_argument("--trials", type=int, help="of each workload; else as in recordings")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for name in asked.operators:
        try:
            runs.append(measured(name, asked.trials or MORE_TRIALS.get(name, TRIALS)))
        except subprocess.CalledProcessError as error:
            print(f"{name}: exit code {error.returncode}", file=sys.stderr)
            continue
        content = {"environment": environment(runs[0]["device"]), "runs": runs}
        asked.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"{name} done", flush=True)


if __name__ == "__main__":
    main()
