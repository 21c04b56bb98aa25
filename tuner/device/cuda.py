"""The `cuda` device: one worker process per GPU, verified and timed by the protocol."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from shutil import which
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from tuner.device.base import DeviceInfo, Outcome, Program, Rounds
from tuner.device.cuda_driver import CudaError, gpu_uuid
from tuner.device.inputs import FILLS
from tuner.device.judge import cuda_judge
from tuner.device.judging import fresh_seed, judging, merged
from tuner.device.layout import lay_out
from tuner.device.processes import Child, ChildDiedError, ChildTimeoutError
from tuner.device.timing import FINALS, SEARCH, WALL_RATIO
from tuner.device.worker import Timed, Worker
from tuner.errors import DeviceError, WorkerError
from tuner.hardware import architecture_for
from tuner.kernel import KernelSpec, Workload
from tuner.trial import Correctness, Measurement, Status

RUN_TIMEOUT_S = 10.0
TIMING_TIMEOUT_S = 60.0
JUDGE_TIMEOUT_S = 120.0
# A comparison takes long where calls do: 20 of 100 ms make a replay of 2 s.
REPLAY_TIMEOUT_S = 2.0


class CudaDevice:
    """Run programs on one NVIDIA GPU; see `Device` for the contract.

    Two child processes share the GPU: the judge owns inputs, reference and verdict; the worker
    runs candidate code, and is killed and replaced when that code crashes or hangs.
    """

    def __init__(self, ordinal: int, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        self._ordinal, self._spec = ordinal, spec
        self._worker: Child | None = None
        self._attached: Workload | None = None
        self._opened: Workload | None = None
        self._arena: Any = None
        uuid = gpu_uuid(ordinal)
        with ExitStack() as undo:
            self._lock = _lock(ordinal, uuid)
            undo.callback(self._lock.release)
            try:
                self._judge = Child(cuda_judge, (ordinal, spec, dict(operators)), "tune-judge")
                undo.callback(self._judge.kill)
                undo.callback(self._drop_worker)
                facts = self._live_worker().call("describe", timeout_s=RUN_TIMEOUT_S)
                streaming = self._judge.call("streaming_gbps", timeout_s=JUDGE_TIMEOUT_S)
            except (ChildDiedError, ChildTimeoutError, MemoryError) as error:
                raise DeviceError(f"the GPU's processes did not start: {error}") from error
            self.info = _info(facts, streaming, _gpu_state(uuid))
            undo.pop_all()

    def run(
        self, program: Program, *, incumbent_us: float | None = None, thorough: bool = False
    ) -> Outcome:
        """Verify, then time; a crash or a hang costs this outcome and a new worker."""
        policy = FINALS if thorough else SEARCH
        try:
            self._enter(program.workload)
            correctness = self._verify(program, thorough)
            if not correctness.passed:
                return Outcome(Status.WRONG, correctness.reason, correctness=correctness)
            timed: Timed = self._live_worker().call(
                "time", program, policy, incumbent_us, timeout_s=TIMING_TIMEOUT_S
            )
            if self._arena.layout.with_role("inout"):
                # Timing applied it to its own results over and over: judge one more call instead.
                self._ask_judge("poison")
                self._live_worker().call("run_once", program, timeout_s=RUN_TIMEOUT_S)
            after = self._ask_judge("check")
        except ChildTimeoutError as error:
            self._drop_worker()
            return Outcome(Status.TIMEOUT, str(error))
        except ChildDiedError as error:
            self._drop_worker()
            return Outcome(Status.LAUNCH, f"the worker process died (exit code {error})")
        except CudaError as error:
            if error.sticky:
                self._drop_worker()
            return Outcome(Status.LAUNCH, error.message)
        except MemoryError as error:
            raise _too_large(program.workload, error) from error
        return _outcome(timed, correctness, after)

    def compare(self, programs: Sequence[Program], *, rounds: int) -> Rounds:
        """Time verified programs interleaved in the worker."""
        workload = programs[0].workload
        replays_s = REPLAY_TIMEOUT_S * rounds * (len(programs) + 1)
        timeout_s = TIMING_TIMEOUT_S * 5 + replays_s
        try:
            self._enter(workload)
            self._ask_judge("prepare", workload, "normal", fresh_seed())
            rows, isolated = self._live_worker().call(
                "compare", programs, FINALS, rounds, fresh_seed(), timeout_s=timeout_s
            )
        except MemoryError as error:
            raise _too_large(workload, error) from error
        except (ChildTimeoutError, ChildDiedError, CudaError) as error:
            self._drop_worker()
            raise DeviceError(f"a verified program failed when timed again: {error}") from error
        return Rounds(tuple(tuple(row) for row in rows), paired=True, isolated_us=tuple(isolated))

    def close(self) -> None:
        """End both processes and release the GPU for others."""
        self._drop_worker()
        self._judge.kill()
        self._lock.release()

    def _verify(self, program: Program, thorough: bool) -> Correctness:
        """Check the fills, `normal` last so that its inputs are the ones that are timed."""
        others = FILLS[1:] if thorough else (secrets.choice(FILLS[1:]),)
        verdicts = []
        for fill in (*others, FILLS[0]):
            verdicts.append(self._check(program, fill))
            if not verdicts[-1].passed:
                return verdicts[-1]
        if thorough:
            self._ask_judge("poison")
            self._live_worker().call("run_once", program, timeout_s=RUN_TIMEOUT_S)
            again = self._ask_judge("check", False)
            if not again.passed:
                return Correctness(False, again.fills, again.errors, again.reason)
        return merged(verdicts)

    def _check(self, program: Program, fill: str) -> Correctness:
        self._ask_judge("prepare", program.workload, fill, fresh_seed())
        with judging():
            self._judge.send("compute_reference")
        try:
            self._live_worker().call("run_once", program, timeout_s=RUN_TIMEOUT_S)
        finally:
            with judging():
                self._judge.receive(JUDGE_TIMEOUT_S)
        verdict: Correctness = self._ask_judge("check")
        return verdict

    def _ask_judge(self, method: str, *arguments: Any) -> Any:
        with judging():
            return self._judge.call(method, *arguments, timeout_s=JUDGE_TIMEOUT_S)

    def _enter(self, workload: Workload) -> None:
        """Make both processes ready for one workload."""
        if self._opened != workload:
            self._drop_arena()
            layout = lay_out(self._spec, workload.values)
            self._arena = self._ask_judge("open_arena", workload, layout)
            self._ask_judge("prepare", workload, "normal", fresh_seed())
            self._opened = workload
        if self._attached != workload:
            self._live_worker().call("attach", self._arena, timeout_s=RUN_TIMEOUT_S)
            self._attached = workload

    def _drop_arena(self) -> None:
        # The worker lets go first: the judge may not free what another process has mapped.
        if self._worker is not None and self._attached is not None:
            try:
                self._worker.call("detach", timeout_s=RUN_TIMEOUT_S)
            except (ChildTimeoutError, ChildDiedError, CudaError):
                self._drop_worker()  # nothing ran in it: the next program is not to blame
        self._attached = self._opened = None

    def _live_worker(self) -> Child:
        if self._worker is None:
            try:
                self._worker = Child(Worker, (self._ordinal,), "tune-worker")
            except (ChildTimeoutError, ChildDiedError, CudaError) as error:
                raise WorkerError(
                    f"no process can be started on GPU {self._ordinal}: {error}",
                    remedy="nvidia-smi tells whether the GPU still works",
                ) from error
            if self._opened is not None:
                self._worker.call("attach", self._arena, timeout_s=RUN_TIMEOUT_S)
                self._attached = self._opened
        return self._worker

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = self._attached = None


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


def _outcome(timed: Timed, before: Correctness, after: Correctness) -> Outcome:
    measurement = Measurement(
        times_us=timed.times_us,
        calls_per_replay=timed.calls_per_replay,
        buffer_sets=timed.buffer_sets,
        stopped_early=timed.stopped_early,
        wall_ratio=timed.wall_ratio,
    )
    if not after.passed:
        return Outcome(Status.WRONG, f"after timing, {after.reason}", correctness=after)
    if timed.wall_ratio > WALL_RATIO:
        return Outcome(
            Status.WRONG,
            f"wall time is {timed.wall_ratio:.2f} times the event time (at most {WALL_RATIO}): "
            "work runs outside the timed stream",
            measurement,
            before,
        )
    return Outcome(Status.CORRECT, "", measurement, before)


def _too_large(workload: Workload, error: MemoryError) -> DeviceError:
    return DeviceError(
        f"not enough memory for {workload}: {error}",
        remedy="leave the workload out, or free the GPU: checking it takes its arguments twice "
        "and float64 copies of them",
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
