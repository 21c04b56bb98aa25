"""Replay recorded spaces (Kernel Tuner cache files) through the searchers and compare them.

A space's score is the mean over evaluations of (random - found) / (random - optimum): 0 is what
random search expects to have found by then, 1 is the optimum. Failed configs count as evaluations.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from environment import environment, write_result

from tuner.kernel import Workload
from tuner.search.factory import make_searcher
from tuner.search.pool import Pool
from tuner.space import Config, Parameter, SearchSpace
from tuner.trial import Measurement, Status, Trial

CHECKPOINTS = (25, 50, 100)


@dataclass(frozen=True)
class RecordedSpace:
    """Every config of one kernel on one GPU with its time; None where it failed."""

    name: str
    space: SearchSpace
    pool: Pool
    times: dict[Config, float | None]

    @classmethod
    def load(cls, path: Path) -> RecordedSpace:
        """Read one cache file."""
        with gzip.open(path, "rt") as file:
            cache = json.load(file)
        parameters = tuple(
            Parameter(name, tuple(cache["tune_params"][name])) for name in cache["tune_params_keys"]
        )
        lookups = [{value: i for i, value in enumerate(p.values)} for p in parameters]
        rows, times = [], {}
        for entry in cache["cache"].values():
            config = Config(tuple((p.name, entry[p.name]) for p in parameters))
            rows.append(
                [lookup[value] for lookup, value in zip(lookups, config.values(), strict=True)]
            )
            number = isinstance(entry["time"], int | float)
            times[config] = float(entry["time"]) if number else None
        encoded = np.array(sorted(rows), dtype=np.uint16)
        space = SearchSpace(parameters)
        return cls(path.name.removesuffix(".json.gz"), space, Pool(parameters, encoded), times)

    @property
    def optimum(self) -> float:
        """The best time."""
        return min(value for value in self.times.values() if value is not None)

    def random_curve(self, evaluations: int) -> np.ndarray:
        """What random search without replacement has found on average after each evaluation."""
        correct = [value for value in self.times.values() if value is not None]
        worst = max(correct)
        ordered = np.sort([worst if value is None else value for value in self.times.values()])
        count = len(ordered)
        survival = np.ones(count)
        curve = np.empty(evaluations)
        for k in range(evaluations):
            # survival[i]: none of the i best configs is among the first k + 1 drawn
            survival = survival * np.maximum(count - np.arange(count) - k, 0) / (count - k)
            curve[k] = (survival * np.diff(ordered, prepend=0)).sum()
        return curve


def replay(
    recorded: RecordedSpace, searcher_name: str, seed: int, evaluations: int, batch: int
) -> tuple[np.ndarray, float]:
    """Search once; give the best time after each evaluation and the seconds the searcher took."""
    worst = max(value for value in recorded.times.values() if value is not None)
    best, found = worst, []
    start = time.perf_counter()
    searcher = make_searcher(
        searcher_name, recorded.pool, recorded.space, seed=seed, budget=evaluations
    )
    while len(found) < evaluations:
        configs = searcher.ask(min(batch, evaluations - len(found)))
        if not configs:
            break
        for config in configs:
            value = recorded.times[config]
            best = best if value is None else min(best, value)
            found.append(best)
            searcher.tell(as_trial(config, value))
    seconds = time.perf_counter() - start
    return np.array(found + [best] * (evaluations - len(found))), seconds


def as_trial(config: Config, time_ms: float | None) -> Trial:
    """Make the trial that a searcher is told."""
    if time_ms is None:
        return Trial("recorded", Workload(()), config, Status.LAUNCH, "failed when recorded")
    measurement = Measurement((time_ms * 1e3,), calls_per_replay=1, buffer_sets=1)
    return Trial("recorded", Workload(()), config, Status.CORRECT, measurement=measurement)


def evaluate(
    recorded: RecordedSpace, searcher_name: str, seeds: int, evaluations: int, batch: int
) -> dict[str, object]:
    """Search with several seeds and summarize."""
    random = recorded.random_curve(evaluations)
    curves, seconds = [], 0.0
    for seed in range(seeds):
        curve, spent = replay(recorded, searcher_name, seed, evaluations, batch)
        curves.append(curve)
        seconds += spent
    found = np.array(curves)
    gain = (random - found) / (random - recorded.optimum)
    points = [point for point in CHECKPOINTS if point <= evaluations]
    return {
        "space": recorded.name,
        "searcher": searcher_name,
        "configs": len(recorded.pool),
        "score": {str(p): round(float(gain[:, :p].mean()), 4) for p in points},
        "share_of_optimum": {
            str(p): round(float((recorded.optimum / found[:, p - 1]).mean()), 4) for p in points
        },
        "within_5_percent": round(float((found[:, -1] * 0.95 <= recorded.optimum).mean()), 4),
        "ms_per_evaluation": round(seconds / found.size * 1e3, 3),
    }


def summarize(rows: list[dict], searcher_name: str) -> dict[str, object]:
    """Average one searcher over the spaces; `score_error` is the standard error over spaces."""
    mine = [row for row in rows if row["searcher"] == searcher_name]
    points = list(mine[0]["score"])
    last = [row["score"][points[-1]] for row in mine]
    error = stdev(last) / len(last) ** 0.5 if len(last) > 1 else None
    return {
        "searcher": searcher_name,
        "score": {p: round(fmean(row["score"][p] for row in mine), 4) for p in points},
        "score_error": None if error is None else round(error, 4),
        "share_of_optimum": {
            p: round(fmean(row["share_of_optimum"][p] for row in mine), 4) for p in points
        },
        "within_5_percent": round(fmean(row["within_5_percent"] for row in mine), 4),
        "ms_per_evaluation": round(fmean(row["ms_per_evaluation"] for row in mine), 3),
    }


def show(label: str, row: dict) -> None:
    """Print one line of the table."""
    score = "/".join(f"{value:.3f}" for value in row["score"].values())
    share = "/".join(f"{value:.3f}" for value in row["share_of_optimum"].values())
    print(
        f"{label:22} {row['searcher']:34} {score:>20} {share:>18} "
        f"{row['within_5_percent']:6.2f} {row['ms_per_evaluation']:8.2f}",
        flush=True,
    )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="folder with *.json.gz cache files")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1, help="configs asked for at a time")
    parser.add_argument(
        "--searchers",
        nargs="+",
        default=["random", "kernel_tuner:genetic_algorithm", "optuna"],
    )
    parser.add_argument("--out", type=Path, help="another place for the JSON")
    options = parser.parse_args()
    points = "/".join(str(point) for point in CHECKPOINTS if point <= options.evaluations)
    print(
        f"{'space':22} {'searcher':34} {'score @' + points:>20} {'of optimum':>18} "
        f"{'P95':>6} {'ms/eval':>8}"
    )
    rows = []
    for path in sorted(options.directory.glob("*.json.gz")):
        recorded = RecordedSpace.load(path)
        for name in options.searchers:
            row = evaluate(recorded, name, options.seeds, options.evaluations, options.batch)
            rows.append(row)
            show(recorded.name, row)
    summary = [summarize(rows, name) for name in options.searchers]
    for row in summary:
        show("all", row)
    settings = {
        "seeds": options.seeds,
        "evaluations": options.evaluations,
        "batch": options.batch,
    }
    content = {"environment": environment(), **settings, "summary": summary, "spaces": rows}
    write_result(options.out or "search_recorded_spaces", content)


if __name__ == "__main__":
    main()
