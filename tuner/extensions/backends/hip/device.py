"""The `hip` device: a worker process for one AMD GPU, verified and timed by the same protocol.

It was written without an AMD GPU: tests run it against a stand-in of the HIP runtime, and its name
says so wherever a result is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from tuner.device.base import DeviceInfo, Program
from tuner.device.layout import Arena, Patch
from tuner.device.timing import TimingPolicy
from tuner.device.verify.restarting_worker import (
    Judge,
    RestartingWorker,
    Rows,
    RunFailedError,
    let_judge,
    unless_killed,
)
from tuner.device.verify.shared_memory import host_verifier
from tuner.device.verify.verified_device import VerifiedDevice
from tuner.extensions.backends.hip.driver import HipError
from tuner.extensions.backends.hip.topology import NODES
from tuner.extensions.backends.hip.worker import HipWorker
from tuner.model.amd import amd_limits
from tuner.model.errors import DeviceError
from tuner.model.kernel import KernelSpec
from tuner.model.trial import Measurement, Status
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError

RUN_TIMEOUT_S = 10.0
TIMING_TIMEOUT_S = 60.0
# Of one call in a comparison, with the copies and the flush around it.
CALL_TIMEOUT_S = 2.0
START_TIMEOUT_S = 60.0
UNTRIED = "not run on AMD hardware yet"


class HipDevice(VerifiedDevice):
    """Run programs on one AMD GPU; raise `DeviceError` where there is none or it is in use.

    `nodes` is where Linux's driver describes its GPUs.
    """

    def __init__(
        self,
        ordinal: int,
        spec: KernelSpec,
        operators: Mapping[str, str],
        *,
        nodes: Path = NODES,
    ) -> None:
        with ExitStack() as undo:
            runner = HipRunner(ordinal, spec.deterministic, nodes)
            undo.callback(runner.close)
            try:
                self._lock = _lock(ordinal, runner.bus_id())
                undo.callback(self._lock.release)
                facts = runner.describe()
                verifier = Child(host_verifier, (spec, dict(operators)), "tune-verifier")
                undo.callback(verifier.kill)
            except (ChildDiedError, ChildTimeoutError, MemoryError) as error:
                raise DeviceError(f"the GPU's processes did not start: {error}") from error
            except HipError as error:
                raise DeviceError(error.message, remedy=error.remedy) from error
            info = DeviceInfo(
                name=f"{facts['name']} (through HIP, {UNTRIED})",
                architecture=facts["architecture"],
                compute_capability=(0, 0),
                multiprocessors=facts["multiprocessors"],
                l2_bytes=facts["cache_bytes"],
                streaming_gbps=round(facts["streaming_gbps"], 1),
                recorded=False,
                environment={"hip_runtime": facts["runtime"], "hip_device": UNTRIED},
                own_limits=amd_limits(facts["architecture"]),
            )
            super().__init__(info, spec, verifier, runner)
            undo.pop_all()

    def close(self) -> None:
        super().close()
        self._lock.release()


class HipRunner(RestartingWorker[Child]):
    """The worker process of one GPU, replaced when a kernel hangs or breaks it."""

    _called = "the worker process"

    def __init__(self, ordinal: int, deterministic: frozenset[str], nodes: Path) -> None:
        super().__init__()
        self._opened = (ordinal, deterministic, nodes)

    def bus_id(self) -> str:
        return str(self._live_worker().call("bus_id", timeout_s=START_TIMEOUT_S))

    def describe(self) -> Mapping[str, Any]:
        """Tell what the GPU is and measure its memory: nobody else may be using it."""
        facts: Mapping[str, Any] = self._live_worker().call("describe", timeout_s=START_TIMEOUT_S)
        return facts

    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        """Launch once; the GPU alone decides on the order of blocks."""
        with self._blamed_on_the_program():
            self._ready_worker().call("run_once", program, timeout_s=RUN_TIMEOUT_S)
        return ""

    def time(
        self,
        program: Program,
        policy: TimingPolicy,
        incumbent_us: float | None,
        patch: Patch,
        judge: Judge,
    ) -> Measurement:
        with self._blamed_on_the_program():
            worker = self._ready_worker()
            asked = ("time", program, policy, incumbent_us, patch)
            measurement: Measurement = worker.call(*asked, timeout_s=TIMING_TIMEOUT_S)
            let_judge(worker, 0, judge, RUN_TIMEOUT_S)
        return measurement

    def rerun(self, program: Program) -> None:
        with self._blamed_on_the_program():
            self._ready_worker().call("rerun", program, timeout_s=RUN_TIMEOUT_S)

    def compare(
        self, programs: Sequence[Program], rounds: int, patch: Patch, judge: Judge | None
    ) -> Rows:
        timeout_s = TIMING_TIMEOUT_S + CALL_TIMEOUT_S * (rounds + 1) * len(programs)
        with self._blamed_on_the_program():
            worker = self._ready_worker()
            asked = ("compare", programs, rounds, patch)
            rows: Rows = worker.call(*asked, timeout_s=timeout_s)
            for index in range(len(programs)):
                let_judge(worker, index, judge, RUN_TIMEOUT_S)
        return rows

    def _start(self) -> Child:
        with unless_killed("no process can be started on the AMD GPU"):
            return Child(HipWorker, self._opened, "tune-worker")

    def _map(self, worker: Child, arena: Arena) -> None:
        with unless_killed("the verifier's memory cannot be copied", HipError):
            worker.call("attach", arena, timeout_s=RUN_TIMEOUT_S)

    def _unmap(self, worker: Child) -> None:
        worker.call("detach", timeout_s=RUN_TIMEOUT_S)

    @contextmanager
    def _own_failures_blamed(self) -> Iterator[None]:
        try:
            yield
        except HipError as error:
            if error.sticky:
                self._drop_worker()
            raise RunFailedError(Status.LAUNCH, error.message) from error


def _lock(ordinal: int, bus_id: str) -> FileLock:
    folder = user_cache_path("kernel-tune", ensure_exists=True)
    lock = FileLock(folder / f"amd-{bus_id.replace(':', '-')}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DeviceError(
            f"AMD GPU {ordinal} is in use by another `tune`",
            remedy="wait for it, or choose another GPU with --device hip:N; two runs on one GPU "
            "would spoil each other's times",
        ) from error
    return lock
