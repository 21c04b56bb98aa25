"""The `opencl` device: kernels run by any OpenCL platform, verified as on every other device."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.compiler.cache import Cache
from tuner.device.base import DeviceInfo, Program
from tuner.device.layout import ALIGNMENT, Arena, Patch
from tuner.device.timing import FINALS, SEARCH, TimingPolicy
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
from tuner.extensions.backends.opencl.compiler import OpenclPool
from tuner.extensions.backends.opencl.worker import OpenclError, OpenclWorker, require_aligned
from tuner.model.errors import DeviceError
from tuner.model.hardware import DeviceLimits
from tuner.model.kernel import KernelSpec
from tuner.model.trial import Measurement, Status
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError

# The first run of a program may compile it for its size of work-group.
RUN_TIMEOUT_S = 20.0
TIMING_TIMEOUT_S = 60.0
ATTACH_TIMEOUT_S = 30.0
# Of a comparison, a round of a program: its copies are made and read again.
ROUND_TIMEOUT_S = 10.0
# A CPU's times vary by percents with what else runs there: the finals compare what is near.
_ON_CPU = replace(
    SEARCH,
    min_replay_us=100.0,
    min_samples=3,
    max_samples=7,
    target_error=0.02,
    budget_s=0.1,
    slower_margin=0.3,
)


class OpenclDevice(VerifiedDevice):
    """Run programs of `OpenclPool` on the device of a number; times are those of that device."""

    def __init__(
        self,
        number: int,
        spec: KernelSpec,
        operators: Mapping[str, str],
        *,
        run_timeout_s: float = RUN_TIMEOUT_S,
    ) -> None:
        with ExitStack() as undo:
            try:
                runner = OpenclRunner(number, spec.deterministic, run_timeout_s)
                undo.callback(runner.close)
                facts = runner.describe()
                verifier = Child(host_verifier, (spec, dict(operators)), "tune-verifier")
            except (ChildDiedError, ChildTimeoutError) as error:
                raise DeviceError(f"the processes did not start: {error}") from error
            undo.callback(verifier.kill)
            self._number, self._described, self._opencl = number, facts["device"], runner
            super().__init__(device_info(facts), spec, verifier, runner)
            undo.pop_all()

    def compiler(self, jobs: int | None) -> OpenclPool:
        pool = OpenclPool(self._number, jobs, cache=Cache(), ahead=self._described.is_pocl)
        if self._described.is_cpu:
            self._opencl.pauses = pool.paused
        return pool


class OpenclRunner(RestartingWorker[Child]):
    """The worker process of one OpenCL device, replaced when a kernel hangs or breaks it."""

    _called = "the process that runs kernels"

    def __init__(
        self, number: int, deterministic: frozenset[str], run_timeout_s: float = RUN_TIMEOUT_S
    ) -> None:
        super().__init__()
        self._number, self._deterministic = number, deterministic
        self._run_timeout_s = run_timeout_s
        self._on_cpu = False
        # A compiler beside it would take a CPU's cores from what is timed on them.
        self.pauses: Callable[[], AbstractContextManager[None]] = nullcontext
        # What one process has compiled another need not: a worker that died is soon at work again.
        self._cache = tempfile.TemporaryDirectory(prefix="tune-opencl-")

    def describe(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self._live_worker().call("describe", timeout_s=TIMING_TIMEOUT_S)
        self._on_cpu = facts["device"].is_cpu
        return facts

    def close(self) -> None:
        super().close()
        self._cache.cleanup()

    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        """Run it once; in which order work-groups run is the platform's to choose."""
        with self._blamed_on_the_program():
            self._ready_worker().call("run_once", program, timeout_s=self._run_timeout_s)
        return ""

    def time(
        self,
        program: Program,
        policy: TimingPolicy,
        incumbent_us: float | None,
        patch: Patch,
        judge: Judge,
    ) -> Measurement:
        policy = _ON_CPU if self._on_cpu else policy
        with self._blamed_on_the_program():
            worker = self._ready_worker()
            with self.pauses():
                measurement: Measurement = worker.call(
                    *("time", program, policy, incumbent_us, patch),
                    timeout_s=self._run_timeout_s + policy.budget_s,
                )
            let_judge(worker, 0, judge, self._run_timeout_s)
        return measurement

    def rerun(self, program: Program) -> None:
        with self._blamed_on_the_program(), self.pauses():
            self._ready_worker().call("rerun", program, timeout_s=self._run_timeout_s)

    def compare(
        self, programs: Sequence[Program], rounds: int, patch: Patch, judge: Judge | None
    ) -> Rows:
        timeout_s = TIMING_TIMEOUT_S + ROUND_TIMEOUT_S * rounds * len(programs)
        with self._blamed_on_the_program():
            worker = self._ready_worker()
            with self.pauses():
                rows: list[list[float]] = worker.call(
                    "compare", programs, FINALS, rounds, patch, timeout_s=timeout_s
                )
            for index in range(len(programs)):
                let_judge(worker, index, judge, self._run_timeout_s)
        return [tuple(row) for row in rows]

    def _start(self) -> Child:
        with unless_killed(f"no process can be started on OpenCL device {self._number}"):
            opened = (self._number, Path(self._cache.name), self._deterministic)
            return Child(OpenclWorker, opened, "tune-worker")

    def _map(self, worker: Child, arena: Arena) -> None:
        with unless_killed("the verifier's memory cannot be shared", OpenclError):
            worker.call("attach", arena, timeout_s=ATTACH_TIMEOUT_S)

    def _fit(self, worker: Child, arena: Arena) -> None:
        worker.call("fit", arena.layout, timeout_s=ATTACH_TIMEOUT_S)

    def _unmap(self, worker: Child) -> None:
        worker.call("detach", timeout_s=ATTACH_TIMEOUT_S)

    @contextmanager
    def _own_failures_blamed(self) -> Iterator[None]:
        try:
            yield
        except OpenclError as error:
            if error.sticky:
                self._drop_worker()
            raise RunFailedError(Status.LAUNCH, error.message) from error


def device_info(facts: Mapping[str, Any]) -> DeviceInfo:
    """Describe a device by what its worker has found out."""
    device = facts["device"]
    require_aligned(facts["alignment_bytes"], ALIGNMENT, device.title)
    limits = DeviceLimits(
        compute_capability=(0, 0),
        warps_per_multiprocessor=max(1, facts["max_threads"] // facts["threads_per_warp"]),
        blocks_per_multiprocessor=1,
        shared_bytes_per_multiprocessor=facts["local_bytes"],
        shared_bytes_per_block=facts["local_bytes"],
        reserved_shared_bytes=0,
        shared_unit_bytes=1,
        threads_per_block=facts["max_threads"],
        threads_per_warp=facts["threads_per_warp"],
        block_dimensions=facts["max_sizes"],
        grid_dimensions=(2**31 - 1,) * 3,
    )
    return DeviceInfo(
        name=device.title,
        architecture="opencl",
        compute_capability=limits.compute_capability,
        multiprocessors=device.compute_units,
        l2_bytes=facts["cache_bytes"],
        streaming_gbps=round(facts["streaming_gbps"], 1),
        recorded=False,
        environment={"opencl": device.version, "opencl_c": facts["c_version"]},
        own_limits=limits,
    )
