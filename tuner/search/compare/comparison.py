"""All runs of a comparison: every method on every space with every seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tuner.model.config import Config
from tuner.model.errors import InputError
from tuner.search.compare.scores import Floats, Score, expected_random, mean_of, score_of
from tuner.search.compare.spaces import RecordedSpace
from tuner.search.factory import make_searcher


@dataclass(frozen=True, slots=True)
class Run:
    """The best time after each evaluation, and the seconds that the searcher took in all."""

    found_us: tuple[float, ...]
    seconds: float


def replay(space: RecordedSpace, searcher: str, *, seed: int, trials: int, batch: int = 1) -> Run:
    """Search a recorded space once; failed configs count as evaluations.

    `batch` configs are asked for at a time and told in the order of asking. Until a config is
    correct the best time is that of the worst; where the searcher ends early it stays what it is.
    The space's default is proposed first, as in a session.
    """
    best = space.worst_us
    found: list[float] = []
    started_s = time.perf_counter()
    method = make_searcher(
        searcher, space.pool, space.space, seed=seed, budget=trials, seeds=_seeds(space)
    )
    while len(found) < trials:
        configs = method.ask(min(batch, trials - len(found)))
        if not configs:
            break
        for config in configs:
            trial = space.trials[config]
            best = best if trial.time_us is None else min(best, trial.time_us)
            found.append(best)
            method.tell(trial)
    seconds = time.perf_counter() - started_s
    return Run((*found, *[best] * (trials - len(found))), seconds)


def _seeds(space: RecordedSpace) -> tuple[Config, ...]:
    default = space.space.default
    return () if default is None or default not in space.pool else (default,)


@dataclass(frozen=True, slots=True)
class Settings:
    """Which methods, how many seeds and evaluations, and how many configs are asked for at once."""

    searchers: tuple[str, ...]
    seeds: int
    trials: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One run: a space by its position, a method and a seed."""

    space: int
    searcher: str
    seed: int


@dataclass(frozen=True, slots=True)
class Method:
    """One method on one space: a row of best times per seed, and its score."""

    searcher: str
    found_us: Floats
    score: Score


@dataclass(frozen=True, slots=True)
class SpaceResult:
    """One space with what random search expects to find there, and the methods."""

    space: RecordedSpace
    random_us: Floats
    methods: tuple[Method, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of it, in the order in which spaces and methods were given."""

    settings: Settings
    results: tuple[SpaceResult, ...]

    def by_recording(self) -> dict[str, dict[str, Score]]:
        """Average every method over the workloads of each recording, by the recording's file."""
        groups = groupby(self.results, key=lambda result: result.space.path)
        return {str(path): self._means(list(results)) for path, results in groups}

    def overall(self) -> dict[str, Score]:
        """Average every method over the recordings, all with the same weight."""
        rows = list(self.by_recording().values())
        return {name: mean_of(row[name] for row in rows) for name in self.settings.searchers}

    def _means(self, results: Sequence[SpaceResult]) -> dict[str, Score]:
        columns = zip(*(result.methods for result in results), strict=True)
        return {
            column[0].searcher: mean_of(method.score for method in column) for column in columns
        }


def tasks_of(settings: Settings, spaces: Sequence[RecordedSpace]) -> list[Task]:
    """List the runs, those of one space and method together."""
    return [
        Task(position, searcher, seed)
        for position in range(len(spaces))
        for searcher in settings.searchers
        for seed in range(settings.seeds)
    ]


def compare(
    settings: Settings,
    spaces: Sequence[RecordedSpace],
    *,
    jobs: int = 1,
    ended: Callable[[Task], None] = lambda task: None,
) -> Comparison:
    """Replay every method over every space; `ended` hears of each run that is over.

    The results do not depend on `jobs`, the number of processes; the seconds do. Raises
    `InputError` where a space has fewer configs than there are trials.
    """
    for space in spaces:
        _require_enough(settings, space)
    tasks = tasks_of(settings, spaces)
    runs: dict[Task, Run] = {}
    for task, run in _runs(settings, spaces, tasks, jobs):
        runs[task] = run
        ended(task)
    results = (_result(settings, position, one, runs) for position, one in enumerate(spaces))
    return Comparison(settings, tuple(results))


class Worker:
    """What a process of a parallel comparison holds; see `tuner.process.child.Child`."""

    def __init__(self, settings: Settings, spaces: Sequence[RecordedSpace]) -> None:
        self._settings, self._spaces = settings, spaces

    def run(self, task: Task) -> Run:
        """Replay one run."""
        settings = self._settings
        return replay(
            self._spaces[task.space],
            task.searcher,
            seed=task.seed,
            trials=settings.trials,
            batch=settings.batch,
        )


def _runs(
    settings: Settings, spaces: Sequence[RecordedSpace], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Run]]:
    if jobs == 1:
        worker = Worker(settings, spaces)
        yield from ((task, worker.run(task)) for task in tasks)
        return
    from tuner.process.pool import ObjectPool

    with ObjectPool(Worker, (settings, tuple(spaces)), min(jobs, len(tasks))) as pool:
        yield from pool.map("run", tasks)


def _result(
    settings: Settings, position: int, space: RecordedSpace, runs: dict[Task, Run]
) -> SpaceResult:
    random_us = expected_random(space.times_us, settings.trials)
    methods = (
        _method(
            searcher,
            (runs[Task(position, searcher, seed)] for seed in range(settings.seeds)),
            random_us,
            space.optimum_us,
        )
        for searcher in settings.searchers
    )
    return SpaceResult(space, random_us, tuple(methods))


def _method(searcher: str, runs: Iterable[Run], random_us: Floats, optimum_us: float) -> Method:
    listed = list(runs)
    found_us = np.array([run.found_us for run in listed])
    seconds = [run.seconds for run in listed]
    return Method(searcher, found_us, score_of(found_us, random_us, optimum_us, seconds))


def _require_enough(settings: Settings, space: RecordedSpace) -> None:
    count = len(space.pool)
    if settings.trials > count:
        where = f" on {space.workload}" if space.workload.axes else ""
        raise InputError(
            f"has {count} configs{where}, fewer than {settings.trials} trials",
            path=space.path,
            remedy=f"--trials takes at most {count} for it",
        )
