"""What both runners do with a worker that fails: the next one has the verifier's memory again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from tuner.device.base import Program
from tuner.device.cuda.device import CudaRunner
from tuner.device.cuda.driver import CudaError
from tuner.device.layout import UNCHANGED, Arena, Layout
from tuner.device.verify.restarting_worker import RunFailedError
from tuner.extensions.backends.copying import CallFailedError, CopyingRunner
from tuner.extensions.cpu.child import LaunchEnd
from tuner.extensions.cpu.device import HostRunner
from tuner.extensions.cpu.worker import HostRunError
from tuner.model.errors import WorkerError
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.process.child import ChildDiedError, ChildTimeoutError

Runner = CudaRunner | HostRunner
ARENA = Arena("T=1", Layout((), (), 0), None, None)
ANOTHER = replace(ARENA, key="T=2")
PROGRAM = Program("key", Workload.of({"T": 1}), ())
DIED, KILLED = ChildDiedError(1), ChildDiedError(-signal.SIGKILL)
LATE = ChildTimeoutError("no answer within 10 s")
LOST, REFUSED = CudaError("an illegal address"), CudaError("no such image", sticky=False)


class Workers:
    """Stands for all worker processes: notes what they are asked, raises what a test plans."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.planned: dict[str, Exception] = {}
        self.neighbours: list[str] = []

    def note(self, what: str, detail: str = "") -> None:
        self.asked.append(f"{what} {detail}".strip())
        if what in self.planned:
            raise self.planned.pop(what)

    def since(self) -> list[str]:
        """What was asked since this was last called."""
        asked, self.asked = self.asked, []
        return asked


class FakeWorker:
    """A `Child` of the GPU's worker, and a `HostWorker`."""

    limits, noise_us = ("seccomp",), 1.0

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        workers.note("start")

    def call(self, method: str, *arguments: Any, timeout_s: float, **options: Any) -> Any:
        if method == "attach":
            return self.attach(*arguments)
        if method == "detach":
            return self.detach()
        neighbour = arguments[1] if method == "run_once" else ""
        if neighbour:
            self._workers.neighbours.append(neighbour)
        self._workers.note("run")
        return neighbour != "none" if neighbour else []

    def attach(self, arena: Arena, compared: frozenset[str] = frozenset()) -> None:
        self._workers.note("map", arena.key)

    def detach(self) -> None:
        self._workers.note("unmap")

    def keep_only(self, *programs: Program) -> None: ...

    def keep_latest(self, program: Program) -> None: ...

    @property
    def memory(self) -> Mock:
        return Mock()

    def run(self, program: Program, order: int, fill: int) -> tuple[float, int]:
        self._workers.note("run")
        return 1.0, 0

    def kill(self) -> None:
        self._workers.note("kill")


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def cuda(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> CudaRunner:
    monkeypatch.setattr("tuner.device.cuda.device.Child", lambda *given: FakeWorker(workers))
    return CudaRunner(0)


@pytest.fixture
def host(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> HostRunner:
    make = "tuner.extensions.cpu.device.HostWorker"
    monkeypatch.setattr(make, lambda *given: FakeWorker(workers))
    monkeypatch.setattr("tuner.extensions.cpu.device._some_orders", lambda most: [])
    runner = HostRunner(10.0)
    workers.since()
    return runner


@pytest.fixture(params=["cuda", "host"])
def runner(request: pytest.FixtureRequest) -> Runner:
    made: Runner = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def attached(runner: Runner, workers: Workers) -> Runner:
    runner.attach(ARENA)
    workers.since()
    return runner


def failure(act: Callable[[], None]) -> RunFailedError:
    with pytest.raises(RunFailedError) as caught:
        act()
    return caught.value


def test_memory_is_mapped_once_and_let_go_for_other_memory(
    attached: Runner, workers: Workers
) -> None:
    attached.attach(ARENA)
    assert workers.since() == []
    attached.attach(ANOTHER)
    assert workers.since() == ["unmap", "map T=2"]
    attached.detach()
    attached.detach()
    assert workers.since() == ["unmap"]


@pytest.mark.parametrize(
    ("error", "status", "killed"),
    [
        (DIED, Status.LAUNCH, False),
        (KILLED, Status.LAUNCH, True),
        (LATE, Status.TIMEOUT, False),
    ],
    ids=["died", "killed", "late"],
)
def test_a_worker_that_fails_costs_the_program_and_is_replaced(
    attached: Runner, workers: Workers, error: Exception, status: Status, killed: bool
) -> None:
    workers.planned["run"] = error
    failed = failure(lambda: attached.run_once(PROGRAM, 0))
    assert (failed.status, failed.killed) == (status, killed)
    assert workers.since() == ["run", "kill"]
    attached.run_once(PROGRAM, 0)
    assert workers.since() == ["start", "map T=1", "run"]


@pytest.mark.parametrize("error", [DIED, KILLED, LATE], ids=["died", "killed", "late"])
def test_a_worker_that_cannot_let_go_is_replaced_and_nobody_is_blamed(
    attached: Runner, workers: Workers, error: Exception
) -> None:
    workers.planned["unmap"] = error
    attached.attach(ANOTHER)
    assert workers.since() == ["unmap", "kill", "start", "map T=2"]


@pytest.mark.parametrize("error", [DIED, LATE], ids=["died", "late"])
def test_a_worker_that_does_not_start_is_no_programs_fault(
    attached: Runner, workers: Workers, error: Exception
) -> None:
    attached._drop_worker()
    workers.planned["start"] = error
    with pytest.raises(WorkerError, match="no process can be started"):
        attached.run_once(PROGRAM, 0)
    attached.run_once(PROGRAM, 0)
    assert workers.since() == ["kill", "start", "start", "map T=1", "run"]


@pytest.mark.parametrize("moment", ["start", "map"])
def test_a_worker_that_is_killed_before_it_runs_anything_may_be_tried_again(
    attached: Runner, workers: Workers, moment: str
) -> None:
    attached._drop_worker()
    workers.planned[moment] = KILLED
    assert failure(lambda: attached.run_once(PROGRAM, 0)).killed
    attached.run_once(PROGRAM, 0)
    assert workers.since()[-3:] == ["start", "map T=1", "run"]


def test_a_closed_runner_has_no_process_and_starts_no_other(
    attached: Runner, workers: Workers
) -> None:
    attached.close()
    attached.close()
    assert workers.since() == ["kill"]
    with pytest.raises(WorkerError, match="was ended"):
        attached.run_once(PROGRAM, 0)
    assert workers.since() == []


@pytest.mark.parametrize("error", [DIED, LATE, LOST, REFUSED], ids=["died", "late", "1", "2"])
def test_memory_that_a_gpu_cannot_map_is_no_programs_fault(
    cuda: CudaRunner, workers: Workers, error: Exception
) -> None:
    workers.planned["map"] = error
    with pytest.raises(WorkerError, match="the verifier's memory cannot be mapped"):
        cuda.attach(ARENA)
    assert workers.since() == ["start", "map T=1", "kill"]


@pytest.mark.parametrize(
    "error", [DIED, LATE, CallFailedError("no memory")], ids=["died", "late", "1"]
)
def test_memory_that_cannot_be_copied_to_a_device_is_no_programs_fault(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(
        "tuner.extensions.backends.copying.Child", lambda *given: FakeWorker(workers)
    )
    names = {"called": "the worker", "device": "a device"}
    runner = CopyingRunner(pytest.fail, (), **names, run_timeout_s=1.0)
    workers.planned["map"] = error
    with pytest.raises(WorkerError, match="the verifier's memory cannot be copied"):
        runner.attach(ARENA)
    assert workers.since() == ["start", "map T=1", "kill"]
    runner.close()


@pytest.mark.parametrize("error", [LOST, REFUSED], ids=["lost", "refused"])
def test_a_gpus_worker_that_cannot_let_go_is_replaced(
    cuda: CudaRunner, workers: Workers, error: Exception
) -> None:
    cuda.attach(ARENA)
    workers.planned["unmap"] = error
    cuda.detach()
    assert workers.since() == ["start", "map T=1", "unmap", "kill"]


@pytest.mark.parametrize(("error", "kills"), [(LOST, 1), (REFUSED, 0)], ids=["lost", "refused"])
def test_a_gpus_worker_is_kept_unless_its_context_is_lost(
    cuda: CudaRunner, workers: Workers, error: CudaError, kills: int
) -> None:
    cuda.attach(ARENA)
    workers.planned["run"] = error
    failed = failure(lambda: cuda.run_once(PROGRAM, 0))
    assert (failed.status, str(failed)) == (Status.LAUNCH, error.message)
    assert workers.since().count("kill") == kills


def test_programmatic_launches_have_a_neighbour_but_the_first_time(
    cuda: CudaRunner, workers: Workers
) -> None:
    cuda.attach(ARENA)
    launches = (Launch("kernel", (1, 1, 1), (32, 1, 1), pdl=True),)
    said = [cuda.run_once(replace(PROGRAM, launches=launches), order) for order in (0, 1, 2, 7)]
    plain = [cuda.run_once(PROGRAM, order) for order in (0, 1, 2)]
    beside = ["none", "late writer", "eager successor", "late writer"]
    assert workers.neighbours == [*beside, *["none"] * 3]
    assert ["griddepcontrol.wait" in text for text in said] == [False, True, False, True]
    assert "griddepcontrol.launch_dependents" in said[2]
    assert plain == ["", "", ""]
    workers.planned["run"] = REFUSED
    failed = failure(lambda: cuda.run_once(replace(PROGRAM, launches=launches), 1))
    assert failed.status is Status.LAUNCH
    assert "griddepcontrol.wait" in str(failed)


def test_the_first_launch_is_a_successor_and_the_last_one_a_predecessor(
    cuda: CudaRunner, workers: Workers
) -> None:
    cuda.attach(ARENA)
    plain = Launch("kernel", (1, 1, 1), (32, 1, 1))
    for launches in ((plain, replace(plain, pdl=True)), (replace(plain, pdl=True), plain)):
        for order in (1, 2):
            cuda.run_once(replace(PROGRAM, launches=launches), order)
    assert workers.neighbours == ["none", "eager successor", "late writer", "none"]


def test_a_comparison_on_a_gpu_that_fails_ends_the_worker(
    cuda: CudaRunner, workers: Workers
) -> None:
    workers.planned["run"] = REFUSED
    assert failure(lambda: cuda.compare([PROGRAM], 1, UNCHANGED, print)).status is Status.LAUNCH
    assert workers.since() == ["start", "run", "kill"]


def test_a_worker_without_a_gpu_says_where_to_look(cuda: CudaRunner, workers: Workers) -> None:
    workers.planned["start"] = LOST
    with pytest.raises(WorkerError, match="on GPU 0: an illegal address") as caught:
        cuda.describe()
    assert caught.value.remedy is not None
    assert "nvidia-smi" in caught.value.remedy


@pytest.mark.parametrize(
    ("code", "status"),
    [(LaunchEnd.TIMEOUT, Status.TIMEOUT), (LaunchEnd.FAULT, Status.LAUNCH)],
)
def test_a_programs_own_failure_leaves_the_host_its_server(
    host: HostRunner, workers: Workers, code: LaunchEnd, status: Status
) -> None:
    workers.planned["run"] = HostRunError("ended", code, "its words", killed=True)
    failed = failure(lambda: host.run_once(PROGRAM, 0))
    assert failed.status is status
    assert ("its words" in str(failed), failed.killed) == (status is Status.LAUNCH,) * 2
    assert workers.since() == ["run"]


@pytest.mark.parametrize("error", [OSError("no room"), DIED], ids=["refused", "died"])
def test_a_server_that_does_not_start_is_no_programs_fault(
    host: HostRunner, workers: Workers, error: Exception
) -> None:
    host._drop_worker()
    workers.planned["start"] = error
    with pytest.raises(WorkerError, match="no process can be started to run kernels"):
        host.attach(ARENA)
