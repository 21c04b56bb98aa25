"""A run on several devices: each workload on its own, at once, and what a lost one costs."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.support.simulated_device import H200_LIKE, SimulatedDevice
from tuner.app.run import tune
from tuner.device.base import Program
from tuner.device.group import Home, group_of
from tuner.model.errors import DeviceLost
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import INITIAL
from tuner.session.events import HomesChosen, ReferenceTimed
from tuner.tuning.device_queues import name_slower_devices, spread_workloads, work_in_queues

SMALL, LARGE, HELD_OUT = (Workload.of({"N": n}) for n in (1000, 100000, 3000))
WAIT_S = 20.0


def program_of(workload: Workload) -> Program:
    return Program("source", workload, (Launch("scale", (1, 1, 1), (64, 1, 1)),))


def flat(program) -> float:
    return 10.0 + program.launches[0].threads / 64


class Counted(SimulatedDevice):
    """A device that is lost once it has run so many programs."""

    def __init__(self, answer=flat, *, lost_after: int | None = None) -> None:
        super().__init__(answer)
        self.lost_after = lost_after

    def run(self, program, **options):
        if self.lost_after is not None and len(self.ran) >= self.lost_after:
            raise DeviceLost("it fell off the bus")
        return super().run(program, **options)


@pytest.fixture
def ran(make_plan, make_session, compiler, listener):
    """Run the project's plan on devices, as many as given, in a session that is then closed."""

    def run(*devices, name="session", plain=False, **changes):
        plan = make_plan(**changes)
        group = group_of({f"GPU {number}": one for number, one in enumerate(devices)})
        with make_session(plan, name) as session:
            device = devices[0] if plain else group
            tune(plan, session=session, device=device, compiler=compiler, listener=listener)
            return session

    return run


def told(session) -> list[tuple[object, ...]]:
    return [(t.workload, t.config, t.status, t.time_us) for t in session.trials(INITIAL)]


@pytest.mark.parametrize("searcher", ["exhaustive", "auto"])
def test_one_member_searches_as_a_device_alone(ran, searcher):
    changes = {"searcher": searcher, "trials": 15}
    alone = ran(SimulatedDevice(flat), name="alone", plain=True, **changes)
    member = ran(SimulatedDevice(flat), name="member", **changes)
    assert told(member) == told(alone)
    assert member.results() == alone.results()
    assert not member.events(ReferenceTimed), "there is nobody to compare with"


def test_every_workload_is_timed_on_one_member(ran):
    devices = [Counted(), Counted()]
    session = ran(*devices)
    (chosen,) = session.events(HomesChosen)
    (reference,) = session.events(ReferenceTimed)
    assert chosen.homes == {"N=100000": "GPU 0", "N=1000": "GPU 1", "N=3000": "GPU 0"}
    assert reference.times_us == {"GPU 0": 12.0, "GPU 1": 12.0}
    assert reference.workload == LARGE.key, "the one that moves most bytes"
    assert {one.workload for one in devices[1].ran[1:]} == {SMALL}
    assert {one.workload for one in devices[0].ran} == {LARGE, HELD_OUT}
    assert len(session.trials(INITIAL)) == 38
    assert len(session.results()) == 3


def test_members_work_at_once_in_the_search_and_in_the_finals(ran):
    class Meeting(SimulatedDevice):
        """Wait for the other member in each phase: were they to take turns, both would fail."""

        def __init__(self, meetings: dict[str, threading.Barrier]) -> None:
            super().__init__(flat)
            self.left = dict(meetings)

        def run(self, program, *, full_verification=False, **options):
            name = "full" if full_verification else "search"
            if program.workload == HELD_OUT:
                return super().run(program, full_verification=full_verification, **options)
            if barrier := self.left.pop(name, None):
                barrier.wait(WAIT_S)
            return super().run(program, full_verification=full_verification, **options)

        def compare(self, programs, *, rounds):
            if programs[0].workload != HELD_OUT and (barrier := self.left.pop("compare", None)):
                barrier.wait(WAIT_S)
            return super().compare(programs, rounds=rounds)

    meetings = {name: threading.Barrier(2) for name in ("full", "search", "compare")}
    devices = [Meeting(meetings), Meeting(meetings)]
    assert len(ran(*devices).results()) == 3
    assert not any(one.left for one in devices)


def test_a_lost_member_costs_no_trial_and_its_times_stay_comparable(ran):
    session = ran(Counted(lost_after=9), Counted(lambda program: 2.0 * flat(program)))
    last = session.events(HomesChosen)[-1]
    assert set(last.homes.values()) == {"GPU 1"}
    assert last.lost == {"GPU 0": "it fell off the bus"}
    assert last.factors == {"N=100000": 0.5, "N=3000": 0.5}
    trials = session.trials(INITIAL, LARGE)
    assert len(trials) == 19
    for trial in trials:
        assert trial.time_us == pytest.approx(10.0 + trial.config["block"] / 64)
    assert len(session.results()) == 3


def test_the_last_loss_keeps_all_and_another_run_goes_on(ran, make_plan, make_session):
    with pytest.raises(DeviceLost, match="GPU 0: it fell off the bus; GPU 1: it fell off the bus"):
        ran(Counted(lost_after=8), Counted(lost_after=6))
    with make_session(make_plan()) as session:
        before = session.trials(INITIAL)
        assert before
        assert session.state == "interrupted"
        homes = session.events(HomesChosen)[0].homes
    devices = [Counted(), Counted()]
    session = ran(*devices)
    assert session.state == "complete"
    assert session.trials(INITIAL)[: len(before)] == before
    assert session.events(HomesChosen)[-1].homes == homes
    assert len(session.events(ReferenceTimed)) == 1, "what was timed is not timed again"
    assert len(session.results()) == 3


def test_an_interrupted_run_measures_nothing_twice(ran, make_plan, make_session):
    class Interrupting(Counted):
        def run(self, program, **options):
            if len(self.ran) == 12:
                raise KeyboardInterrupt
            return super().run(program, **options)

    with pytest.raises(KeyboardInterrupt):
        ran(Interrupting(), Counted())
    with make_session(make_plan()) as session:
        assert session.state == "interrupted"
        known = {(t.workload, t.config) for t in session.trials(INITIAL)}
        assert known
    devices = [Counted(), Counted()]
    session = ran(*devices)
    again = {
        (one.workload, one.config)
        for device in devices
        for one in device.ran[: -len(session.trials(stage="finals"))]
        if one.config is not None
    }
    assert len(session.trials(INITIAL)) == 38
    finals = {(t.workload, t.config) for t in session.trials(stage="finals")}
    assert again & known <= finals


def test_members_that_differ_are_told_and_those_that_hardly_do_are_not(ran, listener):
    ran(Counted(), Counted(lambda program: 1.03 * flat(program)))
    told = {progress.note for progress in listener.seen if progress.note}
    assert told == {
        "slower than GPU 0 on the reference kernel: GPU 1 by 3.0 %; a workload's times come from "
        "one of them"
    }
    assert name_slower_devices({"GPU 0": 10.0, "GPU 1": 10.19}) == ""
    assert name_slower_devices({}) == ""


def test_a_cpu_is_not_blamed_for_its_noise(ran, listener):
    devices = [Counted(), Counted(lambda program: 1.5 * flat(program))]
    for one in devices:
        one.info = replace(H200_LIKE, on_cpu=True)
    ran(*devices)
    assert not any(progress.note for progress in listener.seen)


def test_an_error_in_one_lane_ends_the_others(make_plan):
    group = group_of({name: SimulatedDevice(flat) for name in ("GPU 0", "GPU 1")})
    homes = spread_workloads(make_plan(), ["GPU 0", "GPU 1"], {})
    group.settle({workload.key: Home(name) for workload, name in homes.items()})
    first_waits, failed = threading.Event(), threading.Event()

    class Slow(SimulatedDevice):
        def verify(self, program):
            first_waits.set()
            assert failed.wait(WAIT_S)

    group.members[0].device = Slow(flat)
    began = []

    def work(workload: Workload) -> None:
        began.append(workload)
        if workload == SMALL:
            assert first_waits.wait(WAIT_S)
            failed.set()
            raise ValueError("no such thing")
        group.verify(None)
        began.append("too late")

    with pytest.raises(ValueError, match="no such thing"):
        work_in_queues(group, [LARGE, SMALL, HELD_OUT], work)
    assert set(began) == {LARGE, SMALL}


def test_where_one_member_has_all_workloads_it_also_verifies_them(make_plan):
    devices = {name: SimulatedDevice(flat) for name in ("GPU 0", "GPU 1")}
    group = group_of(devices)
    group.settle({LARGE.key: Home("GPU 1"), SMALL.key: Home("GPU 1")})
    work_in_queues(group, [LARGE, SMALL], lambda workload: group.verify(program_of(workload)))
    assert [len(one.ran) for one in devices.values()] == [0, 2]


@pytest.mark.parametrize("members", [1, 2, 4])
def test_homes_are_spread_by_work_and_always_the_same(make_plan, members):
    plan = make_plan(workloads=tuple(Workload.of({"N": 1000 * n}) for n in range(1, 9)))
    names = [f"GPU {number}" for number in range(members)]
    trials = {workload: 100 if workload.values["N"] > 4000 else 20 for workload in plan.tuned}
    homes = spread_workloads(plan, names, trials)
    assert homes == spread_workloads(plan, names, trials)
    work = [sum(trials[w] for w, name in homes.items() if name == one) for one in names]
    assert work == [480 // members] * members
