"""Comparisons: the searcher is told what the loop tells it, and the same whatever the jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from child_handlers import Dying, Handler
from hypothesis import given
from hypothesis import strategies as st

from tests.support.caches import BLOCKS, FAILED, ITEMS, cache, time_ms, written
from tests.support.simulated_device import SimulatedDevice
from tuner.app.record import record, recording_plan
from tuner.device.recorded.recording import save_recording
from tuner.extensions.study import comparison as replaying
from tuner.extensions.study.comparison import (
    ReplaySettings,
    ReplayTask,
    SearcherComparison,
    SearcherScore,
    expected_random,
    half,
    mean_of,
    replay,
    replay_all,
    score_of,
)
from tuner.extensions.study.recorded_spaces import RecordedSpace, load_spaces
from tuner.model.config import Config
from tuner.model.errors import InputError, TunerError, WorkerError
from tuner.model.trial import Status, Trial
from tuner.process.pool import ObjectPool
from tuner.space.load import Definition, load_definition

NAMES = ("random", "kernel_tuner:random_sample", "optuna")


def never(path: Path) -> Definition:
    """Stand in where no search space may be looked for."""
    raise AssertionError(path)


@pytest.fixture
def cached(tmp_path: Path) -> RecordedSpace:
    """The space of a Kernel Tuner cache of 20 configs, two of them failed."""
    (space,) = load_spaces(written(tmp_path / "a100.json.gz", cache()), never)
    return space


class Watched:
    """A searcher that asks for the pool in order, at most `step` at a time, and keeps its tells."""

    def __init__(self, space: RecordedSpace, most: int, step: int) -> None:
        self.configs, self.step = list(space.pool)[:most], step
        self.told: list[Trial] = []
        self.asked: list[int] = []

    def ask(self, count: int) -> list[Config]:
        self.asked.append(count)
        given = min(count, self.step)
        ahead, self.configs = self.configs[:given], self.configs[given:]
        return ahead

    def tell(self, trial: Trial) -> None:
        self.told.append(trial)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, cached: RecordedSpace):
    def make(*, most: int = 99, step: int = 99) -> tuple[Watched, dict[str, object]]:
        searcher, given = Watched(cached, most, step), {}

        def factory(name: str, *_: object, **options: object) -> Watched:
            given.update(options, name=name)
            return searcher

        monkeypatch.setattr(replaying, "make_searcher", factory)
        return searcher, given

    return make


def test_a_cache_is_a_space_with_a_trial_for_every_config(cached: RecordedSpace) -> None:
    assert (len(cached.pool), cached.failed) == (len(BLOCKS) * len(ITEMS), len(FAILED))
    assert (cached.label, cached.optimum_us) == ("a100", time_ms(256, 4) * 1e3)
    assert set(cached.pool) == set(cached.trials)


def test_a_searcher_is_told_statuses_and_times_in_the_order_of_asking(cached, watched) -> None:
    searcher, given = watched()
    run = replay(cached, "x", 3, ReplaySettings(("x",), 1, 20, batch=8))
    assert given == {"name": "x", "seed": 3, "budget": 20, "seeds": ()}
    assert searcher.asked == [8, 8, 4]
    assert searcher.told == [cached.trials[config] for config in cached.pool]
    failures = {trial.status for trial in searcher.told if trial.time_us is None}
    assert failures == {Status.LAUNCH, Status.CONSTRAINT}
    assert run.found_us[0] == time_ms(32, 1) * 1e3
    assert run.found_us[-1] == cached.optimum_us


def test_failures_are_evaluations_and_an_early_end_keeps_the_best(cached, watched) -> None:
    watched(most=3, step=2)
    run = replay(cached, "x", 0, ReplaySettings(("x",), 1, 10))
    times = [cached.trials[config].time_us for config in list(cached.pool)[:3]]
    assert len(run.found_us) == 10
    assert set(run.found_us[2:]) == {min(times)}
    failed = next(c for c, t in cached.trials.items() if t.time_us is None)
    one = list(cached.pool)[4]
    rest = dict.fromkeys(cached.pool, cached.trials[failed])
    only = replace(cached, trials={**rest, one: cached.trials[one]})
    watched(most=3)
    assert set(replay(only, "x", 0, ReplaySettings(("x",), 1, 3)).found_us) == {only.worst_us}


def compared(spaces: list[RecordedSpace], jobs: int = 1, trials: int = 8) -> SearcherComparison:
    return replay_all(ReplaySettings(NAMES, seeds=2, trials=trials), spaces, jobs=jobs)


def test_the_results_do_not_depend_on_the_jobs(cached: RecordedSpace) -> None:
    alone, together = (compared([cached], jobs) for jobs in (1, 2))
    for one, other in zip(alone.results[0].methods, together.results[0].methods, strict=True):
        assert one.searcher == other.searcher
        assert np.array_equal(one.found_us, other.found_us)
        assert replace(one.score, seconds_per_run=0) == replace(other.score, seconds_per_run=0)


def test_every_run_is_heard_of_and_recordings_are_averaged(cached, tmp_path: Path) -> None:
    (other,) = load_spaces(written(tmp_path / "other.json", cache()), never)
    ended: list[ReplayTask] = []
    made = replay_all(ReplaySettings(("random",), 3, 5), [cached, other], ended=ended.append)
    assert ended == [ReplayTask(space, "random", seed) for space in (0, 1) for seed in range(3)]
    assert list(made.by_recording()) == [str(cached.path), str(other.path)]
    first, second = (row["random"] for row in made.by_recording().values())
    assert first.score == second.score == made.overall()["random"].score


def test_all_configs_may_be_tried_and_no_more(cached: RecordedSpace) -> None:
    scores = compared([cached], trials=20).overall()
    assert {score.share_100 for score in scores.values()} == {1.0}
    with pytest.raises(InputError, match="has 20 configs, fewer than 21 trials") as caught:
        compared([cached], trials=21)
    assert caught.value.path == cached.path


@pytest.mark.parametrize(
    ("method", "task", "why"),
    [
        ("leave", 1, "died"),
        ("refuse", "not that one", "not that one"),
        ("no such method", 1, "in a worker process:\nTraceback"),
    ],
)
def test_a_process_that_dies_or_fails_ends_the_comparison(method: str, task, why: str) -> None:
    with ObjectPool(Handler, (), 2) as pool, pytest.raises(TunerError, match=why):
        list(pool.map(method, [task] * 3))


def test_a_process_that_cannot_start_is_an_error() -> None:
    message = "a process of the comparison died"
    with ObjectPool(Dying, (), 2) as pool, pytest.raises(WorkerError, match=message):
        list(pool.map("echo", [1]))


def test_every_task_is_answered_once() -> None:
    with ObjectPool(Handler, (), 2) as pool:
        assert sorted(pool.map("echo", [1, 2, 3, 4, 5])) == [(n, n) for n in range(1, 6)]


def test_a_file_without_a_correct_config_or_with_another_workload_is_refused(tmp_path) -> None:
    bad = cache(cache={"a": {"block": 32, "items": 1, "time": "InvalidConfig"}})
    with pytest.raises(InputError, match="none of its 1 configs is correct"):
        load_spaces(written(tmp_path / "bad.json", bad), never)
    with pytest.raises(InputError, match="none of its 0 configs is correct"):
        load_spaces(written(tmp_path / "none.json", cache(cache={})), never)
    with pytest.raises(InputError, match="holds one workload"):
        load_spaces(written(tmp_path / "c.json", cache()), never, ["N=1000"])


@pytest.fixture
def own(make_plan, make_session, compiler, listener, tmp_path, project):
    """A recording of the small project, and its search space."""
    plan = recording_plan(make_plan())
    device = SimulatedDevice(
        lambda program: (
            Status.INCORRECT
            if program.launches[0].threads == 64
            else 10.0 + program.launches[0].threads / 64
        )
    )
    with make_session(plan) as session:
        made = record(plan, session=session, device=device, compiler=compiler, listener=listener)
    path = tmp_path / "scale.json.xz"
    save_recording(made, path)
    return path, project / "scale.yaml"


def test_our_own_recordings_are_found_by_rendering_their_template(own) -> None:
    path, space = own
    spaces = load_spaces(path, lambda _: load_definition(space))
    assert [one.label for one in spaces] == ["scale N=1000", "scale N=100000"]
    assert (len(spaces[0].pool), spaces[0].failed) == (19, 4)
    assert spaces[0].optimum_us == 10.5
    (one,) = load_spaces(path, lambda _: load_definition(space), ["N=3000", "N=3000"])
    assert one.workload.key == "N=3000"
    run = replay(one, "random", 1, ReplaySettings(("random",), 1, 1))
    # the space's default is proposed first
    assert run.found_us == (12.0,)


def test_what_does_not_belong_to_the_recording_is_refused(own) -> None:
    path, space = own
    with pytest.raises(InputError, match="no measurements for workload N=7") as caught:
        load_spaces(path, lambda _: load_definition(space), ["N=7"])
    assert "N=1000" in caught.value.remedy
    template = space.with_name("scale.cu.j2")
    template.write_text(template.read_text() + "int changed;\n")
    with pytest.raises(InputError, match="holds none of the 19 valid configs") as caught:
        load_spaces(path, lambda _: load_definition(space))
    assert "changed since" in caught.value.remedy
    space.write_text(space.read_text().replace("kernel: scale\n", "kernel: other\n", 1))
    with pytest.raises(InputError, match=r"is a recording of scale, and .* of other"):
        load_spaces(path, lambda _: load_definition(space))


def test_t4_results_are_a_space_too(cached: RecordedSpace, tmp_path: Path) -> None:
    from tuner.extensions.study.kernel_tuner_files import load_measured, t4_text

    text = t4_text(load_measured(cached.path))
    (space,) = load_spaces(written(tmp_path / "a100_T4.json", json.loads(text)), never)
    times_us = {config: trial.time_us for config, trial in cached.trials.items()}
    assert {config: trial.time_us for config, trial in space.trials.items()} == times_us


TIMES = st.lists(st.one_of(st.none(), st.integers(1, 9).map(float)), min_size=1, max_size=6).filter(
    any
)


@given(TIMES)
def test_random_search_is_averaged_over_all_orders(times: list[float | None]) -> None:
    worst = max(time for time in times if time is not None)
    known = [worst if time is None else time for time in times]
    orders = list(permutations(known))
    exact = [fmean(min(order[: k + 1]) for order in orders) for k in range(len(known))]
    assert expected_random(times, len(times)) == pytest.approx(exact)


@given(TIMES, st.integers(1, 20))
def test_after_all_configs_random_search_has_the_optimum(
    times: list[float | None], more: int
) -> None:
    curve = expected_random(times, len(times) + more)
    best = min(time for time in times if time is not None)
    assert curve[len(times) - 1 :] == pytest.approx([best] * (more + 1))
    assert (np.diff(curve) <= 1e-12).all()


def scored(*found: list[float]) -> SearcherScore:
    random_us = expected_random([10.0, 20.0, 40.0, None], 4)
    return score_of(np.array(found), random_us, 10.0, [1.0] * len(found))


def test_the_optimum_at_once_scores_one_and_what_random_expects_zero() -> None:
    assert scored([10.0] * 4, [10.0] * 4) == SearcherScore(1.0, 1.0, 1.0, 1.0, 1.0)
    random_us = expected_random([10.0, 20.0, 40.0, None], 4).tolist()
    assert scored(random_us).score == pytest.approx(0.0)


def test_shares_are_means_over_the_seeds() -> None:
    score = scored([40.0, 20.0, 20.0, 10.5], [40.0, 40.0, 20.0, 20.0])
    assert score.share_50 == pytest.approx((10 / 20 + 10 / 40) / 2)
    assert score.share_100 == pytest.approx((10 / 10.5 + 10 / 20) / 2)
    assert score.within_95 == 0.5


def test_equal_configs_leave_nothing_to_find() -> None:
    random_us = expected_random([7.0, 7.0, None], 3)
    assert score_of(np.full((2, 3), 7.0), random_us, 7.0, [1.0, 1.0]).score == 1.0


def test_seconds_are_the_median_and_spaces_count_alike() -> None:
    random_us = expected_random([1.0, 2.0], 1)
    score = score_of(np.array([[1.0]] * 3), random_us, 1.0, [5.0, 1.0, 2.0])
    assert score.seconds_per_run == 2.0
    assert mean_of([score, SearcherScore(0, 0, 0, 0, 0)]).share_100 == 0.5
    assert [half(trials) for trials in (1, 3, 100)] == [1, 1, 50]
