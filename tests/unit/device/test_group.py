"""Several devices as one: homes, what the group can do, and members that are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace

import pytest

from tests.support.simulated_device import H200_LIKE, MeteredDevice, SimulatedDevice
from tuner.compiler.base import Compiler, PythonCompiler
from tuner.device.base import Device, Outcome, Program, verify_all
from tuner.device.group import DeviceGroup, Home, Turns, group_of
from tuner.model.errors import DeviceError, DeviceLost, WorkerError
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status

A, B, C = (Workload.of({"T": tokens}) for tokens in (1, 2, 3))


def program(workload: Workload = A) -> Program:
    return Program("source", workload, (Launch("example", (1, 1, 1), (64, 1, 1)),))


class Fragile(SimulatedDevice):
    """A device that can be lost: it then raises what `lost` holds."""

    def __init__(self, us: float) -> None:
        super().__init__(lambda asked: us)
        self.lost: Exception | None = None
        self.incumbents: list[float | None] = []

    def run(self, program: Program, *, incumbent_us: float | None = None, **options) -> Outcome:
        if self.lost is not None:
            raise self.lost
        self.incumbents.append(incumbent_us)
        return super().run(program, **options)


@pytest.fixture
def members() -> dict[str, Fragile]:
    return {"GPU 0": Fragile(10.0), "GPU 1": Fragile(20.0)}


@pytest.fixture
def group(members: dict[str, Fragile]) -> Iterator[DeviceGroup]:
    made = group_of(members)
    made.reference_us = {"GPU 0": 1.0, "GPU 1": 2.0}
    made.settle({A.key: Home("GPU 0"), B.key: Home("GPU 1"), C.key: Home("GPU 1")})
    yield made
    made.close()
    assert all(one.closed for one in members.values())


def times_us(device: Device, workload: Workload) -> tuple[float, ...]:
    outcome = device.run(program(workload))
    assert outcome.measurement is not None
    return outcome.measurement.times_us


def test_each_workload_is_timed_at_home(group: DeviceGroup, members: dict[str, Fragile]) -> None:
    assert [times_us(group, one)[0] for one in (A, B, C)] == [10.0, 20.0, 20.0]
    assert group.compare([program(B)] * 2, rounds=1).times_us == ((20.0, 20.0),)
    assert [group.home(one) for one in (A, B, C)] == [0, 1, 1]
    assert len(members["GPU 0"].ran) == 1


def test_a_group_says_what_its_members_are_and_how_many(group: DeviceGroup) -> None:
    assert group.info == replace(H200_LIKE, members=2)


def test_a_group_can_do_what_all_members_can() -> None:
    plain, metered = SimulatedDevice(lambda asked: 1.0), MeteredDevice(lambda _: 1.0, lambda _: 1.0)
    both = group_of({"GPU 0": metered, "GPU 1": metered})
    assert both.capabilities == metered.capabilities | {"members"}
    mixed = group_of({"GPU 0": metered, "GPU 1": plain})
    assert mixed.capabilities == plain.capabilities | {"members"}
    both.require_energy()
    with pytest.raises(DeviceError, match="no energy meter"):
        mixed.require_energy()


def test_a_group_verifies_together_on_whoever_is_left() -> None:
    class Together(Fragile):
        capabilities = Fragile.capabilities | {"verify_together"}

        def verify_together(self, programs: Sequence[Program]) -> Sequence[Outcome]:
            if self.lost is not None:
                raise self.lost
            self.ran += programs
            return [Outcome(Status.CORRECT) for _ in programs]

    members = {"GPU 0": Together(1.0), "GPU 1": Together(1.0)}
    both: Device = group_of(members)
    assert "verify_together" in both.capabilities
    mixed = group_of({**members, "GPU 1": Fragile(1.0)})
    assert "verify_together" not in mixed.capabilities
    asked = [program(A), program(B), program(A)]
    assert len(verify_all(both, asked)) == 3
    assert members["GPU 0"].ran == [asked[0], asked[2], asked[1]], "those of a workload in one go"
    members["GPU 0"].lost = DeviceLost("it is dark")
    assert [one.status for one in verify_all(both, asked)] == [Status.CORRECT] * 3
    assert len(members["GPU 1"].ran) == 3


def test_every_member_imports_ahead_and_the_first_compiles() -> None:
    class Preparing(Fragile):
        def __init__(self) -> None:
            super().__init__(1.0)
            self.imported: list[Program] = []

        def call_compiler(self, jobs: int | None) -> Compiler:
            return PythonCompiler()

        def import_ahead(self, program: Program) -> None:
            self.imported.append(program)

    members = {"GPU 0": Preparing(), "GPU 1": Preparing()}
    both: Device = group_of(members)
    both.import_ahead(program(A))
    assert [one.imported for one in members.values()] == [[program(A)]] * 2


def test_devices_of_two_kinds_are_refused(members: dict[str, Fragile]) -> None:
    members["GPU 1"].info = replace(H200_LIKE, name="another GPU", architecture="sm_80")
    with pytest.raises(
        DeviceError, match=r"GPU 0 is simulated H200 .*GPU 1 is another GPU"
    ) as told:
        group_of(members)
    assert "--gpus" in str(told.value)


def test_what_is_only_verified_runs_where_the_thread_serves(
    group: DeviceGroup, members: dict[str, Fragile]
) -> None:
    group.serve(1)
    group.verify(program(A))
    assert [len(one.ran) for one in members.values()] == [0, 1]


@pytest.mark.parametrize("error", [DeviceLost("it fell off the bus"), WorkerError("no process")])
def test_the_workloads_of_a_lost_member_move_in_its_own_terms(
    group: DeviceGroup, members: dict[str, Fragile], error: Exception
) -> None:
    members["GPU 0"].lost = error
    assert times_us(group, A) == (10.0,) * 5, "20 us on a GPU that takes twice as long"
    assert group.homes[A.key] == Home("GPU 1", 0.5)
    assert group.homes[B.key] == Home("GPU 1")
    group.run(program(A), incumbent_us=8.0)
    assert members["GPU 1"].incumbents[-1] == 16.0
    assert group.compare([program(A)], rounds=1).times_us == ((10.0,),)
    assert times_us(group, B) == (20.0,) * 5
    assert group.members[0].lost == str(error)


def test_the_last_loss_ends_it_and_names_all_and_later_calls_end_too(
    group: DeviceGroup, members: dict[str, Fragile]
) -> None:
    for name, one in members.items():
        one.lost = DeviceLost(f"{name} is dark")
    with pytest.raises(DeviceLost, match=r"GPU 0 is dark; .*GPU 1 is dark"):
        group.run(program(B))
    for workload in (A, B, C):
        with pytest.raises(DeviceLost, match="all of them are gone"):
            group.run(program(workload))


def test_every_member_is_closed_whatever_another_one_raises(members: dict[str, Fragile]) -> None:
    class Stuck(Fragile):
        def close(self) -> None:
            super().close()
            raise WorkerError("it does not end")

    both: dict[str, Fragile] = {"GPU 0": Stuck(1.0), "GPU 1": Stuck(1.0)}
    with pytest.raises(WorkerError):
        group_of(both).close()
    assert all(one.closed for one in both.values())


def test_what_breaks_two_members_is_not_theirs(
    group: DeviceGroup, members: dict[str, Fragile]
) -> None:
    for one in members.values():
        one.lost = WorkerError("the verifier died", remedy="it may lack memory")
    with pytest.raises(WorkerError, match="it may lack memory"):
        group.run(program(A))
    assert [bool(one.lost) for one in group.members] == [True, False]


def test_homes_of_an_earlier_run_move_where_their_device_is_not_here(
    members: dict[str, Fragile],
) -> None:
    group: DeviceGroup = group_of({"GPU 1": members["GPU 1"]})
    group.reference_us = {"GPU 0": 3.0, "GPU 1": 2.0}
    group.settle({A.key: Home("GPU 0"), B.key: Home("GPU 1")})
    assert group.homes == {A.key: Home("GPU 1", 1.5), B.key: Home("GPU 1")}
    assert times_us(group, A) == (30.0,) * 5


def test_other_errors_are_passed_on(group: DeviceGroup, members: dict[str, Fragile]) -> None:
    members["GPU 0"].lost = DeviceError("a program fails")
    with pytest.raises(DeviceError, match="a program fails"):
        group.run(program(A))
    assert group.members[0].lost == ""


@pytest.fixture
def started() -> Iterator[Callable[..., threading.Thread]]:
    threads = []

    def start(work: Callable[[], None]) -> threading.Thread:
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(10)


def test_others_have_a_turn_only_while_one_waits(started: Callable[..., threading.Thread]) -> None:
    turns, waits, may_end = Turns(), threading.Event(), threading.Event()
    said: list[str] = []

    def first() -> None:
        with turns.taken():
            said.append("first")
            with turns.given_up():
                waits.set()
                assert may_end.wait(10)
            said.append("first again")

    def second() -> None:
        assert waits.wait(10)
        with turns.taken():
            said.append("second")
            may_end.set()
            said.append("still second")

    for thread in (started(first), started(second)):
        thread.join(10)
    assert said == ["first", "second", "still second", "first again"]


def test_nobody_has_a_turn_after_the_end(started: Callable[..., threading.Thread]) -> None:
    turns, waits, may_end = Turns(), threading.Event(), threading.Event()
    said: list[str] = []

    def work() -> None:
        with pytest.raises(CancelledError), turns.taken():
            with turns.given_up():
                waits.set()
                assert may_end.wait(10)
            said.append("too late")

    thread = started(work)
    assert waits.wait(10)
    turns.end()
    may_end.set()
    thread.join(10)
    assert said == []
