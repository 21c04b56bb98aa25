"""What a store of past runs saves a search, and what one full of nonsense costs it.

    python benchmarks/warm_start.py [--seeds N] [--trials N] [--searcher NAME] [--out FILE]

Replays two kinds of pairs on recordings: `silu_and_mul` on an H200, from one shape to another, and
Kernel Tuner's recorded spaces (`--hub`), from one GPU to another. For every seed, a search of the
first of a pair fills a store; the second is then searched without the store, with it, and with one
that was poisoned: the slowest configs with the best times, configs of another space, and rows that
are no configs at all. Reported is the number of trials until the best found is within 1 % of the
best recorded.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from environment import environment, write_result

from tuner.extensions.study.recorded_spaces import RecordedSpace, load_spaces
from tuner.model.config import Config, SearchSpace
from tuner.model.kernel import Workload
from tuner.model.trial import Status, Trial
from tuner.search.factory import make_searcher
from tuner.search.pool import Pool
from tuner.session.database import find_store
from tuner.session.knowledge import KnowledgeStore, PastConfig, PastSearch, PastWorkload
from tuner.space.load import load_definition
from tuner.tuning.warm_start import BEST, MOST_SEEDS, WarmStartQuery, seeds

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks/recorded/silu_and_mul"
SPACE = FOLDER / "silu_and_mul.yaml"
RECORDING = FOLDER / "recordings/h200/silu_and_mul.json.xz"
SHAPES = (
    ("T=1024,D=11008", "T=1024,D=14336"),
    ("T=128,D=14336", "T=128,D=11008"),
    ("T=8192,D=11008", "T=1024,D=11008"),
    ("T=1,D=11008", "T=8192,D=14336"),
)
GPUS = (
    ("convolution_A100", "convolution_A4000"),
    ("convolution_MI250X", "convolution_A100"),
    ("dedispersion_A100", "dedispersion_MI250X"),
    ("gemm_2080Ti", "gemm_3090"),
)
TARGET = 0.99


@dataclass(frozen=True)
class Task:
    """One shape on one device with all recorded trials."""

    name: str
    kernel: str
    device: str
    workload: Workload
    space: SearchSpace
    pool: Pool
    trials: dict[Config, Trial]

    @classmethod
    def of(cls, name: str, kernel: str, device: str, recorded: RecordedSpace) -> Task:
        """Take a recorded space; one without a workload gets one, the same for all."""
        workload = recorded.workload if recorded.workload.axes else Workload((("size", 1),))
        return cls(
            name, kernel, device, workload, recorded.space, recorded.pool, dict(recorded.trials)
        )

    @property
    def times(self) -> dict[Config, float | None]:
        """The recorded times, None for configs that failed."""
        return {config: trial.time_us for config, trial in self.trials.items()}

    @property
    def best(self) -> float:
        """The best recorded time."""
        return min(time for time in self.times.values() if time is not None)

    def search(self, searcher: str, seed: int, trials: int, first: tuple[Config, ...]):
        """Search with what is tried first; return the configs in the order of their trials."""
        started = (self.space.default, *first) if self.space.default else first
        made = make_searcher(
            searcher,
            self.pool,
            self.space,
            seed=seed,
            budget=trials,
            seeds=[config for config in dict.fromkeys(started) if config in self.pool],
        )
        tried: list[Config] = []
        while len(tried) < trials and (asked := made.ask(1)):
            (config,) = asked
            tried.append(config)
            made.tell(self.trials[config])
        return tried

    def needed(self, tried: list[Config]) -> int | None:
        """Count the trials until one was within 1 % of the best."""
        best = self.best
        for number, config in enumerate(tried, start=1):
            time = self.trials[config].time_us
            if time is not None and best / time >= TARGET:
                return number
        return None

    def share(self, tried: list[Config]) -> float:
        """Divide the best recorded time by the best that was found."""
        found = [time for one in tried if (time := self.trials[one].time_us) is not None]
        return self.best / min(found) if found else 0.0

    def past(self, configs: dict[Config, float | None]) -> PastSearch:
        """What a store keeps of a search of this."""
        kept = tuple(
            PastConfig(config, Status.CORRECT, time) for config, time in ranked(configs)[:BEST]
        )
        return PastSearch(
            kernel=self.kernel,
            operators={},
            device=self.device,
            architecture="",
            candidate="initial",
            template_sha="",
            parameters=tuple(sorted(self.space.names)),
            tuner_version="",
            created="",
            state="complete",
            workloads=(PastWorkload(self.workload, None, kept),),
        )


def ranked(times: dict[Config, float | None]) -> list[tuple[Config, float]]:
    """Order what has a time, the fastest first."""
    timed = [(config, time) for config, time in times.items() if time is not None]
    return sorted(timed, key=lambda pair: pair[1])


def shapes() -> dict[str, Task]:
    """Read the recording of `silu_and_mul`."""
    keys = list(dict.fromkeys(key for pair in SHAPES for key in pair))
    spaces = load_spaces(RECORDING, lambda source: load_definition(SPACE), keys)
    made = (Task.of(one.workload.key, one.name, "NVIDIA H200", one) for one in spaces)
    return {task.name: task for task in made}


def gpus(hub: Path) -> dict[str, Task]:
    """Read the recorded spaces of Kernel Tuner's hub that `GPUS` names."""
    tasks = {}
    for name in dict.fromkeys(name for pair in GPUS for name in pair):
        (recorded,) = load_spaces(hub / f"{name}.json.gz", lambda source: load_definition(SPACE))
        kernel, _, device = name.partition("_")
        tasks[name] = Task.of(name, kernel, device, recorded)
    return tasks


def poisoned(task: Task) -> list[PastSearch]:
    """Lies about a task: what is slowest is told to be fastest, beside configs of no such space."""
    slowest = ranked(task.times)[: -BEST - 1 : -1]
    worst = {config: 1e-3 * n for n, (config, _) in enumerate(slowest, start=1)}
    failing = [config for config, time in task.times.items() if time is None][:BEST]
    other = {Config.of({"no_such_parameter": n}): 1e-6 for n in range(BEST)}
    strange = {Config.of(dict.fromkeys(task.space.names, "x" * 99)): 1e-6}
    return [task.past(one) for one in (worst, dict.fromkeys(failing, 1e-3), other, strange)]


def garble(store: KnowledgeStore, task: Task) -> None:
    """Add rows with configs that are none, and with times that are none."""
    from sqlalchemy import create_engine, insert

    from tuner.session.knowledge import SCHEMA_VERSION, searches

    config = {"items_": list(next(iter(task.pool)).items())}
    rows = [(config, 0.0), (config, -1.0), (config, None), ({"items_": [["\x00", None]]}, 1e-9)]
    broken = json.loads(task.past({}).json)
    contents = ["[", "null"]
    for written, time_us in rows:
        one = {"config": written, "status": "correct", "time_us": time_us}
        (workload,) = broken["workloads"]
        contents.append(json.dumps(broken | {"workloads": [workload | {"configs": [one]}]}))
    engine = create_engine(store.location.url)
    with engine.begin() as connection:
        for number, content in enumerate(contents):
            row = {"version": SCHEMA_VERSION, "uid": str(number), "kernel": task.kernel}
            row |= {"device": task.device, "created": "", "content": content}
            connection.execute(insert(searches), row)
    engine.dispose()


def asked(folder: Path, name: str, task: Task, known: list[PastSearch], *, garbage: bool = False):
    """Put searches into a store of their own and ask it for what to try first."""
    location = find_store(str(folder / f"{name}.sqlite"), {})
    assert location is not None
    store = KnowledgeStore(location)
    store.add(known)
    if garbage:
        garble(store, task)
    found = seeds(
        store.searches(task.kernel),
        WarmStartQuery(task.space, {}, task.device, "", ""),
        task.workload,
        limit=MOST_SEEDS,
        valid=task.pool.__contains__,
    )
    return tuple(Config.of(seed.config) for seed in found)


def compare(first: Task, second: Task, searcher: str, seed_count: int, trials: int) -> dict:
    """Search `second` after `first`, cold, warm and with a poisoned store."""
    runs: dict[str, list[list[Config]]] = {"cold": [], "warm": [], "poisoned": []}
    for seed in range(seed_count):
        with tempfile.TemporaryDirectory() as folder:
            before = first.search(searcher, seed, trials, ())
            past = first.past({config: first.trials[config].time_us for config in before})
            warm = asked(Path(folder), "warm", second, [past])
            bad = asked(Path(folder), "poisoned", second, poisoned(second), garbage=True)
        # Another seed than the search that filled the store: the same one would propose the same.
        for kind, tried_first in (("cold", ()), ("warm", warm), ("poisoned", bad)):
            runs[kind].append(second.search(searcher, seed_count + seed, trials, tried_first))
    return {
        "first": first.name,
        "second": second.name,
        "configs": len(second.pool),
        **{kind: summary(second, tried, trials) for kind, tried in runs.items()},
    }


def summary(task: Task, runs: list[list[Config]], trials: int) -> dict[str, object]:
    """Sum up the runs; one that never came within 1 % counts with one trial more than it had."""
    needed = [task.needed(tried) for tried in runs]
    counted = [trials + 1 if number is None else number for number in needed]
    return {
        "reached": sum(number is not None for number in needed),
        "median_trials": median(counted),
        "mean_trials": round(fmean(counted), 1),
        "share_at_10": round(fmean(task.share(tried[:10]) for tried in runs), 4),
        "share": round(fmean(task.share(tried) for tried in runs), 4),
    }


def main() -> None:
    """Run and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--searcher", default="optuna")
    parser.add_argument("--hub", type=Path, help="Folder of Kernel Tuner's recorded spaces.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/cpu/warm_start.json")
    given = parser.parse_args()
    tasks, pairs = shapes(), list(SHAPES)
    if given.hub is not None:
        tasks, pairs = tasks | gpus(given.hub), [*pairs, *GPUS]
    results = []
    for first, second in pairs:
        made = compare(tasks[first], tasks[second], given.searcher, given.seeds, given.trials)
        results.append(made)
        words = [f"{kind} {made[kind]}" for kind in ("cold", "warm", "poisoned")]
        print("\n  ".join([f"{first} -> {second}", *words]), flush=True)
    content = {
        "what": "trials until within 1 % of the best recorded time, by what the store held",
        "searcher": given.searcher,
        "seeds": given.seeds,
        "trials": given.trials,
        "most_seeds": MOST_SEEDS,
        "pairs": results,
        "environment": environment(),
    }
    write_result(given.out, content)


if __name__ == "__main__":
    main()
