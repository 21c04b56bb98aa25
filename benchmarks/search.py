"""Compare the searchers on recorded spaces: the figure of the search.

    python benchmarks/search.py FOLDER [--unseen FOLDER] [--searchers A,B] [--seeds N] [--trials N]
                                                                                        [--again]

A folder holds Kernel Tuner caches, T4 results or, as NAME/recordings/GPU/NAME.json.xz with its
search space NAME/NAME.yaml, recordings of `tune record`. The constants of `auto` were chosen on
those in FOLDER and in benchmarks/recorded; those in the other folder (benchmarks/unseen, to which
files are only added) were kept out of every choice, and are averaged apart. Rows of an earlier run
with the same settings and files are kept while the packages' versions stand, those of `auto` while
the commit does: a run of all takes an hour. --again runs the searchers that are asked for once
more. The scores are those of `tune compare` (docs/comparing.md); Optuna's genetic sampler and
Helion's pattern search are benchmarks/rival_searchers.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from statistics import stdev
from typing import Any

import rival_searchers
from environment import PACKAGES, RESULTS, ROOT, commit, environment, versions, write_result

from tuner.extensions.study.comparison import ReplaySettings, SearcherScore, mean_of, replay_all
from tuner.extensions.study.recorded_spaces import recorded_spaces, recording_name

SEARCHERS = (
    "auto",
    "optuna",
    "optuna_sampler:nsga2",
    "kernel_tuner:hybrid_vndx",
    "kernel_tuner:adaptive_tabu_greywolf",
    "kernel_tuner:genetic_algorithm",
    "kernel_tuner:bayes_opt",
    "helion:pattern",
)
# Whose methods they are: the versions that their rows hold for.
# Whose code lies here, and may change with any commit.
OWN = ("auto", "helion:pattern", "optuna_sampler:nsga2")
METHODS = tuple(name for name in PACKAGES if name != "kernel-tune")
SUFFIXES = (".json", ".json.gz", ".json.xz")
GROUPS = ("chosen_on", "unseen")
RECORDED, UNSEEN = ROOT / "benchmarks/recorded", ROOT / "benchmarks/unseen"
# Of the optimum at the end: what the mean over the seeds of every space should reach.
WORST_SHARE = 0.90
DIGITS = 4


def main() -> None:
    """Run what is missing, write after every method, and print the means."""
    asked = arguments()
    rival_searchers.register()
    if not (public := files_of(asked.folder)):
        raise SystemExit(f"{asked.folder}: no file ends in {', '.join(SUFFIXES)}")
    files = dict.fromkeys([*public, *files_of(RECORDED)], "chosen_on")
    files |= dict.fromkeys(files_of(asked.unseen), "unseen")
    settings = {"seeds": asked.seeds, "trials": asked.trials, "batch": asked.batch}
    rows = kept_rows(asked.out, settings)
    for path, group in files.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        done = {n for n in asked.searchers if rows.get((path.name, n), {}).get("sha") == digest}
        missing = [n for n in asked.searchers if asked.again or n not in done]
        if not missing:
            continue
        # One of fewer configs than trials would be searched to its end.
        spaces = [one for one in spaces_of(path) if len(one.pool) >= asked.trials]
        if not spaces:
            print(f"{recording_name(path)}: has no space of {asked.trials} configs", flush=True)
            continue
        for name in missing:
            found = row_of(path, spaces, name, asked)
            rows[path.name, name] = {"group": group, "sha": digest, **found}
            show(recording_name(path), name, rows[path.name, name])
            save(asked.out, settings, rows)
    for group, summary in save(asked.out, settings, rows).items():
        for name, row in summary.items():
            show(group, name, row)


def files_of(folder: Path) -> list[Path]:
    """List the recordings of a folder, and of kernels that have a folder of their own there."""
    found = [*folder.glob("*"), *folder.glob("*/recordings/*/*")]
    return sorted(path for path in found if path.name.endswith(SUFFIXES))


def spaces_of(path: Path) -> tuple:
    """Read a recording's spaces; a frozen search space goes before the operator's own."""
    beside = path.parents[2] / f"{recording_name(path)}.yaml"
    return recorded_spaces(path, beside if beside.exists() else None)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unseen", type=Path, default=UNSEEN)
    parser.add_argument("--searchers", type=lambda text: text.split(","), default=SEARCHERS)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--again", action="store_true", help="run what is there already, too")
    parser.add_argument("--out", type=Path, default=RESULTS / "search.json")
    return parser.parse_args()


def row_of(path: Path, spaces: list, name: str, asked: argparse.Namespace) -> dict:
    """Replay one method over one recording; the mean of its workloads, and of every seed."""
    started_s = time.perf_counter()
    settings = ReplaySettings((name,), asked.seeds, asked.trials, asked.batch)
    comparison = replay_all(settings, spaces, jobs=asked.jobs)
    shares = [result.space.optimum_us / result.methods[0].found_us for result in comparison.results]
    return {
        "recording": path.name,
        "searcher": name,
        "workloads": len(spaces),
        "configs": [len(space.pool) for space in spaces],
        **rounded(comparison.overall()[name]),
        "trials_to_99_percent": [trials_to(0.99, share) for share in shares],
        "minutes": round((time.perf_counter() - started_s) / 60, 2),
        "environment": environment(),
    }


def trials_to(share: float, runs: object) -> list[int | None]:
    """Count the trials after which each run has this share of the optimum; None for never."""
    reached = [run >= share for run in runs]
    return [int(one.argmax()) + 1 if one.any() else None for one in reached]


def kept_rows(out: Path, settings: dict) -> dict[tuple[str, str], dict]:
    """Take over the rows of an earlier run with the same settings.

    Those of code in this repository at the same commit alone; what other packages choose stays
    true while their versions are what they were.
    """
    if not out.exists():
        return {}
    content = json.loads(out.read_text(encoding="utf-8"))
    if any(content.get(key) != value for key, value in settings.items()):
        return {}
    now = {"commit": commit(), "packages": versions(METHODS)}
    rows = {(row["recording"], row["searcher"]): row for row in content["rows"]}
    return {key: row for key, row in rows.items() if is_current(row, now)}


def is_current(row: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Tell whether a row would come out the same if it was measured again."""
    then = row["environment"]
    if row["searcher"] in OWN:
        return bool(then["commit"] == now["commit"])
    return all(then["packages"].get(name) == now["packages"].get(name) for name in METHODS)


def save(out: Path, settings: dict, rows: dict[tuple[str, str], dict]) -> dict[str, dict]:
    """Write all rows, and the means of each group."""
    of_group = {g: {k: row for k, row in rows.items() if row["group"] == g} for g in GROUPS}
    summary = {group: means(some) for group, some in of_group.items() if some}
    content = {"environment": environment(), **settings, "summary": summary}
    listed = [rows[key] for key in sorted(rows)]
    write_result(out, {**content, "rows": listed})
    return summary


def means(rows: dict[tuple[str, str], dict]) -> dict[str, dict]:
    """Average each method over the recordings that every one was replayed over."""
    names = list(dict.fromkeys(name for _, name in rows))
    common = set.intersection(*({r for r, n in rows if n == name} for name in names))
    return {name: mean([rows[r, name] for r in sorted(common)]) for name in names if common}


def mean(rows: list[dict]) -> dict:
    """Average one method's rows; `score_error` is the standard error over the recordings."""
    names = [field.name for field in fields(SearcherScore)]
    scores = [SearcherScore(*(row[name] for name in names)) for row in rows]
    error = stdev(score.score for score in scores) / len(scores) ** 0.5 if len(rows) > 1 else None
    return {
        "recordings": len(rows),
        **rounded(mean_of(scores)),
        "score_error": None if error is None else round(error, DIGITS),
        "worst_share_100": min(score.share_100 for score in scores),
        "shares_under_90_percent": sum(score.share_100 < WORST_SHARE for score in scores),
    }


def rounded(score: SearcherScore) -> dict[str, float]:
    """Write a score with as many digits as the seeds are good for."""
    return {name: round(value, DIGITS) for name, value in asdict(score).items()}


def show(label: str, name: str, row: dict) -> None:
    """Print one line of the table."""
    print(
        f"{label:20} {name:36} {row['score']:7.3f} {row['share_50']:7.3f} {row['share_100']:7.3f} "
        f"{row['within_95']:6.0%} {row['seconds_per_run']:8.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
