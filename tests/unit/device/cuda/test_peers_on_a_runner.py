"""What a peer that fails costs its process, how long it may take, and how it is captured."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.device.base import Program
from tuner.device.cuda import buffers as rotating
from tuner.device.cuda.buffers import Graph
from tuner.device.cuda.device import (
    ALONE_ROUNDS,
    CALL_WARM_UP_S,
    ENERGY_TIMEOUT_S,
    FIRST_CALL_S,
    MOST_REPLAYS,
    PEER_WARM_UP_S,
    REPLAY_TIMEOUT_S,
    RERUN_TIMEOUT_S,
    RUN_TIMEOUT_S,
    TIMING_TIMEOUT_S,
    CudaRunner,
)
from tuner.device.cuda.peers import PeerHome
from tuner.device.cuda.worker import ISOLATED_REPLAYS, RERUN_REPLAYS, CudaWorker
from tuner.device.layout import UNCHANGED
from tuner.device.reference import PeerError
from tuner.device.timing import SEARCH, WALL_RATIO
from tuner.device.verify.restarting_worker import RunFailedError
from tuner.model.kernel import CALL, Launch, Workload
from tuner.model.trial import Measurement, Status

WORKLOAD = Workload.of({"T": 1})
PEER = Program("key", WORKLOAD, (), peer="pytorch")
KERNEL = Program("key", WORKLOAD, ())
CALLED = Program("key", WORKLOAD, (Launch(CALL, (1, 1, 1), (1, 1, 1)),))
RESULTS, MODES = rotating.driver.CUresult, rotating.driver.CUstreamCaptureMode


class Asked:
    """Stands for the worker process: keeps each call's limit, and fails as a test says."""

    def __init__(self) -> None:
        self.limits: list[float] = []
        self.failure: Exception | None = None
        self.killed, self.still = 0, False

    def stop(self) -> None:
        self.still = True

    def go_on(self) -> None:
        self.still = False

    def call(self, method: str, *arguments: Any, timeout_s: float, **options: Any) -> Any:
        self.limits.append(timeout_s)
        if self.failure is not None:
            raise self.failure
        return None if method == "show" else []

    def kill(self) -> None:
        self.killed += 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()
    monkeypatch.setattr("tuner.device.cuda.device.Child", lambda *given: asked)
    return asked


@pytest.fixture
def runner(asked: Asked) -> CudaRunner:
    return CudaRunner(0)


@pytest.mark.parametrize("status", [Status.NOT_RECORDED, Status.LAUNCH, Status.INCORRECT])
@pytest.mark.parametrize("sticky", [False, True])
def test_only_a_peer_that_may_have_harmed_it_costs_its_process(
    runner: CudaRunner, asked: Asked, status: Status, sticky: bool
) -> None:
    asked.failure = error = PeerError("why", status=status)
    error.sticky = sticky
    with pytest.raises(RunFailedError, match="why") as caught:
        runner.run_once(PEER, 0)
    assert (caught.value.status, asked.killed) == (status, int(sticky))


def test_memory_that_a_python_kernel_left_to_nobody_is_had_back_by_another_process(
    asked: Asked, tmp_path: Path
) -> None:
    asked.failure = MemoryError("3 GB on the GPU")
    with pytest.raises(MemoryError):
        CudaRunner(0, PeerHome(tmp_path / "reference.py")).run_once(KERNEL, 0)
    assert asked.killed == 0
    runner = CudaRunner(0, PeerHome(tmp_path / "k.py", source=tmp_path / "k.py"))
    with pytest.raises(RunFailedError, match=r"no memory is left beside.*: 3 GB") as caught:
        runner.run_once(CALLED, 0)
    assert (caught.value.status, caught.value.killed) == (Status.RESOURCE_LIMIT, True)
    assert asked.killed == 1


def test_the_first_call_of_all_has_time_to_import_an_engine(
    runner: CudaRunner, asked: Asked
) -> None:
    asked.failure = PeerError("no module", status=Status.NOT_RECORDED)
    with pytest.raises(RunFailedError):
        runner.run_once(CALLED, 0)
    asked.failure = None
    for _ in range(2):
        runner.run_once(CALLED, 0)
    later_s = RUN_TIMEOUT_S + CALL_WARM_UP_S
    assert asked.limits == [later_s + FIRST_CALL_S, later_s + FIRST_CALL_S, later_s]


def test_a_peer_has_time_to_get_ready_wherever_it_may_be_met_first(
    runner: CudaRunner, asked: Asked
) -> None:
    def judge(index: int, variant: int, repeats: bool) -> None: ...

    calls: list[tuple[Callable[[Program], object], float]] = [
        (lambda program: runner.run_once(program, 0), RUN_TIMEOUT_S),
        (lambda program: runner.time(program, SEARCH, None, UNCHANGED, judge), TIMING_TIMEOUT_S),
        (runner.rerun, RERUN_TIMEOUT_S),
        (lambda program: runner.energy(program, 5.0), ENERGY_TIMEOUT_S + 5.0),
    ]
    for call, limit_s in calls:
        call(KERNEL)
        call(PEER)
        limits = [one for one in asked.limits if one != RUN_TIMEOUT_S or limit_s == one]
        assert limits[-2:] == [limit_s, limit_s + PEER_WARM_UP_S]
    asked.limits.clear()
    for programs in ([KERNEL, KERNEL, KERNEL], [KERNEL, PEER, PEER]):
        runner.compare(programs, 10, UNCHANGED, judge)
    assert len(asked.limits) == 2 * (1 + 3 * 2)
    assert asked.limits[7] - asked.limits[0] == 2 * PEER_WARM_UP_S


@pytest.mark.parametrize("claimed_us", [500.0, 5.0], ids=["honest", "lying"])
def test_a_python_kernel_is_timed_by_a_clock_outside_its_process(
    runner: CudaRunner, asked: Asked, monkeypatch: pytest.MonkeyPatch, claimed_us: float
) -> None:
    monkeypatch.setattr("tuner.device.cuda.device.SECOND_LOOKS", 2)
    replays: list[tuple[int, bool]] = []

    def answer(method: str, *arguments: Any, timeout_s: float, **options: Any) -> object:
        if method == "show":
            return 0, True
        if method == "time":
            return Measurement((claimed_us,), 20, 2, wall_ratio=1.1)
        replays.append((arguments[0], options["calls"]))
        time.sleep(2e-3 * arguments[0] if options["calls"] else 0.0)
        return None

    def judge(index: int, variant: int, repeats: bool) -> None:
        judged.append(asked.still)

    judged: list[bool] = []
    monkeypatch.setattr(asked, "call", answer)
    ratio = runner.time(CALLED, SEARCH, None, UNCHANGED, judge).wall_ratio
    assert (judged, asked.still) == ([True, True], False), "none of its threads runs meanwhile"
    assert ratio is not None
    assert (ratio > WALL_RATIO) is (claimed_us < 100.0)
    assert replays[0] == (MOST_REPLAYS if claimed_us < 100.0 else 1, True)
    runner.time(KERNEL, SEARCH, None, UNCHANGED, judge)
    assert judged[2:] == [False, False]
    assert replays[-1][1] is False, "what is compiled has no hold on its worker's clock"


def test_whatever_replays_has_the_time_that_as_many_rounds_of_a_comparison_have(
    runner: CudaRunner, asked: Asked
) -> None:
    programs = [KERNEL] * 7
    runner.rerun(KERNEL)  # a graph's first two replays, and then some
    assert asked.limits.pop() >= REPLAY_TIMEOUT_S * (2 + RERUN_REPLAYS)
    runner.alone_us(programs)
    runner.isolated_us(programs)
    for rounds, limit_s in zip((ALONE_ROUNDS, ISOLATED_REPLAYS), asked.limits, strict=True):
        assert limit_s >= REPLAY_TIMEOUT_S * rounds * len(programs) + TIMING_TIMEOUT_S


class Capturing:
    """A driver that knows captures and graphs only."""

    CUresult, CUstreamCaptureMode = RESULTS, MODES

    def __init__(self) -> None:
        self.modes: list[object] = []
        self.open = self.graphs = 0

    def cuStreamBeginCapture(self, stream, mode):  # noqa: N802
        self.modes.append(mode)
        self.open += 1
        return (RESULTS.CUDA_SUCCESS,)

    def cuStreamEndCapture(self, stream):  # noqa: N802
        self.open -= 1
        self.graphs += 1
        return RESULTS.CUDA_SUCCESS, "graph"

    def cuGraphDestroy(self, graph):  # noqa: N802
        self.graphs -= 1

    def cuGraphInstantiate(self, graph, flags):  # noqa: N802
        return RESULTS.CUDA_SUCCESS, "executable"

    def cuGraphUpload(self, executable, stream):  # noqa: N802
        return (RESULTS.CUDA_SUCCESS,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Capturing:
    driver = Capturing()
    monkeypatch.setattr(rotating, "driver", driver)
    return driver


PLACES: Any = ["first", "second"]


@pytest.mark.parametrize("relaxed", [False, True])
def test_only_a_peers_capture_is_relaxed(driver: Capturing, relaxed: bool) -> None:
    issued: list[str] = []
    launcher: Any = SimpleNamespace(relaxed=relaxed, issue=issued.append)
    Graph(launcher, PLACES, None)
    assert issued == ["first", "second"]
    (mode,) = driver.modes
    assert (mode == MODES.CU_STREAM_CAPTURE_MODE_RELAXED) is relaxed


def test_a_peer_that_fails_in_a_capture_ends_it(driver: Capturing) -> None:
    def fail(arguments: str) -> None:
        raise PeerError("operation not permitted when stream is capturing")

    launcher: Any = SimpleNamespace(relaxed=True, issue=fail)
    with pytest.raises(PeerError, match="capturing"):
        Graph(launcher, PLACES, None)
    assert (driver.open, driver.graphs) == (0, 0)


def test_a_worker_makes_a_peers_launcher_from_its_name(tmp_path: Path) -> None:
    worker = CudaWorker.__new__(CudaWorker)
    worker._arena = SimpleNamespace()  # type: ignore[assignment]
    made: list[tuple[Program, object]] = []
    launcher = SimpleNamespace(relaxed=True)
    worker._peers = SimpleNamespace(  # type: ignore[assignment]
        launcher=lambda *given: made.append(given) or launcher
    )
    assert worker._launcher(PEER) is launcher
    assert made == [(PEER, worker._arena)]
