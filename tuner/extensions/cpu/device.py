"""The `host` device: kernels run on the CPU, verified by the same verifier as on a GPU."""

from __future__ import annotations

import math
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path

import numpy as np

from tuner.compiler.base import Compiler
from tuner.compiler.cache import Cache
from tuner.device.base import Device, DeviceInfo, Outcome, Program, amd_info, verify_all
from tuner.device.families import Listed
from tuner.device.layout import UNCHANGED, Arena, Patch, fill_byte
from tuner.device.reference import PeerError
from tuner.device.select import unknown_device
from tuner.device.timing import SampledCalls, TimingPolicy, hopeless, should_stop
from tuner.device.verify.outputs import TIMES
from tuner.device.verify.restarting_worker import (
    Judge,
    RestartingWorker,
    Rows,
    RunFailedError,
    raise_worker_errors,
)
from tuner.device.verify.shared_memory import available_bytes, host_verifier
from tuner.device.verify.verified_device import VerifiedDevice, fresh_seed
from tuner.extensions.cpu.callables import CallableWorker
from tuner.extensions.cpu.child import LaunchEnd
from tuner.extensions.cpu.compiler import SANITIZERS, HostCompiler, preload, sanitizer_finding
from tuner.extensions.cpu.worker import HostRunError, HostWorker
from tuner.model.errors import DeviceError
from tuner.model.hardware import DEFAULT_TARGET, architecture_for
from tuner.model.kernel import KernelSpec
from tuner.model.languages import CUDA, HIP, Language
from tuner.model.trial import Measurement, Status
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Evaluator, evaluator_of
from tuner.tuning.verification import LARGEST_HOST_BYTES, Watch

# Whose limits on threads, shared memory and grids a launch must keep.
COMPUTE_CAPABILITY = (9, 0)
RUN_TIMEOUT_S = 10.0
# Of what a kernel's process wrote, in a reason.
LOG_LETTERS = 200
# Ascending, descending and random.
ORDERS = 3
# A check runs a kernel up to so many times, and so does what stands for timed calls.
CHECK_CALLS, RERUN_CALLS = 3, 12
# For the streaming rate: twice the caches, within what can be touched in a tenth of a second.
LEAST_PROBE_BYTES, MOST_PROBE_BYTES = 32 << 20, 128 << 20
PROBE_REPEATS = 3
SANITIZED_TIMEOUT_S = 10.0


class HostDevice(VerifiedDevice):
    """Run programs of `HostCompiler` on the CPU.

    Times are the CPU's own, by the wall clock, with one block at a time on one core: never
    compare them with a GPU's. Programs that were compiled with sanitizers need the `environment`
    that loads those; `finding` makes a reason of what such a program's process wrote at its end,
    empty where there is none. Their times say nothing.
    """

    capabilities = VerifiedDevice.capabilities - {"machine_code"}

    def __init__(
        self,
        spec: KernelSpec,
        operators: Mapping[str, str],
        *,
        run_timeout_s: float = RUN_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
        finding: Callable[[str], str] | None = None,
    ) -> None:
        with ExitStack() as undo:
            try:
                verifier = Child(host_verifier, (spec, dict(operators)), "tune-verifier")
            except (ChildDiedError, ChildTimeoutError) as error:
                raise DeviceError(f"the verifying process did not start: {error}") from error
            undo.callback(verifier.kill)
            called = (spec.source, dict(operators)) if spec.is_callable else None
            runner = HostRunner(run_timeout_s, environment, finding, spec.deterministic, called)
            undo.callback(runner.close)
            self._own_runner = runner
            super().__init__(host_info(runner.limits, spec.language), spec, verifier, runner)
            undo.pop_all()

    @contextmanager
    def limiting_runs(self, seconds: float) -> Iterator[None]:
        before = self._own_runner.limit_runs(seconds)
        try:
            yield
        finally:
            self._own_runner.limit_runs(before)


class HostRunner(RestartingWorker[HostWorker | CallableWorker]):
    """The server that runs programs on the CPU, replaced should it fail.

    `deterministic` names the outputs whose bits may not differ between timed calls. `called` is
    the file of a kernel in Python, and the operator's choices that it is called with.
    """

    _called = "the process that starts kernels"
    by_pages = True

    def __init__(
        self,
        run_timeout_s: float,
        environment: Mapping[str, str] | None = None,
        finding: Callable[[str], str] | None = None,
        deterministic: frozenset[str] = frozenset(),
        called: tuple[Path, Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__()
        self._run_timeout_s, self._environment = run_timeout_s, dict(environment or {})
        self._finding, self._deterministic, self._python = finding, deterministic, called
        worker = self._live_worker()
        self.limits, self.noise_us = worker.limits, worker.noise_us

    def limit_runs(self, seconds: float) -> float:
        """Allow a launch so long from here on; return what it was before."""
        before, self._run_timeout_s = self._run_timeout_s, seconds
        worker = self._live_worker()
        if isinstance(worker, HostWorker):
            worker.launch_timeout_s = seconds
        return before

    def orders(self) -> Iterator[int]:
        first = secrets.randbelow(ORDERS)
        return (draw_order(turn) for turn in count(first))

    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        """Run the program on the arena a few times, and once in the order that is asked for.

        So a check, too, may be the first call on these inputs or one of many.
        """
        with self._blamed_on_the_program():
            worker = self._renew_beside_others(program)
            for one in (*_some_orders(CHECK_CALLS), order):
                worker.run(program, one, fill_byte(nan=nan))
            worker.memory.show()
        return ""

    def time(
        self,
        program: Program,
        policy: TimingPolicy,
        incumbent_us: float | None,
        patch: Patch,
        judge: Judge,
    ) -> Measurement:
        """Time the program by the server's wall clock.

        A call that leaves other bits than one before is the last: the verifier sees its output.
        """
        calls = _Calls(patch)
        # How many there are at most nobody is to foresee either.
        most = policy.max_samples - secrets.randbelow(1 + policy.max_samples // 4)
        policy = replace(policy, max_samples=max(policy.min_samples, most))
        times: list[float] = []
        with self._blamed_on_the_program():
            worker = self._renew_memory(program, patch=patch)
            calls.run(worker, program)  # the first call of a process takes longer
            started = time.perf_counter()
            while calls.repeats and not should_stop(
                policy, times, time.perf_counter() - started, incumbent_us
            ):
                times.append(calls.run(worker, program))
            calls.let_judge(worker, partial(judge, 0))
        return Measurement(tuple(times), 1, 1, hopeless(policy, times, incumbent_us))

    def rerun(self, program: Program) -> None:
        with self._blamed_on_the_program():
            worker = self._renew_beside_others(program)
            for order in (*_some_orders(RERUN_CALLS), draw_order()):
                worker.run(program, order, fill_byte())
            worker.memory.show()

    def compare(
        self, programs: Sequence[Program], rounds: int, patch: Patch, judge: Judge | None
    ) -> Rows:
        """Time programs in alternation, each in a process that waits while the others run."""
        turns = list(range(len(programs)))
        rows = []
        calls = [_Calls(patch) for _ in programs]
        with self._blamed_on_the_program():
            worker = self._renew_memory(*programs, patch=patch)
            for program, made in zip(programs, calls, strict=True):
                made.run(worker, program)
            for _ in range(rounds):
                secrets.SystemRandom().shuffle(turns)
                row = [0.0] * len(programs)
                for index in turns:
                    row[index] = calls[index].run(worker, programs[index])
                rows.append(tuple(row))
            if judge is not None:
                for index, made in enumerate(calls):
                    made.let_judge(worker, partial(judge, index))
        return rows

    def _renew_beside_others(self, program: Program) -> HostWorker | CallableWorker:
        """Renew the memory for one that takes turns with others: each keeps its process."""
        worker = self._ready_worker()
        worker.keep_latest(program)
        worker.memory.renew(UNCHANGED)
        return worker

    def _renew_memory(
        self, *programs: Program, patch: Patch = UNCHANGED
    ) -> HostWorker | CallableWorker:
        worker = self._ready_worker()
        worker.keep_only(*programs)
        worker.memory.renew(patch)
        return worker

    def _start(self) -> HostWorker | CallableWorker:
        with raise_worker_errors("no process can be started to run kernels", OSError):
            if self._python is not None:
                return CallableWorker(self._run_timeout_s, *self._python, available_bytes)
            return HostWorker(self._run_timeout_s, self._environment)

    def _map(self, worker: HostWorker | CallableWorker, arena: Arena) -> None:
        worker.attach(arena, self._deterministic)

    def _unmap(self, worker: HostWorker | CallableWorker) -> None:
        worker.detach()

    @contextmanager
    def _blame_own_failures(self) -> Iterator[None]:
        try:
            yield
        except HostRunError as error:
            if error.code is LaunchEnd.TIMEOUT:
                raise RunFailedError(Status.TIMEOUT, error.message) from error
            raise RunFailedError(Status.LAUNCH, self._reason(error), killed=error.killed) from error
        except PeerError as error:
            raise RunFailedError(error.status, error.message) from error

    def _reason(self, error: HostRunError) -> str:
        if error.code is LaunchEnd.SANITIZER:  # it names line and variable; the log has its report
            return error.message
        found = self._finding(error.log) if self._finding is not None else ""
        if found:
            return found
        said = next((line.strip() for line in error.log.splitlines() if line.strip()), "")
        said = "".join(letter for letter in said if letter.isprintable())[:LOG_LETTERS]
        return f"{error.message}; it wrote: {said}" if said else error.message


class _Calls:
    """Timed calls of one program: some of their results, and whether outputs repeat their bits."""

    def __init__(self, patch: Patch) -> None:
        self._sampled = SampledCalls[list[bytes]](patch)
        self._digests: dict[int, int] = {}
        self.repeats = True

    def run(self, worker: HostWorker | CallableWorker, program: Program) -> float:
        """Run the program once and return microseconds."""
        planned = self._sampled.plan()
        variant = planned.variant if planned else self._sampled.draw()
        time_us, digest = worker.run(program, draw_order(), fill_byte(), variant)
        # After every call, or the pause would tell which is judged.
        taken = worker.memory.take()
        if self.repeats:
            if planned and planned.place is not None:
                self._sampled.kept[planned.place] = variant, taken
            known = self._digests.setdefault(variant, digest)
            self.repeats = known == digest and worker.memory.intact()
            if not self.repeats:  # it stays, to be judged
                self._sampled.kept = {0: (variant, taken)}
        return time_us

    def let_judge(
        self, worker: HostWorker | CallableWorker, judge: Callable[[int, bool], None]
    ) -> None:
        for variant, written in self._sampled.kept.values():
            worker.memory.put(written, variant)
            judge(variant, self.repeats)


def draw_order(turn: int | None = None) -> int:
    """Draw an order of blocks and threads; `turn` chooses among ascending, descending and random.

    They take turns in checks: a race that one order hides shows in another.
    """
    turn = secrets.randbelow(ORDERS) if turn is None else turn % ORDERS
    return turn if turn < 2 else fresh_seed() & 0xFFFFFFFF | 2


def _some_orders(most: int) -> list[int]:
    """Draw orders for as many calls as nobody can foresee, before the one whose result counts."""
    return [draw_order() for _ in range(secrets.randbelow(most))]


def _streaming_gbps() -> float:
    """Measure adding a number to arrays that are beyond the caches, with one core, in GB/s."""
    cache_bytes = max(_system_value(f"SC_LEVEL{level}_CACHE_SIZE") for level in (2, 3, 4))
    size = min(max(2 * cache_bytes, LEAST_PROBE_BYTES), MOST_PROBE_BYTES) // 2
    source = np.ones(size // 8)
    target = np.ones(size // 8)
    best_s = math.inf
    for _ in range(PROBE_REPEATS):
        started = time.perf_counter()
        np.add(source, 1.0, out=target)
        best_s = min(best_s, time.perf_counter() - started)
    return 2 * source.nbytes / best_s / 1e9


def host_info(limits: Sequence[str], language: Language = CUDA) -> DeviceInfo:
    """Describe the CPU, which stands for a GPU that the language is for: its limits hold here."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    hip = amd_info(DEFAULT_TARGET) if language is HIP else None
    return DeviceInfo(
        name=f"host CPU ({names[0] if names else platform.machine()})",
        architecture=hip.architecture if hip else architecture_for(COMPUTE_CAPABILITY),
        compute_capability=hip.compute_capability if hip else COMPUTE_CAPABILITY,
        multiprocessors=len(os.sched_getaffinity(0)),
        l2_bytes=_system_value("SC_LEVEL2_CACHE_SIZE") or 1 << 20,
        streaming_gbps=round(_streaming_gbps(), 1),
        recorded=False,
        on_cpu=True,
        own_limits=hip.own_limits if hip else None,
        environment={
            "host_machine": platform.machine(),
            "host_system": platform.release(),
            "sandbox": ", ".join(limits) or "none",
        },
    )


def _system_value(name: str) -> int:
    return max(os.sysconf(name), 0) if name in os.sysconf_names else 0


class HostWatcher:
    """Verify programs on a `host` device that runs sanitized code; implements `Watcher`."""

    kind = "sanitizers"

    def __init__(self, opened: Callable[[], Device]) -> None:
        self._opened = opened
        self._device: Device | None = None

    def watch(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        """Verify each with every kind of input; the first access out of bounds ends it.

        Numbers are judged elsewhere, by extremes on which the baseline is right: who is inexact is
        verified again, with extremes of its own.
        """
        device = self._device = self._opened()
        outcomes = verify_all(device, programs)
        return [
            device.verify(program)
            if outcome.status is Status.INCORRECT and TIMES in outcome.reason
            else outcome
            for program, outcome in zip(programs, outcomes, strict=True)
        ]

    def close(self) -> None:
        if self._device is not None:
            self._device.close()


class HostFamily:
    """`--device host`; implements `DeviceFamily` and `WatchesPlans`."""

    listed_as = ""

    def open(
        self,
        detail: str,
        spec: KernelSpec,
        operators: Mapping[str, str],
        *,
        run_timeout_s: float = RUN_TIMEOUT_S,
    ) -> Device:
        if detail:
            raise unknown_device(f"host:{detail}")
        return HostDevice(spec, operators, run_timeout_s=run_timeout_s)

    def open_sanitized(
        self, spec: KernelSpec, operators: Mapping[str, str], stack: ExitStack
    ) -> tuple[Compiler, Device]:
        """Open a device that runs sanitized programs, and their compiler; the stack closes both.

        Raises `DeviceError` where g++ came without the sanitizers.
        """
        return sanitized_host(spec, operators, preload(SANITIZERS), stack)

    def compiler(self, jobs: int | None, target: str) -> Compiler:
        return HostCompiler(jobs, cache=Cache())

    def list_here(self) -> tuple[Listed, ...]:
        return ()

    def watches(self, plan: Plan, stack: ExitStack) -> tuple[Watch, ...]:
        try:
            environment = preload(SANITIZERS)
        except DeviceError:
            return ()

        @cache
        def opened() -> tuple[Compiler, Device]:  # only when there are winners to watch
            return sanitized_host(plan.spec, plan.config.operators, environment, stack)

        def evaluator(of: Plan) -> Evaluator:
            return evaluator_of(of, *opened())

        return (Watch(HostWatcher(lambda: opened()[1]), evaluator, LARGEST_HOST_BYTES),)


HOST = HostFamily()


def sanitized_host(
    spec: KernelSpec, operators: Mapping[str, str], environment: Mapping[str, str], stack: ExitStack
) -> tuple[HostCompiler, HostDevice]:
    """Open a device with `preload(SANITIZERS)`, and its compiler; the stack closes both."""
    compiler = HostCompiler(sanitizers=SANITIZERS, cache=Cache())
    stack.callback(compiler.close)
    device = HostDevice(
        spec,
        operators,
        run_timeout_s=SANITIZED_TIMEOUT_S,
        environment=environment,
        finding=sanitizer_finding,
    )
    device.fits_all = True
    stack.callback(device.close)
    return compiler, device
