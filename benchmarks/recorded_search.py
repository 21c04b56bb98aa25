"""How close a search of 100 trials comes to the best of the whole space, on a recording.

    python benchmarks/recorded_search.py [--seeds N] [--trials N] [--searcher NAME] [--out FILE]

Runs `tune`'s own loop on the recorded H200 for several seeds. The share is the best recorded time
of any valid config of the workload over the best time that the search found: 1 is the optimum.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPACE = ROOT / "search_spaces/sglang/silu_and_mul.yaml"
TARGET = 0.99


class Silent:
    """A listener that shows nothing."""

    def update(self, progress):
        """Ignore the snapshot."""


def best_recorded(path):
    """Find the best recorded time of every workload, the baseline left out."""
    from tuner.device.recording import load_recording
    from tuner.trial import Status

    recording = load_recording(path)
    best = {}
    for key, workload in recording.workloads.items():
        times = [
            program.outcome().measurement.median_us
            for name, program in workload.programs.items()
            if name != workload.baseline and program.status is Status.CORRECT
        ]
        best[key] = min(times)
    return best


def search(plan, device, compiler, folder):
    """Run the loop once; return the best time found and the trials needed, by workload."""
    from tuner.cli.plans import manifest_of
    from tuner.session import Session
    from tuner.trial import INITIAL
    from tuner.tuning import tune

    manifest = manifest_of(plan, device="recorded", words=("recorded_search",))
    with Session.create(folder, manifest, {}) as session:
        tune(plan, session=session, device=device, compiler=compiler, listener=Silent())
        return {
            workload.key: [trial.time_us for trial in session.trials(INITIAL, workload)]
            for workload in plan.tuned
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--searcher", default="auto")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results/cpu/recorded_search.json"
    )
    asked = parser.parse_args()
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.device.recorded import RecordedDevice
    from tuner.device.recording import recordings_of
    from tuner.plan import Plan
    from tuner.space_file import load_definition
    from tuner.template import Template

    definition = load_definition(SPACE)
    spec = definition.spec
    operators = {operator.name: operator.values[0] for operator in spec.operators}
    template = Template.load(spec.template)
    plan = Plan(
        spec,
        definition.space,
        template,
        asked.searcher,
        asked.trials,
        None,
        0,
        spec.tuned,
        operators,
    )
    (path,) = recordings_of(spec.source)
    best = best_recorded(path)
    shares = {workload.key: [] for workload in plan.tuned}
    needed = {workload.key: [] for workload in plan.tuned}
    with NvrtcPool(cache=Cache()) as compiler:
        for seed in range(asked.seeds):
            with tempfile.TemporaryDirectory() as folder:
                device = RecordedDevice(path, spec.name, operators)
                seeded = replace(plan, seed=seed)
                found = search(seeded, device, compiler, Path(folder) / "session")
            for key, times in found.items():
                shares[key].append(best[key] / min(time for time in times if time is not None))
                reached = [
                    i for i, time in enumerate(times, 1) if time and best[key] / time >= TARGET
                ]
                needed[key].append(reached[0] if reached else None)
            print(f"seed {seed}: worst share {min(share[-1] for share in shares.values()):.4f}")
    for key, values in shares.items():
        hits = sum(value >= TARGET for value in values)
        print(
            f"{key:16} share min {min(values):.4f} median {statistics.median(values):.4f}  "
            f"{hits}/{len(values)} seeds reach {TARGET:.0%}  trials needed {needed[key]}"
        )
    content = {
        "searcher": asked.searcher,
        "trials": asked.trials,
        "seeds": asked.seeds,
        "recording": path.relative_to(ROOT).as_posix(),
        "best_us": {key: best[key] for key in shares},
        "shares": shares,
        "trials_to_99_percent": needed,
        "environment": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
