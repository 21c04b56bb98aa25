"""Why do two seeds find different winners? Searches and finals on a noisy GPU that is simulated.

    python benchmarks/simulated_seeds.py [--operator NAME ...] [--seeds N] [--out FILE]

The costs of the configs of an operator are those that its recording holds, as medians of the final
rounds where there are any; a forest fitted to all workloads tells those of the others. A sample or
a round scatters as the recorded ones of that workload do, in us, a search's by the root of how much
shorter its chains are now, with a random sign: otherwise what is the best would depend on which
kind of mean a method takes. So every config's true cost is known, and of each winner can be said
what it costs more than the best (the loss) and at which step that was lost: the search never tried
the best, or stopped it after a few samples; it did not come into the finals; or they chose another.

`before` is what `tune` did until commit d752e1e2: pools of up to 200 configs tried whole, 22 trials
of each further workload, what is within 5 % ranked by the medians of 12 rounds, the winner chosen
by those of 10 more. `now` is what tuner/tuning does, `longer race` the same with a race that tells
costs apart which differ by 0.3 %. A replay is taken to last 2 ms, as a chain of
Llama-3 8B's products at T 1 does, and each call of the device 0.3 s besides.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from environment import environment, write_result
from recorded_search import search_in_memory
from recorded_spaces import evaluator_of, recorded, space_of

OPERATORS = ("fused_add_rmsnorm", "silu_and_mul")
SEEDS = 12
# Each search's finals are run so often: their noise is most of what differs.
FINALS = 4
REPLAY_S, CALL_S = 2e-3, 0.3
# The empty chain is replayed twice a round.
EMPTY = 2
LEAST_US = 0.05
TREES = 300
# What the recordings' samples are of; shorter chains scatter more (replay_length.py).
RECORDED_LINKS = 32
# Where the search took fewer samples than this, those of the finals say how they scatter.
FEWEST_SAMPLES = 9
FEWEST_RESIDUALS = 40


@dataclass
class Ground:
    """What is true of one workload: `costs_us[pool]`, and how samples and rounds scatter."""

    workload: Any
    names: dict
    pool: Any
    costs_us: np.ndarray
    samples_us: np.ndarray
    rounds_us: np.ndarray

    @property
    def best_us(self) -> float:
        """The cost of the best config."""
        return float(self.costs_us.min())

    def loss(self, indices: Sequence[int]) -> float:
        """Say what the best of these configs costs more than the best of all, as a share."""
        return float(self.costs_us[list(indices)].min()) / self.best_us - 1.0


@dataclass
class Gpu:
    """Interleaved rounds of one workload, and the seconds that they would take."""

    ground: Ground
    rng: np.random.Generator
    spent_s: float = 0.0

    def rounds(self, indices: Sequence[int], count: int) -> np.ndarray:
        """Draw whole recorded rounds; a config has the column of the same program in all runs."""
        ground = self.ground
        self.spent_s += CALL_S + REPLAY_S * count * (len(indices) + EMPTY)
        columns = [index * 7919 % ground.rounds_us.shape[1] for index in indices]
        drawn = self.rng.integers(0, len(ground.rounds_us), count)
        scatter = ground.rounds_us[np.ix_(drawn, columns)] * self.rng.choice((-1, 1), (count, 1))
        return np.maximum(ground.costs_us[list(indices)] + scatter, LEAST_US)


@dataclass
class Searched:
    """An evaluator that takes as many noisy samples of a config as the CUDA device would."""

    grounds: dict
    rng: np.random.Generator
    device: Any = field(
        default_factory=lambda: SimpleNamespace(
            info=SimpleNamespace(parallel=1), capabilities=frozenset()
        )
    )

    def answered(self, _: object) -> None:
        """Answer for all configs."""

    def names(self, workload: Any) -> dict:
        """Say what constraints may use."""
        return self.grounds[workload].names

    def start(self, workload: Any, config: Any) -> Any:
        """Begin a trial."""
        from tuner.tuning.evaluator import Pending

        return Pending(workload, config, started_s=0.0)

    def foresee(self, _: object) -> dict:
        """Know nothing of what the compiler would say."""
        return {}

    def finish(self, pending: Any, *, incumbent_us: float | None = None) -> Any:
        """Sample until the device's own rule says that it is enough."""
        from tuner.device.timing import SEARCH, between_neighbours, hopeless, should_stop
        from tuner.model.trial import INITIAL, Correctness, Measurement, Status, Trial

        ground, policy = self.grounds[pending.workload], between_neighbours(SEARCH)
        cost_us, times = ground.costs_us[ground.pool.index(pending.config)], []
        while not should_stop(policy, times, 0.0, incumbent_us):
            wanted = 3 if not times else max(2, policy.min_samples - len(times))
            scatter = self.rng.choice(ground.samples_us, wanted) * self.rng.choice((-1, 1), wanted)
            scatter *= (RECORDED_LINKS / policy.links) ** 0.5
            times += np.maximum(cost_us + scatter, LEAST_US).tolist()
        slow = hopeless(policy, times, incumbent_us)
        measured = Measurement(tuple(times), policy.links, policy.links, slow)
        what = (INITIAL, pending.workload, pending.config, Status.CORRECT)
        right = Correctness(True, ("normal",))
        return Trial(*what, measurement=measured, correctness=right)


# Costs of configs, and how samples and rounds scatter: what is known of a workload.
Known = tuple[dict, np.ndarray, np.ndarray]


def grounds_of(kernel: str) -> tuple[Any, list[Ground]]:
    """Make the ground of every tuned workload of an operator that is recorded."""
    from tuner.space.load import load_definition

    definition, evaluator = load_definition(space_of(kernel)), evaluator_of(space_of(kernel))
    recording = recorded(space_of(kernel))
    known = {
        workload: _told(evaluator, workload, recording.workloads[workload.key])
        for workload in definition.spec.tuned
        if workload.key in recording.workloads
    }
    return definition, completed(definition.space, known, evaluator.names)


def completed(
    space: Any, known: Mapping[Any, Known], names_of: Callable[[Any], dict]
) -> list[Ground]:
    """Make the ground of each workload: a forest fitted to all of them tells the other costs."""
    from sklearn.ensemble import ExtraTreesRegressor

    from tuner.search.auto.context import ConfigColumns
    from tuner.search.pool import valid_configs

    columns = ConfigColumns(space.parameters)
    sizes = zip(*(workload.values.items() for workload in known), strict=True)
    axes = [axis[0][0] for axis in sizes if len({size for _, size in axis}) > 1]

    def rows(workload: Any, encoded: np.ndarray) -> np.ndarray:
        own = np.log2([float(workload.values[axis]) for axis in axes])
        return np.hstack([columns.of(encoded), np.tile(own, (len(encoded), 1))])

    encoded = {
        workload: np.array([[p.values.index(c[p.name]) for p in space.parameters] for c in costs])
        for workload, (costs, *_) in known.items()
    }
    forest = ExtraTreesRegressor(TREES, random_state=0, n_jobs=1).fit(
        np.vstack([rows(workload, of) for workload, of in encoded.items()]),
        np.log([us for costs, *_ in known.values() for us in costs.values()]),
    )
    grounds = []
    for workload, (costs, samples_us, rounds_us) in known.items():
        names = names_of(workload)
        pool = valid_configs(space, names)
        costs_us = np.exp(forest.predict(rows(workload, pool.encoded)))
        for config, us in costs.items():
            if config in pool:
                costs_us[pool.index(config)] = us
        grounds.append(Ground(workload, names, pool, costs_us, samples_us, rounds_us))
    return grounds


def residuals(times_us: Any) -> np.ndarray:
    """Say how samples scatter: a median of few lies nearer to each of them than the true one."""
    times = np.array(times_us)
    return (times - np.median(times)) * (len(times) / (len(times) - 1)) ** 0.5


def _told(evaluator: Any, workload: Any, of: Any) -> Known:
    """Read what a recording says of a workload: costs, and how samples and rounds scatter."""
    from tuner.device.recorded.recording import TICK_US

    keys = {evaluator.key(workload, config): config for config in of.list_tried()}
    samples = {
        config: np.array(of.programs[key].ticks) * TICK_US
        for key, config in keys.items()
        if key in of.programs and of.programs[key].ticks
    }
    costs = {config: float(np.median(times)) for config, times in samples.items()}
    table = np.array(of.finals.rounds) * TICK_US
    own = [k for k, key in enumerate(of.finals.programs) if key in keys or key == of.baseline]
    for column in own:
        if (key := of.finals.programs[column]) in keys:
            costs[keys[key]] = float(np.median(table[:, column]))
    rounds_us = table[:, own] - np.median(table[:, own], axis=0)
    scatter = [residuals(times) for times in samples.values() if len(times) >= FEWEST_SAMPLES]
    samples_us = np.concatenate(scatter) if scatter else np.zeros(0)
    if len(samples_us) < FEWEST_RESIDUALS:
        samples_us = rounds_us.ravel()
    return costs, samples_us, rounds_us


def searched(
    definition: Any, grounds: Sequence[Ground], seed: int, **changes: Any
) -> dict[Any, list[Any]]:
    """Search all workloads together, with what `changes` of the run's config; give the trials."""
    from tuner.model.settings import RunConfig
    from tuner.model.trial import INITIAL
    from tuner.space.callables import load_template
    from tuner.space.plan import Plan

    spec = definition.spec
    config = RunConfig(
        space=spec.path,
        template=spec.template,
        workloads=tuple(ground.workload for ground in grounds),
        seed=seed,
        **{"operators": {operator.name: operator.values[0] for operator in spec.operators}}
        | changes,
    )
    plan = Plan(config, spec, definition.space, load_template(spec, definition.space))
    by_workload = {ground.workload: ground for ground in grounds}
    pools = {ground.workload: ground.pool for ground in grounds}
    evaluator = Searched(by_workload, np.random.default_rng(1000 + seed))
    notebook = search_in_memory(plan, pools, evaluator)
    return {workload: notebook.trials(INITIAL, workload) for workload in by_workload}


# Who may win, and who does; both by their places in the pool.
Decided = tuple[list[int], int]


def by_rounds(gpu: Gpu, trials: Sequence[Any]) -> Decided:
    """Decide as `tune` did before: by the medians of so many rounds, whatever they scatter by."""
    place, best_us = gpu.ground.pool.index, trials[0].time_us
    near = sum(trial.time_us <= 1.05 * best_us for trial in trials)
    running = [place(trial.config) for trial in trials[: min(max(near, 3), 16)]]
    finalists = running
    if len(running) > 5:
        order = np.argsort(np.median(gpu.rounds(running, 12), axis=0), kind="stable")
        finalists = [running[k] for k in order[:5]]
    choosing = gpu.rounds(finalists, 10)
    return running, finalists[int(np.argmin(np.median(choosing, axis=0)))]


def raced(gpu: Gpu, trials: Sequence[Any]) -> tuple[list[int], Sequence[float]]:
    """Run the race of the finals; give the runners' places in the pool, and what they take."""
    from tuner.tuning.finalists import CONTENDERS, contenders, race

    running = [gpu.ground.pool.index(one.config) for one in contenders(trials, CONTENDERS)]

    def measure(some: Sequence[int], count: int) -> list[list[float]]:
        found: list[list[float]] = gpu.rounds([running[k] for k in some], count).tolist()
        return found

    costs = race(measure, len(running), clock=lambda: gpu.spent_s)
    return running, [one.us for one in costs if one is not None]  # nobody goes wrong here


def by_race(gpu: Gpu, trials: Sequence[Any]) -> Decided:
    """Decide as `tune` does."""
    running, costs_us = raced(gpu, trials)
    return running, running[int(np.argmin(costs_us))]


def by_longer_race(gpu: Gpu, trials: Sequence[Any]) -> Decided:
    """Decide as `tune` did until commit 4eda8a69: costs that are 0.3 % apart are told apart."""
    with patch("tuner.tuning.finalists.APART", 0.003):
        return by_race(gpu, trials)


@contextmanager
def as_before() -> Iterator[None]:
    """Search with the constants of before."""
    with (
        patch("tuner.search.factory.EXHAUSTIVE_BELOW", 200),
        patch("tuner.tuning.search.FURTHER_TRIALS", 22),
    ):
        yield


@contextmanager
def as_now() -> Iterator[None]:
    """Search with the constants that `tune` has."""
    yield


WAYS: dict[str, tuple[Callable[[], Any], Callable[[Gpu, Sequence[Any]], Decided]]] = {
    "before": (as_before, by_rounds),
    "longer race": (as_now, by_longer_race),
    "now": (as_now, by_race),
}


def run(definition: Any, grounds: Sequence[Ground], way: str, seeds: int) -> dict[str, Any]:
    """Search with each seed and decide each search several times; say what was lost where.

    What was stopped early for its first samples is tried no more than what never ran.
    """
    from tuner.model.trial import fastest

    constants, decide = WAYS[way]
    with constants():
        found = [searched(definition, grounds, seed) for seed in range(seeds)]
    rows = []
    for number, ground in enumerate(grounds):
        lost, won, spent = [], [], []
        for seed, trials_of in enumerate(found):
            trials = fastest(trials_of[ground.workload], full=True)
            tried = ground.loss([ground.pool.index(trial.config) for trial in trials])
            for again in range(FINALS):
                gpu = Gpu(ground, np.random.default_rng((number, seed, again)))
                running, winner = decide(gpu, trials)
                near, chosen = ground.loss(running), ground.loss([winner])
                lost.append((tried, near - tried, chosen - near))
                won.append((seed, winner))
                spent.append(gpu.spent_s)
        pairs = [(a, b) for (i, a), (j, b) in combinations(won, 2) if i != j]
        costs = [sorted(ground.costs_us[[a, b]]) for a, b in pairs]
        rows.append(
            {
                "workload": ground.workload.key,
                "configs": len(ground.pool),
                "trials": fmean(len(of[ground.workload]) for of in found),
                "never_tried": fmean(one[0] for one in lost),
                "not_in_the_finals": fmean(one[1] for one in lost),
                "chosen_wrongly": fmean(one[2] for one in lost),
                "regrets": [round(float(slow / fast - 1.0), 5) for fast, slow in costs],
                "finals_s": fmean(spent),
            }
        )
    return {**_summary(rows), "workloads": [_rounded(row) for row in rows]}


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum up: a pair of runs has a regret on each workload, and these a median and a worst."""
    pairs = list(zip(*(row["regrets"] for row in rows), strict=True))
    causes = ("never_tried", "not_in_the_finals", "chosen_wrongly")
    return _rounded(
        {
            "median_regret": fmean(median(pair) for pair in pairs),
            "worst_regret": fmean(max(pair) for pair in pairs),
            "same_winner": fmean(regret == 0.0 for pair in pairs for regret in pair),
            "trials": sum(row["trials"] for row in rows),
            "finals_s": sum(row["finals_s"] for row in rows),
            **{cause: fmean(row[cause] for row in rows) for cause in causes},
        }
    )


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items() if k != "regrets"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operator", action="append", metavar="NAME", help="repeatable")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    operators = []
    for kernel in asked.operator or OPERATORS:
        definition, grounds = grounds_of(kernel)
        ways = {way: run(definition, grounds, way, asked.seeds) for way in WAYS}
        operators.append({"kernel": kernel, "ways": ways})
        for way, found in ways.items():
            print(kernel, way, {k: v for k, v in found.items() if k != "workloads"}, flush=True)
    content = {"seeds": asked.seeds, "finals": FINALS, "operators": operators}
    write_result(asked.out or "simulated_seeds", {**content, "environment": environment()})


if __name__ == "__main__":
    main()
