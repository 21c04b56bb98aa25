"""What is tried on a workload because it won on another."""

from __future__ import annotations

import pytest

from tuner.model.config import Config, SearchSpace
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.search.pool import Pool, valid_configs
from tuner.space.load import load_definition
from tuner.tuning.search import TRANSFERRED_CONFIGS, cross_workload_transfer


@pytest.fixture
def space(project) -> SearchSpace:
    return load_definition(project / "scale.yaml").space


@pytest.fixture
def pool(space) -> Pool:
    return valid_configs(space, {"multiprocessors": 132, "N": 1024})


def workload(size: int) -> Workload:
    return Workload.of({"N": size})


def trial(size: int, config: Config, time_us: float | None) -> Trial:
    measured = None if time_us is None else Measurement((time_us,), 1, 2)
    status = Status.INCORRECT if time_us is None else Status.CORRECT
    return Trial(INITIAL, workload(size), config, status, measurement=measured)


def test_the_best_two_of_the_nearest_come_before_the_best_of_the_others(pool) -> None:
    a, b, c, d, e = (pool[index] for index in range(5))
    told = [
        *(trial(1024, config, time_us) for config, time_us in ((a, 3.0), (b, 2.0), (c, 1.0))),
        *(trial(1 << 20, config, time_us) for config, time_us in ((d, 9.0), (e, 8.0))),
    ]
    found = list(cross_workload_transfer(told, {workload(2048): pool}))
    assert found == [(workload(2048), config) for config in (c, b, e)]
    assert len(found) == TRANSFERRED_CONFIGS


def test_what_was_tried_or_is_not_valid_there_is_left_out(space, pool) -> None:
    a, b = pool[0], pool[1]
    few = pool.restricted([a])
    told = [trial(1024, a, 1.0), trial(1024, b, 2.0), trial(2048, a, 5.0)]
    assert list(cross_workload_transfer(told, {workload(2048): few})) == []
    assert list(cross_workload_transfer(told[:2], {workload(2048): few})) == [(workload(2048), a)]


def test_only_what_ran_correctly_has_won(pool) -> None:
    told = [trial(1024, pool[0], None)]
    assert list(cross_workload_transfer(told, {workload(2048): pool})) == []


def test_a_workload_learns_nothing_from_itself(pool) -> None:
    told = [trial(1024, pool[0], 1.0)]
    assert list(cross_workload_transfer(told, {workload(1024): pool})) == []
