"""Keep what a session found as one small JSON file: results, intervals, environment.

    python benchmarks/summarize_session.py SESSION --out benchmarks/results/h200/NAME.json

`tuned_interval_us` are 95 % intervals of the tuned medians, by bootstrap over the rounds that
weren't used to choose. Where the session ran on a recording, `held_out_us` compares what the
dispatch takes on each held-out workload with the best that the recording holds there, both by the
times of a search.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tuner.session.session import Session

RESAMPLES = 2000


def summary(folder: Path) -> dict[str, Any]:
    """Collect what a result file holds of a session."""
    from tuner.report.data import load
    from tuner.report.terminal import json_of
    from tuner.session.session import Session

    data = load(folder)
    with Session.open(folder, read_only=True) as session:
        return json_of(data) | {
            "isolated_us": {result.workload.key: result.isolated_us for result in data.results},
            "tuned_interval_us": tuned_intervals(session),
            "held_out_us": held_out(session) if data.recorded else {},
            "environment": dict(data.environment),
        }


def tuned_intervals(session: Session) -> dict[str, tuple[float, float]]:
    """Give the 95 % interval of each winner's median time."""
    from tuner.dispatch.table import split

    intervals = {}
    comparisons = {one.workload: one for one in session.comparisons()}
    for result in session.results():
        comparison = comparisons.get(result.workload)
        if comparison is None or result.variant not in comparison.finalists:
            continue
        column = comparison.finalists.index(result.variant) + 1
        _, reporting = split(comparison.rounds, len(comparison.finalists))
        times_us = np.array([row[column] for row in reporting])
        drawn = np.random.default_rng(0).choice(times_us, (RESAMPLES, len(times_us)))
        low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
        intervals[result.workload.key] = (float(low), float(high))
    return intervals


def held_out(session: Session) -> dict[str, dict[str, float]]:
    """Compare the dispatch with a search on every held-out workload that both know."""
    from recorded_spaces import evaluator_of, recorded, space_of

    from tuner.model.trial import Status

    space = space_of(session.manifest.kernel)
    recording, evaluator = recorded(space), evaluator_of(space)
    found = {}
    for result in session.results():
        if not result.workload.held_out:
            continue
        programs = recording.workloads[result.workload.key].programs
        times_us = {
            key: program.outcome().measurement.median_us
            for key, program in programs.items()
            if program.status is Status.CORRECT and not program.stopped_early
        }
        baseline = recording.workloads[result.workload.key].baseline
        own = evaluator.key(result.workload, result.config)
        dispatched_us = times_us.get(baseline if result.baseline_wins else own)
        if dispatched_us is not None:
            least_us = min(times_us.values())
            found[result.workload.key] = {"dispatched": dispatched_us, "searched": least_us}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("session", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(summary(asked.session), indent=1)
    asked.out.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
