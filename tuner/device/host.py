"""The `host` device: kernels run on the CPU, verified by the same judge as on a GPU."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuner.device.base import DeviceInfo, Outcome, Program, Rounds
from tuner.device.host_memory import host_judge
from tuner.device.host_worker import Code, HostRunError, HostTimed, HostWorker
from tuner.device.inputs import FILLS
from tuner.device.judging import fresh_seed, judging, merged
from tuner.device.layout import lay_out
from tuner.device.processes import Child, ChildDiedError, ChildTimeoutError
from tuner.device.timing import FINALS, SEARCH
from tuner.errors import DeviceError, WorkerError
from tuner.hardware import architecture_for
from tuner.kernel import KernelSpec, Workload
from tuner.trial import Correctness, Measurement, Status

# Whose limits on threads, shared memory and grids a launch must keep.
COMPUTE_CAPABILITY = (9, 0)
JUDGE_TIMEOUT_S = 120.0
TIMING_TIMEOUT_S = 60.0
# What the worker may take beyond the kernel's own limit, which it watches itself.
GRACE_S = 10.0


class HostDevice:
    """Run programs of `HostCompiler` on the CPU; see `Device` for the contract.

    A judge process owns inputs, reference and verdict; a worker process runs candidate code, and
    is killed and replaced when that code crashes or runs over `run_timeout_s`. Times are the
    CPU's own, by the wall clock, with one block at a time on one core: never compare them with a
    GPU's.
    """

    def __init__(
        self, spec: KernelSpec, operators: Mapping[str, str], *, run_timeout_s: float = 10.0
    ) -> None:
        self._spec, self._run_timeout_s = spec, run_timeout_s
        self._worker: Child | None = None
        self._attached: Workload | None = None
        self._opened: Workload | None = None
        self._arena: Any = None
        try:
            self._judge = Child(host_judge, (spec, dict(operators)), "tune-judge")
        except (ChildDiedError, ChildTimeoutError) as error:
            raise DeviceError(f"the judging process did not start: {error}") from error
        try:
            streaming = self._live_worker().call("streaming_gbps", timeout_s=GRACE_S)
        except BaseException:
            self.close()
            raise
        self.info = _info(streaming)

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
            timed: HostTimed = self._live_worker().call(
                "time", program, policy, incumbent_us, timeout_s=TIMING_TIMEOUT_S
            )
            if self._arena.layout.with_role("inout"):
                # Timing applied it to its own results over and over: judge one more call instead.
                self._ask_judge("poison")
                self._run_once(program, backwards=False)
            after = self._ask_judge("check")
        except ChildTimeoutError as error:
            self._drop_worker()
            return Outcome(Status.TIMEOUT, str(error))
        except ChildDiedError as error:
            self._drop_worker()
            return Outcome(Status.LAUNCH, f"the worker process died (exit code {error})")
        except HostRunError as error:
            if error.code in (Code.FAULT, Code.TIMEOUT):
                self._drop_worker()
            timed_out = error.code is Code.TIMEOUT
            reason = f"{error.message} ({self._run_timeout_s:g} s)" if timed_out else error.message
            return Outcome(Status.TIMEOUT if timed_out else Status.LAUNCH, reason)
        if not after.passed:
            return Outcome(Status.WRONG, f"after timing, {after.reason}", correctness=after)
        measurement = Measurement(timed.times_us, 1, 1, timed.stopped_early)
        return Outcome(Status.CORRECT, "", measurement, correctness)

    def compare(self, programs: Sequence[Program], *, rounds: int) -> Rounds:
        """Time verified programs interleaved in the worker."""
        workload = programs[0].workload
        timeout_s = GRACE_S + self._run_timeout_s * (rounds + 1) * len(programs)
        try:
            self._enter(workload)
            self._ask_judge("prepare", workload, "normal", fresh_seed())
            rows = self._live_worker().call(
                "compare", programs, rounds, fresh_seed(), timeout_s=timeout_s
            )
        except (ChildTimeoutError, ChildDiedError, HostRunError) as error:
            self._drop_worker()
            raise DeviceError(f"a verified program failed when timed again: {error}") from error
        isolated = tuple(None for _ in programs)
        return Rounds(tuple(tuple(row) for row in rows), paired=True, isolated_us=isolated)

    def close(self) -> None:
        """End both processes."""
        self._drop_worker()
        with suppress(ChildTimeoutError, ChildDiedError):  # shared memory outlives a killed judge
            self._judge.call("close_arena", timeout_s=GRACE_S)
        self._judge.kill()

    def _verify(self, program: Program, thorough: bool) -> Correctness:
        """Check the fills, blocks and threads in either order: a race shows as a difference."""
        others = FILLS[1:] if thorough else (secrets.choice(FILLS[1:]),)
        verdicts: list[Correctness] = []
        for index, fill in enumerate((*others, FILLS[0])):
            verdicts.append(self._check(program, fill, backwards=index % 2 == 0))
            if not verdicts[-1].passed:
                return verdicts[-1]
        if thorough:
            self._ask_judge("poison")
            self._run_once(program, backwards=len(verdicts) % 2 == 1)
            again: Correctness = self._ask_judge("check", False)
            if not again.passed:
                return again
        return merged(verdicts)

    def _check(self, program: Program, fill: str, backwards: bool) -> Correctness:
        self._ask_judge("prepare", program.workload, fill, fresh_seed())
        with judging():
            self._judge.send("compute_reference")
        try:
            self._run_once(program, backwards)
        finally:
            with judging():
                self._judge.receive(JUDGE_TIMEOUT_S)
        verdict: Correctness = self._ask_judge("check")
        return verdict

    def _run_once(self, program: Program, backwards: bool) -> None:
        timeout_s = self._run_timeout_s * len(program.launches) + GRACE_S
        self._live_worker().call("run_once", program, backwards, timeout_s=timeout_s)

    def _ask_judge(self, method: str, *arguments: Any) -> Any:
        with judging():
            return self._judge.call(method, *arguments, timeout_s=JUDGE_TIMEOUT_S)

    def _enter(self, workload: Workload) -> None:
        """Make both processes ready for one workload."""
        if self._opened != workload:
            self._attached = self._opened = None
            layout = lay_out(self._spec, workload.values)
            self._arena = self._ask_judge("open_arena", workload, layout)
            self._ask_judge("prepare", workload, "normal", fresh_seed())
            self._opened = workload
        if self._attached != workload:
            self._live_worker().call("attach", self._arena, timeout_s=GRACE_S)
            self._attached = workload

    def _live_worker(self) -> Child:
        if self._worker is None:
            try:
                self._worker = Child(HostWorker, (self._run_timeout_s,), "tune-worker")
            except (ChildTimeoutError, ChildDiedError) as error:
                raise WorkerError(f"no process can be started to run kernels: {error}") from error
            if self._opened is not None:
                self._worker.call("attach", self._arena, timeout_s=GRACE_S)
                self._attached = self._opened
        return self._worker

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = self._attached = None


def _info(streaming_gbps: float) -> DeviceInfo:
    return DeviceInfo(
        name=f"host CPU ({_cpu_name()})",
        architecture=architecture_for(COMPUTE_CAPABILITY),
        compute_capability=COMPUTE_CAPABILITY,
        multiprocessors=len(os.sched_getaffinity(0)),
        l2_bytes=_l2_bytes(),
        streaming_gbps=round(streaming_gbps, 1),
        recorded=False,
        environment={"host_machine": platform.machine(), "host_system": platform.release()},
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _l2_bytes() -> int:
    size = os.sysconf("SC_LEVEL2_CACHE_SIZE") if "SC_LEVEL2_CACHE_SIZE" in os.sysconf_names else 0
    return size if size > 0 else 1 << 20
