"""What of a session is kept."""

from __future__ import annotations

import pytest

from tuner.model.config import Config
from tuner.model.errors import SessionError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Check, Measurement, Status, Trial
from tuner.tuning.warm_start import BEST, FAILED, searches_of

SMALL, LARGE = Workload((("N", 1000),)), Workload((("N", 100000),))


def config(block: int, items: int = 1) -> Config:
    return Config.of({"block": block, "items": items})


def measured(time_us: float, *, stopped_early: bool = False) -> Measurement:
    return Measurement((time_us,) * 3, 20, 4, stopped_early)


def timed(number: int, time_us: float, workload: Workload = SMALL, **changes) -> Trial:
    fields = {"status": Status.CORRECT, "measurement": measured(time_us), **changes}
    return Trial(INITIAL, workload, config(number), **fields)


@pytest.fixture
def session(make_plan, make_session):
    plan = make_plan()
    with make_session(plan) as made:
        made.add_candidate(INITIAL, "template", "space")
        made.record_baseline(SMALL, measured(20.0))
        made.environment = {"device": "NVIDIA H200", "architecture": "sm_90a"}
        yield made


def kept(session, number: int = 0):
    return searches_of(session)[number]


def test_a_session_without_a_time_leaves_nothing(session) -> None:
    session.record(timed(1, 1.0, status=Status.INCORRECT, measurement=None))
    assert searches_of(session) == []


def test_it_says_what_was_searched_and_on_what(session) -> None:
    session.record(timed(1, 2.0))
    found = kept(session)
    assert (found.kernel, found.device, found.architecture) == ("scale", "NVIDIA H200", "sm_90a")
    assert (found.candidate, found.parameters) == (INITIAL, ("block", "items"))
    assert (found.state, found.created) == ("running", "2026-01-01T00:00:00+00:00")
    (workload,) = found.workloads
    assert (workload.workload, workload.baseline_us) == (SMALL, 20.0)


def test_the_fastest_are_kept_in_order_and_each_workload_apart(session) -> None:
    for number in range(BEST + 5):
        session.record(timed(number, 50.0 - number))
    session.record(timed(1, 7.0, LARGE))
    small, large = kept(session).workloads
    assert [one.time_us for one in small.configs] == sorted(one.time_us for one in small.configs)
    assert len(small.configs) == BEST
    assert (large.baseline_us, large.configs[0].config) == (None, config(1))


def test_one_that_was_stopped_early_is_not_kept(session) -> None:
    session.record(timed(1, 2.0))
    session.record(timed(2, 1.0, measurement=measured(1.0, stopped_early=True)))
    assert [one.config for one in kept(session).workloads[0].configs] == [config(1)]


def test_a_few_that_fail_when_they_run_are_kept_as_such(session) -> None:
    session.record(timed(0, 2.0))
    for number, status in enumerate(
        [Status.INCORRECT, Status.COMPILE, Status.RESOURCE_LIMIT, Status.TIMEOUT]
    ):
        session.record(timed(number + 1, 0.0, status=status, measurement=None))
    for number in range(10, 20):
        session.record(timed(number, 0.0, status=Status.LAUNCH, measurement=None))
    failed = kept(session).workloads[0].configs[1:]
    assert len(failed) == FAILED
    assert [one.status for one in failed][:3] == [Status.INCORRECT, Status.TIMEOUT, Status.LAUNCH]
    assert all(one.time_us is None for one in failed)


def test_a_winner_that_failed_a_later_check_is_kept_as_wrong(session) -> None:
    session.record(timed(1, 1.0))
    session.record(timed(2, 2.0))
    session.record(timed(3, 3.0))
    session.append(Check("memcheck", LARGE, config(1), False))
    session.append(Check("edge_cases", LARGE, config(2), None))
    session.record(timed(3, 0.0, status=Status.INCORRECT, measurement=None, stage="finals"))
    best, *failed = kept(session).workloads[0].configs
    assert best.config == config(2)
    assert {(one.config, one.status) for one in failed} == {
        (config(1), Status.INCORRECT),
        (config(3), Status.INCORRECT),
    }


def test_a_winner_that_finds_no_room_on_another_workload_is_kept_as_right(session) -> None:
    session.record(timed(1, 1.0))
    status = Status.RESOURCE_LIMIT
    session.record(Trial(INITIAL, LARGE, config(1), status, "no room", stage="finals"))
    (best,) = kept(session).workloads[0].configs
    assert (best.config, best.status) == (config(1), Status.CORRECT)


def test_each_candidate_is_a_search_of_its_own(session) -> None:
    session.add_candidate("r1", "another template", "space", INITIAL)
    session.record(timed(1, 2.0))
    session.record(Trial("r1", SMALL, config(1), Status.CORRECT, measurement=measured(1.0)))
    first, second = searches_of(session)
    assert (first.candidate, second.candidate) == (INITIAL, "r1")
    assert first.template_sha != second.template_sha
    assert [one.uid for one in searches_of(session)] == [first.uid, second.uid]
    session.record(timed(2, 1.0))
    assert kept(session).uid != first.uid, "more trials are another search"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"device": "cpu", "architecture": "x86", "on_cpu": "true"}, "its times are a CPU's"),
        ({"device": "NVIDIA H200"}, "it does not say what its times are of"),
    ],
)
def test_times_of_no_known_gpu_are_refused(session, environment, said) -> None:
    session.record(timed(1, 2.0))
    session.environment = environment
    with pytest.raises(SessionError, match=said):
        searches_of(session)
