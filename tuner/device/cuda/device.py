"""The `cuda` device: one worker process per GPU, verified and timed by the protocol."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from shutil import which
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from tuner.device.base import DeviceInfo, Outcome, Program, Rounds
from tuner.device.cuda.driver import CudaError, gpu_uuid
from tuner.device.cuda.energy import ENERGY
from tuner.device.cuda.peers import PeerHome
from tuner.device.cuda.worker import Worker
from tuner.device.inputs import NORMAL
from tuner.device.layout import Arena
from tuner.device.peers import PeerError
from tuner.device.restarting_worker import RestartingWorker, unless_killed
from tuner.device.timing import FINALS, SEARCH, TimingPolicy
from tuner.device.verify.verified_device import (
    JUDGE_TIMEOUT_S,
    RunFailedError,
    VerifiedDevice,
    fresh_seed,
)
from tuner.device.verify.verifier import cuda_judge
from tuner.model.errors import DeviceError, WorkerError
from tuner.model.hardware import architecture_for
from tuner.model.kernel import KernelSpec
from tuner.model.trial import EnergyWindow, Measurement, Status
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError

RUN_TIMEOUT_S = 10.0
TIMING_TIMEOUT_S = 60.0
# A comparison takes long where calls do: 20 of 100 ms make a replay of 2 s.
REPLAY_TIMEOUT_S = 2.0
# Beside the window itself: to settle, to wait for two ticks, and for calls of seconds to end.
ENERGY_TIMEOUT_S = 60.0
# SIGKILL may have come from whoever is short of memory: a second one is the program's fault.
ENERGY_ATTEMPTS = 2
# What a peer's first call in a process may take on top: PyTorch is imported, torch.compile and
# Triton compile, FlashInfer builds an extension with nvcc where its cache has none.
PEER_WARM_UP_S = 300.0
# For a worker process that ends by itself.
LEAVING_S = 2.0
# Said where a kernel failed in a run that began before its inputs were written.
EARLY = (
    "; in this run the launch before had not ended: reading or writing before griddepcontrol.wait "
    "would explain it (docs/trust.md)"
)


class CudaDevice(VerifiedDevice):
    """Run programs on one NVIDIA GPU, which no other `tune` uses meanwhile.

    The judge and the worker share the GPU. Raises `DeviceError` where it is in use or does not
    answer.
    """

    def __init__(self, ordinal: int, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        self.ordinal = ordinal
        uuid = gpu_uuid(ordinal)
        with ExitStack() as undo:
            self._lock = _lock(ordinal, uuid)
            undo.callback(self._lock.release)
            try:
                judge = Child(cuda_judge, (ordinal, spec, dict(operators)), "tune-judge")
                undo.callback(judge.kill)
                runner = CudaRunner(ordinal, PeerHome(spec.reference, dict(operators)))
                undo.callback(runner.close)
                facts = runner.describe()
                streaming = judge.call("streaming_gbps", timeout_s=JUDGE_TIMEOUT_S)
            except (ChildDiedError, ChildTimeoutError, MemoryError) as error:
                raise DeviceError(f"the GPU's processes did not start: {error}") from error
            self._metered = runner
            super().__init__(_info(facts, streaming, _gpu_state(uuid)), spec, judge, runner)
            undo.pop_all()

    def require_energy(self) -> None:
        """Raise `DeviceError` where the energy counter of this GPU cannot be read."""
        self._metered.require_energy()

    def idle_energy(self, *, seconds: float) -> EnergyWindow:
        """Read the energy of the GPU with both processes' contexts on it, but without work."""
        return self._metered.idle_energy(seconds)

    def energy(self, program: Program, *, seconds: float) -> EnergyWindow | Outcome:
        """Read the energy over replays of a verified program, and judge its next results."""
        for attempt in range(ENERGY_ATTEMPTS):
            try:
                return self._energy(program, seconds)
            except RunFailedError as error:
                failed = Outcome(error.status, str(error))
                if not error.killed or attempt:
                    break
            except MemoryError as error:
                raise DeviceError(
                    f"not enough memory to measure the energy on {program.workload}: {error}",
                    remedy="leave the workload out, or free the memory",
                ) from error
        return failed

    def _energy(self, program: Program, seconds: float) -> EnergyWindow | Outcome:
        self._enter(program.workload)
        self._ask_judge("prepare", program.workload, NORMAL, fresh_seed())
        window = self._metered.energy(program, seconds)
        fault = self._fault(program)
        return Outcome(Status.INCORRECT, fault) if fault else window

    def close(self) -> None:
        """End both processes and release the GPU for others."""
        super().close()
        self._lock.release()


class CudaRunner(RestartingWorker[Child]):
    """The worker process of one GPU, replaced when a kernel hangs or breaks it."""

    _called = "the worker process"

    def __init__(self, ordinal: int, home: PeerHome | None = None) -> None:
        super().__init__()
        self._ordinal, self._home = ordinal, home

    def close(self) -> None:
        """End the process; what peers import leaves semaphores behind where it is killed."""
        worker, self._closed = self._worker, True
        if self._home is not None and worker is not None:
            worker.leave(LEAVING_S)
        super().close()

    def describe(self) -> Mapping[str, Any]:
        """Name the GPU and its numbers."""
        facts: Mapping[str, Any] = self._live_worker().call("describe", timeout_s=RUN_TIMEOUT_S)
        return facts

    def run_once(self, program: Program, order: int) -> str:
        """Launch the program once; the GPU alone decides on the order of blocks and threads.

        All but the first time a programmatic launch begins before its inputs are written.
        """
        # The protocol's order says nothing to a GPU but whether this is the first run.
        late = order > 0 and any(launch.pdl for launch in program.launches[:1])
        try:
            with self._blamed_on_the_program():
                limit_s = _limit_s(RUN_TIMEOUT_S, program)
                worker = self._ready_worker()
                overlapped = worker.call("run_once", program, late=late, timeout_s=limit_s)
        except RunFailedError as error:
            if not late:
                raise
            raise RunFailedError(error.status, f"{error}{EARLY}", killed=error.killed) from error
        return EARLY if overlapped else ""

    def time(
        self, program: Program, policy: TimingPolicy, incumbent_us: float | None
    ) -> Measurement:
        """Time the program over rotating buffers."""
        with self._blamed_on_the_program():
            measurement: Measurement = self._ready_worker().call(
                *("time", program, policy, incumbent_us),
                timeout_s=_limit_s(TIMING_TIMEOUT_S, program),
            )
        return measurement

    def rerun(self, program: Program, *, thorough: bool) -> None:
        """Run the program once more where it was timed."""
        policy = FINALS if thorough else SEARCH
        with self._blamed_on_the_program():
            limit_s = _limit_s(RUN_TIMEOUT_S, program)
            self._ready_worker().call("rerun", program, policy, timeout_s=limit_s)

    def compare(self, programs: Sequence[Program], rounds: int) -> Rounds:
        """Time programs in alternation; any failure ends the worker."""
        replays_s = REPLAY_TIMEOUT_S * rounds * (len(programs) + 1)
        timeout_s = _limit_s(TIMING_TIMEOUT_S * 5 + replays_s, *programs)
        try:
            with self._blamed_on_the_program():
                rows, isolated = self._ready_worker().call(
                    "compare", programs, FINALS, rounds, fresh_seed(), timeout_s=timeout_s
                )
        except RunFailedError:
            self._drop_worker()
            raise
        return Rounds(tuple(tuple(row) for row in rows), paired=True, isolated_us=tuple(isolated))

    def require_energy(self) -> None:
        """Raise `DeviceError` where the energy counter cannot be read."""
        with _blamed_on_the_worker():
            self._live_worker().call("require_energy", timeout_s=RUN_TIMEOUT_S)

    def idle_energy(self, seconds: float) -> EnergyWindow:
        """Read the energy over a time without work."""
        with _blamed_on_the_worker():
            window: EnergyWindow = self._live_worker().call(
                "idle_energy", seconds, timeout_s=ENERGY_TIMEOUT_S + seconds
            )
        return window

    def energy(self, program: Program, seconds: float) -> EnergyWindow:
        """Read the energy over replays of a program."""
        with self._blamed_on_the_program():
            window: EnergyWindow = self._ready_worker().call(
                "energy", program, ENERGY, seconds, timeout_s=ENERGY_TIMEOUT_S + seconds
            )
        return window

    def _start(self) -> Child:
        failed = f"no process can be started on GPU {self._ordinal}"
        remedy = "nvidia-smi tells whether the GPU still works"
        with unless_killed(failed, CudaError, remedy=remedy):
            return Child(Worker, (self._ordinal, self._home), "tune-worker")

    def _map(self, worker: Child, arena: Arena) -> None:
        try:
            with unless_killed("the judge's memory cannot be mapped", CudaError):
                worker.call("attach", arena, timeout_s=RUN_TIMEOUT_S)
        except (ChildDiedError, WorkerError):
            self._drop_worker()
            raise

    def _unmap(self, worker: Child) -> None:
        worker.call("detach", timeout_s=RUN_TIMEOUT_S)

    @contextmanager
    def _own_failures_blamed(self) -> Iterator[None]:
        try:
            yield
        except CudaError as error:
            if error.sticky:
                self._drop_worker()
            raise RunFailedError(Status.LAUNCH, error.message) from error
        except PeerError as error:
            if error.sticky:
                self._drop_worker()
            raise RunFailedError(error.status, error.message) from error


def _limit_s(seconds: float, *programs: Program) -> float:
    """Add the time in which peers get ready, in case this process has not met them yet."""
    return seconds + PEER_WARM_UP_S * sum(bool(program.peer) for program in programs)


@contextmanager
def _blamed_on_the_worker() -> Iterator[None]:
    """Nothing of a candidate ran: the process itself is at fault."""
    try:
        yield
    except (ChildDiedError, ChildTimeoutError) as error:
        raise DeviceError(f"the GPU's process gave no energy: {error}") from error


def _info(facts: Mapping[str, Any], streaming_gbps: float, state: Mapping[str, str]) -> DeviceInfo:
    capability = (facts["major"], facts["minor"])
    return DeviceInfo(
        name=facts["name"],
        architecture=architecture_for(capability),
        compute_capability=capability,
        multiprocessors=facts["multiprocessors"],
        l2_bytes=facts["l2_bytes"],
        streaming_gbps=round(streaming_gbps, 1),
        recorded=False,
        environment={"cuda_driver_api": str(facts["driver"]), **state},
    )


def _lock(ordinal: int, uuid: str) -> FileLock:
    folder = user_cache_path("kernel-tune", ensure_exists=True)
    lock = FileLock(folder / f"{uuid}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DeviceError(
            f"GPU {ordinal} is in use by another `tune`",
            remedy="wait for it, or choose another GPU with --device cuda:N; two runs on one GPU "
            "would spoil each other's times",
        ) from error
    return lock


def _gpu_state(uuid: str) -> dict[str, str]:
    """Ask nvidia-smi for what the driver API doesn't say; empty where it gives no answer."""
    program = which("nvidia-smi")
    if program is None:
        return {}
    fields = ("driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i"]
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed command
            [*command, uuid], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in answer.stdout.split(",")]
    return dict(zip((f"gpu_{field}" for field in fields), values, strict=False))
