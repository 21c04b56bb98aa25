"""How good a search is: against what random search expects to find, and against the optimum."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from tuner.extensions.study.recorded_spaces import RecordedSpace, recorded_spaces, recording_name
from tuner.model.errors import InputError
from tuner.search.factory import make_searcher, require_searcher

Floats = np.ndarray[Any, np.dtype[np.float64]]

WITHIN = 0.95
# Below this share of the optimum, what random search has left to gain is rounding.
_NOTHING_LEFT = 1e-9


@dataclass(frozen=True, slots=True)
class SearcherScore:
    """What a search method reached: means over the seeds.

    `score` is the mean over evaluations of (random - found) / (random - optimum): 0 is what random
    search expects to have found by then, 1 the optimum. `share_50` and `share_100` are the
    optimum's time over the best found after half of the trials and after all; `within_95` is the
    share of runs that end at 0.95 of the optimum or above. `seconds_per_run` is the median over
    the runs of the processor's time.
    """

    score: float
    share_50: float
    share_100: float
    within_95: float
    seconds_per_run: float


def score_of(
    found_us: Floats, random_us: Floats, optimum_us: float, seconds: Sequence[float]
) -> SearcherScore:
    """Score the runs of one method: `found_us` has one row per seed, one column per evaluation."""
    shares, left = optimum_us / found_us, random_us - optimum_us
    counted = left > _NOTHING_LEFT * optimum_us
    gains = (random_us - found_us)[:, counted] / left[counted]
    return SearcherScore(
        score=float(gains.mean()) if counted.any() else 1.0,  # all configs are equally fast
        share_50=float(shares[:, half(found_us.shape[1]) - 1].mean()),
        share_100=float(shares[:, -1].mean()),
        within_95=float((shares[:, -1] >= WITHIN).mean()),
        seconds_per_run=median(seconds),
    )


def half(trials: int) -> int:
    return max(1, trials // 2)


def mean_of(scores: Iterable[SearcherScore]) -> SearcherScore:
    """Average scores over spaces, all with the same weight."""
    listed = list(scores)
    return SearcherScore(
        *(fmean(getattr(s, field.name) for s in listed) for field in fields(SearcherScore))
    )


def expected_random(times_us: Iterable[float | None], evaluations: int) -> Floats:
    """Compute what random search without replacement has found on average after each evaluation.

    Exact: the best of k configs is worse than the i best of n with probability
    C(n - i, k) / C(n, k). A failed config counts as the worst time; after n evaluations all is
    found.
    """
    listed = list(times_us)
    worst = max(time for time in listed if time is not None)
    ordered = np.sort([worst if time is None else time for time in listed])
    count = len(ordered)
    steps = np.diff(ordered, prepend=0.0)
    survival = np.ones(count)
    curve = np.full(evaluations, ordered[0])
    for k in range(min(evaluations, count)):
        survival = survival * np.maximum(count - np.arange(count) - k, 0) / (count - k)
        curve[k] = (survival * steps).sum()
    return curve


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Which methods, how many seeds and evaluations, and how many configs are asked for at once."""

    searchers: tuple[str, ...]
    seeds: int
    trials: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """The best time after each evaluation, and the seconds that the searcher took in all."""

    found_us: tuple[float, ...]
    seconds: float


def replay(space: RecordedSpace, searcher: str, seed: int, settings: ReplaySettings) -> ReplayRun:
    """Search a recorded space once; failed configs count as evaluations.

    Configs are told in the order of asking. Until one is correct the best time is that of the
    worst; where the searcher ends early it stays what it is. The space's default is proposed first,
    as in a session.
    """
    best, trials, default = space.worst_us, settings.trials, space.space.default
    seeds = () if default is None or default not in space.pool else (default,)
    found: list[float] = []
    started_s = time.process_time()
    method = make_searcher(searcher, space.pool, space.space, seed=seed, budget=trials, seeds=seeds)
    while len(found) < trials:
        configs = method.ask(min(settings.batch, trials - len(found)))
        if not configs:
            break
        for config in configs:
            trial = space.trials[config]
            best = best if trial.time_us is None else min(best, trial.time_us)
            found.append(best)
            method.tell(trial)
    seconds = time.process_time() - started_s
    return ReplayRun((*found, *[best] * (trials - len(found))), seconds)


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """One run: a space by its position, a method and a seed."""

    space: int
    searcher: str
    seed: int


@dataclass(frozen=True, slots=True)
class Method:
    """One method on one space: a row of best times per seed, and its score."""

    searcher: str
    found_us: Floats
    score: SearcherScore


@dataclass(frozen=True, slots=True)
class SpaceResult:
    """One space with what random search expects to find there, and the methods."""

    space: RecordedSpace
    random_us: Floats
    methods: tuple[Method, ...]


@dataclass(frozen=True, slots=True)
class SearcherComparison:
    """What came of it, in the order in which spaces and methods were given."""

    settings: ReplaySettings
    results: tuple[SpaceResult, ...]

    def by_recording(self) -> dict[str, dict[str, SearcherScore]]:
        """Average every method over the workloads of each recording, by the recording's file."""
        means = {}
        for path, results in groupby(self.results, key=lambda result: result.space.path):
            columns = zip(*(result.methods for result in results), strict=True)
            means[str(path)] = {
                column[0].searcher: mean_of(method.score for method in column) for column in columns
            }
        return means

    def overall(self) -> dict[str, SearcherScore]:
        """Average every method over the recordings, all with the same weight."""
        rows = list(self.by_recording().values())
        return {name: mean_of(row[name] for row in rows) for name in self.settings.searchers}


def compare(
    recordings: Sequence[Path | str],
    *,
    searchers: Sequence[str] = ("auto", "optuna", "random"),
    seeds: int = 20,
    trials: int | None = None,
    batch: int = 1,
    workloads: Sequence[str] = (),
    space: Path | str | None = None,
    jobs: int = 1,
    reading: Callable[[Path], None] = lambda path: None,
    ended: Callable[[RecordedSpace, str], None] = lambda space, searcher: None,
) -> SearcherComparison:
    """Replay search methods over recordings, each with every seed, and score what they find.

    A recording is a file of `tune record`, a Kernel Tuner cache or T4 results; the search space of
    the first kind is found by its name, or is `space`. `ended` is called when a method was replayed
    over a space with every seed. Without `trials` there are 100, or half of the smallest
    space where it has fewer. Raises `InputError` for a searcher or a file of no use.
    """
    for name in searchers:
        require_searcher(name)
    own = None if space is None else Path(space)
    read: list[RecordedSpace] = []
    for path in dict.fromkeys(Path(path).resolve() for path in recordings):
        reading(path)
        read += recorded_spaces(path, own, workloads)
    # Recordings of one name have their folders' too: those of two GPUs are called alike.
    paths = Counter(
        recording_name(path) for path in {recorded_space.path for recorded_space in read}
    )
    spaces = [
        replace(recorded_space, name=f"{recorded_space.path.parent.name}/{recorded_space.name}")
        if paths[recorded_space.name] > 1
        else recorded_space
        for recorded_space in read
    ]
    left = {(number, name): seeds for number in range(len(spaces)) for name in searchers}

    def count(task: ReplayTask) -> None:
        left[task.space, task.searcher] -= 1
        if not left[task.space, task.searcher]:
            ended(spaces[task.space], task.searcher)

    if trials is None:
        smallest = min((len(space.pool) for space in spaces), default=100)
        trials = 100 if smallest >= 100 else max(1, smallest // 2)
    settings = ReplaySettings(tuple(searchers), seeds, trials, batch)
    return replay_all(settings, spaces, jobs=jobs, ended=count)


def replay_all(
    settings: ReplaySettings,
    spaces: Sequence[RecordedSpace],
    *,
    jobs: int = 1,
    ended: Callable[[ReplayTask], None] = lambda task: None,
) -> SearcherComparison:
    """Replay every method over every space; `ended` hears of each run that is over.

    The results do not depend on `jobs`, the number of processes; the seconds do. Raises
    `InputError` where a space has fewer configs than there are trials.
    """
    for space in spaces:
        count = len(space.pool)
        if settings.trials > count:
            raise InputError(
                f"has {count} configs{space.place}, fewer than {settings.trials} trials",
                path=space.path,
                remedy=f"--trials takes at most {count} for it",
            )
    tasks = [
        ReplayTask(position, searcher, seed)
        for position in range(len(spaces))
        for searcher in settings.searchers
        for seed in range(settings.seeds)
    ]
    runs: dict[ReplayTask, ReplayRun] = {}
    with ExitStack() as stack:
        if jobs == 1:
            worker = ReplayWorker(settings, spaces)
            done: Iterator[tuple[ReplayTask, ReplayRun]] = (
                (task, worker.run(task)) for task in tasks
            )
        else:
            from tuner.process.pool import ObjectPool

            processes = min(jobs, len(tasks))
            pool = ObjectPool(ReplayWorker, (settings, tuple(spaces)), processes)
            done = stack.enter_context(pool).map("run", tasks)
        for task, run in done:
            runs[task] = run
            ended(task)
    results = []
    for position, space in enumerate(spaces):
        random_us = expected_random(space.times_us, settings.trials)
        methods = []
        for searcher in settings.searchers:
            own = [runs[ReplayTask(position, searcher, seed)] for seed in range(settings.seeds)]
            found_us = np.array([run.found_us for run in own])
            seconds = [run.seconds for run in own]
            score = score_of(found_us, random_us, space.optimum_us, seconds)
            methods.append(Method(searcher, found_us, score))
        results.append(SpaceResult(space, random_us, tuple(methods)))
    return SearcherComparison(settings, tuple(results))


class ReplayWorker:
    """What a process of a parallel comparison holds."""

    def __init__(self, settings: ReplaySettings, spaces: Sequence[RecordedSpace]) -> None:
        self._settings, self._spaces = settings, spaces

    def run(self, task: ReplayTask) -> ReplayRun:
        return replay(self._spaces[task.space], task.searcher, task.seed, self._settings)
