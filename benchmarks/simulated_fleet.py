"""How much further should the searches of a fleet go, for two seeds to write the same file?

    python benchmarks/simulated_fleet.py [--enough SHARE ...] [--seeds N] [--jobs N] [--out FILE]
    python benchmarks/simulated_fleet.py --from SESSION ... [--recording FILE]

The second form reads what sessions of `fused_moe.py fleet` measured of one slice of a model, and
writes it to benchmarks/recorded/fused_moe/fleet.json.xz: for each number of tokens the medians of
the configs that were tried, and how samples, rounds and draws of the inputs scatter. Of the number
of tokens that FILE, a recording, has in full, all configs are taken, at the level that the sessions
measured.

The first form searches all numbers of tokens as `tune fleet` does, on the noisy GPU of
simulated_seeds.py, for each share that ends a search (`--enough`) and each seed, runs the finals'
race and their rounds, and chooses what a file has of what they can't tell apart. A forest fitted to
all that was measured says what the other configs cost, so that of each choice it is known what it
costs more than the best, and of two seeds how far apart they are. The engine's own config, which a
file has where nothing is proved faster, takes no part.

Which experts tokens go to changes what configs of other tiles, warps and stages take of each
other's time, by as much as it did in the sessions. The search has one draw of the inputs. A race
and the finals have a new one for each row (`each`), or as until commit b2040d92 one for all rows of
a call of a race and eight for the finals (`few`); with `--enough` of 0.1 % both are run.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
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
# On average, of a draw (tuner/device/timing.py).
ROUNDS = 2
# So many of them all, and so many rounds of so many columns, say enough.
KEPT_SAMPLES, KEPT_ROUNDS, KEPT_COLUMNS = 200, 40, 4
# Inputs change what configs take by the same that differ in nothing else.
TILES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages")
# Two choices that differ by less are the same: `tune` claims nothing within it.
APART = 0.002
SEED_OF_SCATTER = 0
# Of the finals until commit b2040d92, cut at random places.
FEW_DRAWS = 8
# A normal variable's standard deviation, as so many times the median of its magnitude.
OF_MEDIAN = 1.4826
FEW, EACH = "few", "each"


def extract(sessions: Sequence[Path], recording: Path) -> dict[str, Any]:
    """Read what sessions of one slice measured, and a recording of one number of tokens."""
    from tuner.extensions.study.recorded_spaces import recorded_spaces
    from tuner.model.trial import INITIAL
    from tuner.session.session import Session

    workloads: dict[str, dict[str, Any]] = {}
    for folder in sessions:
        with Session.open(folder, read_only=True) as session:
            config, info = session.manifest.config, dict(session.environment)
            for workload in config.workloads:
                of = workloads.setdefault(
                    workload.key, {"costs": {}, "samples_us": [], "rounds_us": [], "draws": []}
                )
                for trial in session.trials(INITIAL, workload):
                    if trial.time_us is None:
                        continue
                    of["costs"].setdefault(trial.config, []).append(trial.time_us)
                    if len(times_us := trial.measurement.times_us) >= FEWEST_SAMPLES:
                        of["samples_us"] += residuals(times_us).tolist()
            for one in session.comparisons():
                of, table = workloads[one.workload.key], np.array(one.rounds)
                # Most rounds have the inputs of the one before.
                steps = np.diff(table[:, :KEPT_COLUMNS], axis=0) / math.sqrt(2.0)
                of["rounds_us"] += steps.tolist()
                of["draws"] += of_draws(table[:, : 1 + len(one.finalists)])
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
                "draws": round(median(of["draws"]), 5),
            }
            for key, of in workloads.items()
        },
    }


def of_draws(table: Any) -> list[float]:
    """Say by how much inputs change what each config takes, as a share: all that rounds don't.

    What a config takes of the baseline's time has the share of both.
    """
    over = np.log(table[:, 1:] / table[:, [0]])
    steps = np.median(np.abs(np.diff(over, axis=0)), axis=0) * OF_MEDIAN / math.sqrt(2.0)
    between = np.maximum(over.var(axis=0, ddof=1) - steps**2, 0.0)
    return [float(one) for one in np.sqrt(between / 2.0)]


def _complete(costs: dict[Any, list[float]], whole: dict[Any, float]) -> None:
    """Add configs of a recording, whose level is another session's."""
    level = median(median(costs[one]) / whole[one] for one in costs.keys() & whole.keys())
    for config, us in whole.items():
        costs.setdefault(config, [us * level])


def _some(rng: Any, rows: Sequence[Any], count: int) -> list[Any]:
    chosen = rng.choice(len(rows), min(count, len(rows)), replace=False)
    return np.round(np.array(rows)[chosen], 3).tolist()


@cache
def measured() -> tuple[Any, dict[str, str], list[Ground], list[float]]:
    """Make the ground of every number of tokens, once a process; say of which choices it is.

    Last comes by how much inputs change what a config takes, for each.
    """
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
    shares = [of["draws"] for of in content["workloads"].values()]
    return definition, operators, completed(definition.space, known, names_of), shares


@dataclass
class Drawing(Gpu):
    """A GPU on which inputs change what configs take: by `share` for each class of configs."""

    share: float = 0.0
    few: bool = False

    def rounds(self, indices: Sequence[int], count: int) -> np.ndarray:
        """Time rows on one draw of the inputs or, unless it has few, on one for each row."""
        if self.few:
            return super().rounds(indices, count) * self._drawn(indices)
        repeats = [super(Drawing, self).rounds(indices, count) for _ in range(ROUNDS)]
        return np.mean(repeats, axis=0) * [self._drawn(indices) for _ in range(count)]

    def compared(self, indices: Sequence[int], rounds: int) -> np.ndarray:
        """Compare in so many rounds, as the device cuts them."""
        if not self.few:
            return self.rounds(indices, rounds // ROUNDS)
        cuts = np.sort(self.rng.choice(np.arange(1, rounds), FEW_DRAWS - 1, replace=False))
        lengths = np.diff([0, *cuts, rounds])
        return np.vstack([self.rounds(indices, int(count)) for count in lengths])

    def _drawn(self, indices: Sequence[int]) -> np.ndarray:
        of: dict[tuple[Any, ...], float] = {}
        return np.exp([of.setdefault(c, self._one()) for c in self._classes(indices)])

    def _classes(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        configs = map(self.ground.pool.__getitem__, indices)
        return [tuple(config[name] for name in TILES) for config in configs]

    def _one(self) -> float:
        return float(self.rng.normal(0.0, self.share))

    def searched(self) -> Ground:
        """Make what a search finds, which has one draw of the inputs for all configs."""
        factors = self._drawn(range(len(self.ground.pool)))
        return replace(self.ground, costs_us=self.ground.costs_us * factors)


def written(gpu: Drawing, trials: Sequence[Any], space: Any, rounds: int) -> int:
    """Give the place in the pool of what a file has after finals as `tune` runs them."""
    from tuner.extensions.engines.configs.alike import canonical, fastest_of
    from tuner.model.settings import FINALISTS
    from tuner.model.trial import Comparison
    from tuner.tuning.finalists import CONTENDERS, contenders

    running, costs_us = raced(gpu, trials)
    order = np.argsort(costs_us, kind="stable")[:FINALISTS].tolist()
    finalists = [contenders(trials, CONTENDERS)[k] for k in order]
    table = gpu.compared([running[k] for k in order], rounds)
    # A baseline that all are faster than.
    table = np.insert(table, 0, 2.0 * table.max(), axis=1)
    comparison = Comparison(
        gpu.ground.workload, tuple(finalists), tuple(map(tuple, table.tolist()))
    )
    fastest = fastest_of(comparison, ())
    assert fastest is not None
    return int(gpu.ground.pool.index(canonical(fastest.variants, space).config))


def fleet(way: tuple[float, str], seed: int) -> list[dict[str, Any]]:
    """Search all numbers of tokens once; say of each what was found and what a file has."""
    from tuner.model.settings import CLOSE_COMPARISON_ROUNDS, COMPARISON_ROUNDS, ENOUGH
    from tuner.model.trial import fastest

    enough, inputs = way
    definition, operators, grounds, shares = measured()
    gpus = [
        Drawing(ground, np.random.default_rng((number, seed)), share=share, few=inputs == FEW)
        for number, (ground, share) in enumerate(zip(grounds, shares, strict=True))
    ]
    seen = [gpu.searched() for gpu in gpus]
    found = searched(definition, seen, seed, operators=operators, enough=enough)
    rounds = CLOSE_COMPARISON_ROUNDS if enough < ENOUGH else COMPARISON_ROUNDS
    rows = []
    for ground, gpu in zip(grounds, gpus, strict=True):
        trials = fastest(found[ground.workload], full=True)
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
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.sessions:
        text = json.dumps(extract(asked.sessions, asked.recording))
        MEASURED.write_bytes(lzma.compress(text.encode()))
        return
    ways = []
    wanted = [(enough, EACH) for enough in asked.enough] + [(asked.enough[-1], FEW)]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for way in wanted:
            runs = list(pool.map(partial(fleet, way), range(asked.seeds)))
            enough, inputs = way
            said = {"enough": enough, "inputs": inputs, **summary(runs)}
            ways.append({**said, "runs": runs})
            print(said, flush=True)
    content = {"seeds": asked.seeds, "tokens": len(ways[0]["runs"][0]), "apart_by": APART}
    write_result(
        asked.out or "simulated_fleet", {**content, "ways": ways, "environment": environment()}
    )


if __name__ == "__main__":
    main()
