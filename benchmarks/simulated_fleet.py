"""How much further should the searches of a fleet go, for two seeds to write the same file?

    python benchmarks/simulated_fleet.py [--enough SHARE ...] [--sessions-apart SHARE] [--seeds N]
                                         [--jobs N] [--out FILE]
    python benchmarks/simulated_fleet.py --from SESSION ... [--recording FILE]

The second form reads what sessions of `fused_moe.py fleet` measured of one slice of a model, and
writes it to benchmarks/recorded/fused_moe/fleet.json.xz: for each number of tokens the medians of
the configs that were tried, and how samples and rounds scatter. Of the number of tokens that
FILE, a recording, has in full, all configs are taken, at the level that the sessions measured.

The first form searches all numbers of tokens as `tune fleet` does, on the noisy GPU of
simulated_seeds.py, for each share that ends a search (`--enough`) and each seed, runs the finals'
race and their rounds, and chooses what a file has of what they can't tell apart. A forest fitted to
all that was measured says what the other configs cost, so that of each choice it is known what it
costs more than the best, and of two seeds how far apart they are. The engine's own config, which a
file has where nothing is proved faster, takes no part.

All these measure one GPU. On an H200 two sessions, each on another one of a host, disagree on the
same two configs (measured_again.py). So the last way once more, where what each session finds is
off by SHARE for all configs of the same tiles, warps and stages.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from environment import ROOT, environment, write_result
from simulated_seeds import Gpu, Ground, completed, raced, residuals, searched

SPACE = ROOT / "search_spaces/sglang/fused_moe.yaml"
MEASURED = ROOT / "benchmarks/recorded/fused_moe/fleet.json.xz"
FULL = ROOT / "kernels/sglang/recordings/h200/fused_moe.json.xz"
# What `tune` and `tune fleet` look on for, and between.
ENOUGH = (0.005, 0.002, 0.001)
SEEDS = 6
# Fewer samples of a config say nothing of how they scatter.
FEWEST_SAMPLES = 5
# So many of them all, and so many rounds of so many columns, say enough.
KEPT_SAMPLES, KEPT_ROUNDS, KEPT_COLUMNS = 200, 40, 4
# What one config takes of another one's time is 0.66 % apart in two sessions: four errors are in it
# (results/h200/fused_moe_sessions.json).
SESSIONS_APART = 0.0066 / 2.0
# Configs that differ in nothing else are off by the same.
TILES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages")
# Two choices that differ by less are the same: `tune` claims nothing within it.
APART = 0.002
SEED_OF_SCATTER = 0


def extract(sessions: Sequence[Path], recording: Path) -> dict[str, Any]:
    """Read what sessions of one slice measured, and a recording of one number of tokens."""
    from tuner.app.compare import recorded_spaces
    from tuner.model.trial import INITIAL
    from tuner.session.session import Session

    workloads: dict[str, dict[str, Any]] = {}
    for folder in sessions:
        with Session.open(folder, read_only=True) as session:
            config, info = session.manifest.config, dict(session.environment)
            for workload in config.workloads:
                of = workloads.setdefault(
                    workload.key, {"costs": {}, "samples_us": [], "rounds_us": []}
                )
                for trial in session.trials(INITIAL, workload):
                    if trial.time_us is None:
                        continue
                    of["costs"].setdefault(trial.config, []).append(trial.time_us)
                    if len(times_us := trial.measurement.times_us) >= FEWEST_SAMPLES:
                        of["samples_us"] += residuals(times_us).tolist()
            for one in session.comparisons():
                table = np.array(one.rounds)
                table -= np.median(table, axis=0)
                workloads[one.workload.key]["rounds_us"] += table[:, :KEPT_COLUMNS].tolist()
    for space in recorded_spaces(recording, SPACE):
        if (of := workloads.get(space.workload.key)) is not None:
            _complete(of["costs"], {c: t.time_us for c, t in space.trials.items() if t.time_us})
    rng = np.random.default_rng(SEED_OF_SCATTER)
    parameters = [*next(iter(next(iter(workloads.values()))["costs"]))]
    return {
        "operators": dict(config.operators),
        "parameters": parameters,
        "environment": info,
        "workloads": {
            key: {
                "costs_us": [
                    [*(c[name] for name in parameters), round(median(times), 3)]
                    for c, times in of["costs"].items()
                ],
                "samples_us": _some(rng, of["samples_us"], KEPT_SAMPLES),
                "rounds_us": _some(rng, of["rounds_us"], KEPT_ROUNDS),
            }
            for key, of in workloads.items()
        },
    }


def _complete(costs: dict[Any, list[float]], whole: dict[Any, float]) -> None:
    """Add configs of a recording, whose level is another session's."""
    level = median(median(costs[one]) / whole[one] for one in costs.keys() & whole.keys())
    for config, us in whole.items():
        costs.setdefault(config, [us * level])


def _some(rng: Any, rows: Sequence[Any], count: int) -> list[Any]:
    chosen = rng.choice(len(rows), min(count, len(rows)), replace=False)
    return np.round(np.array(rows)[chosen], 3).tolist()


@cache
def measured() -> tuple[Any, dict[str, str], list[Ground]]:
    """Make the ground of every number of tokens, once a process, and say of which choices."""
    from tuner.device.base import CompileTarget
    from tuner.device.recorded.recording import RecordedDevice
    from tuner.model.config import Config
    from tuner.space.load import load_definition, workload_from_text

    content = json.loads(lzma.decompress(MEASURED.read_bytes()))
    operators, parameters = content["operators"], content["parameters"]
    definition = load_definition(SPACE).chosen(operators)
    # The GPU's numbers, which constraints use; of its answers nothing is asked.
    info = RecordedDevice(FULL, definition.spec.name, {**operators, "ROUTING": "balanced"}).info
    known = {
        workload_from_text(definition.spec, key): (
            {
                Config.of(dict(zip(parameters, values, strict=True))): us
                for *values, us in of["costs_us"]
            },
            np.array(of["samples_us"]),
            np.array(of["rounds_us"]),
        )
        for key, of in content["workloads"].items()
    }
    names_of = CompileTarget(definition.spec, operators, info).names
    return definition, operators, completed(definition.space, known, names_of)


def written(gpu: Gpu, trials: Sequence[Any], space: Any, rounds: int) -> int:
    """Give the place in the pool of what a file has after finals as `tune` runs them."""
    from tuner.dispatch.alike import alike, canonical
    from tuner.model.settings import FINALISTS
    from tuner.model.trial import Comparison
    from tuner.tuning.finalists import CONTENDERS, contenders

    running, costs_us = raced(gpu, trials)
    order = np.argsort(costs_us, kind="stable")[:FINALISTS].tolist()
    finalists = [contenders(trials, CONTENDERS)[k] for k in order]
    table = gpu.rounds([running[k] for k in order], rounds)
    # A baseline that all are faster than.
    table = np.insert(table, 0, 2.0 * table.max(), axis=1)
    comparison = Comparison(
        gpu.ground.workload, tuple(finalists), tuple(map(tuple, table.tolist()))
    )
    chosen = canonical(alike(comparison, finalists[0], (), SEED_OF_SCATTER), space)
    return int(gpu.ground.pool.index(chosen.config))


def found_by_session(ground: Ground, rng: np.random.Generator, apart: float) -> Ground:
    """Make what a session finds of a number of tokens: its costs are off by so much, as a share."""
    errors: dict[tuple[Any, ...], float] = {}
    factors = [
        errors.setdefault(tuple(config[name] for name in TILES), rng.normal(0.0, apart))
        for config in map(ground.pool.__getitem__, range(len(ground.pool)))
    ]
    return replace(ground, costs_us=ground.costs_us * np.exp(factors))


def fleet(way: tuple[float, float], seed: int) -> list[dict[str, Any]]:
    """Search all numbers of tokens once; say of each what was found and what a file has."""
    from tuner.model.settings import CLOSE_COMPARISON_ROUNDS, COMPARISON_ROUNDS, ENOUGH
    from tuner.model.trial import fastest

    enough, apart = way
    definition, operators, grounds = measured()
    rng = np.random.default_rng((SEED_OF_SCATTER, seed))
    seen = [found_by_session(ground, rng, apart) for ground in grounds]
    found = searched(definition, seen, seed, operators=operators, enough=enough)
    rounds = CLOSE_COMPARISON_ROUNDS if enough < ENOUGH else COMPARISON_ROUNDS
    rows = []
    for number, ground in enumerate(grounds):
        trials = fastest(found[ground.workload], full=True)
        gpu = Gpu(seen[number], np.random.default_rng((number, seed)))
        winner = written(gpu, trials, definition.space, rounds)
        rows.append(
            {
                "tokens": ground.workload.values["M"],
                "trials": len(found[ground.workload]),
                "never_tried": ground.loss([ground.pool.index(one.config) for one in trials]),
                "loss": ground.loss([winner]),
                "cost_us": float(ground.costs_us[winner]),
            }
        )
    return rows


def summary(runs: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Sum up the runs of all seeds: of each pair, how many numbers of tokens differ."""
    rows = [row for run in runs for row in run]
    pairs = [
        [abs(a["cost_us"] / b["cost_us"] - 1.0) for a, b in zip(one, other, strict=True)]
        for one, other in combinations(runs, 2)
    ]
    return {
        "trials": fmean(sum(row["trials"] for row in run) for run in runs),
        "never_tried": round(fmean(row["never_tried"] for row in rows), 5),
        "loss": round(fmean(row["loss"] for row in rows), 5),
        "worst_loss": round(max(row["loss"] for row in rows), 5),
        "differ": round(fmean(sum(gap > 0.0 for gap in pair) for pair in pairs), 2),
        "apart": round(fmean(sum(gap > APART for gap in pair) for pair in pairs), 2),
        "worst_apart": round(max(max(pair) for pair in pairs), 5),
    }


def main() -> None:
    """Extract, or simulate."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--from", dest="sessions", nargs="+", type=Path)
    parser.add_argument("--recording", type=Path, default=FULL)
    parser.add_argument("--enough", type=float, nargs="+", default=ENOUGH)
    parser.add_argument("--sessions-apart", type=float, default=SESSIONS_APART)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.sessions:
        text = json.dumps(extract(asked.sessions, asked.recording))
        MEASURED.write_bytes(lzma.compress(text.encode()))
        return
    ways = []
    wanted = [(enough, 0.0) for enough in asked.enough]
    wanted += [(asked.enough[-1], asked.sessions_apart)] if asked.sessions_apart else []
    with ProcessPoolExecutor(asked.jobs) as pool:
        for way in wanted:
            runs = list(pool.map(partial(fleet, way), range(asked.seeds)))
            enough, apart = way
            said = {"enough": enough, "sessions_apart": apart, **summary(runs)}
            ways.append({**said, "runs": runs})
            print(said, flush=True)
    content = {"seeds": asked.seeds, "tokens": len(ways[0]["runs"][0]), "apart_by": APART}
    write_result(
        asked.out or "simulated_fleet", {**content, "ways": ways, "environment": environment()}
    )


if __name__ == "__main__":
    main()
