"""The `cuda` device: one worker process per GPU, verified and timed by the protocol."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from math import ceil
from multiprocessing import shared_memory
from shutil import which
from statistics import median
from typing import Any

import numpy as np

from tuner.device.base import DeviceInfo, Outcome, Program, Watchers
from tuner.device.cuda.buffers import Probe
from tuner.device.cuda.counters import NsightCompute
from tuner.device.cuda.driver import CudaError, gpu_uuid
from tuner.device.cuda.energy import ENERGY
from tuner.device.cuda.peers import PeerHome
from tuner.device.cuda.prepare import CallCompiler
from tuner.device.cuda.sanitizer import (
    COMPILE_OPTIONS,
    KINDS,
    LARGEST_BYTES,
    ComputeSanitizer,
    find_compute_sanitizer,
)
from tuner.device.cuda.tool_process import Arenas
from tuner.device.cuda.worker import ISOLATED_REPLAYS, RERUN_REPLAYS, CudaWorker
from tuner.device.inputs import NORMAL
from tuner.device.layout import UNCHANGED, Arena, Layout, Patch
from tuner.device.problem_peers import is_posed
from tuner.device.reference import PeerError
from tuner.device.timing import (
    ASIDE,
    FINALS,
    JUDGED_ON_GPU,
    SEARCH,
    SECOND_LOOKS,
    TimingPolicy,
    suspicious,
    wall_ratio,
)
from tuner.device.verify.restarting_worker import (
    ChildRunner,
    Judge,
    Rows,
    RunFailedError,
    lock_gpu,
    raise_worker_errors,
)
from tuner.device.verify.telling import TellingVerifier
from tuner.device.verify.verified_device import VERIFIER_TIMEOUT_S, VerifiedDevice, fresh_seed
from tuner.device.verify.verifier import HostMemory
from tuner.model.errors import DeviceError, TunerError
from tuner.model.hardware import architecture_for
from tuner.model.kernel import KernelSpec
from tuner.model.statistics import PROTOCOL
from tuner.model.trial import EnergyWindow, Measurement, Status
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError
from tuner.process.tally import spent_on

RUN_TIMEOUT_S = 10.0
TIMING_TIMEOUT_S = 60.0
# A comparison takes long where calls do: 20 of 100 ms make a replay of 2 s.
REPLAY_TIMEOUT_S = 2.0
# What stands for timed calls makes a graph of them first, with two replays.
RERUN_TIMEOUT_S = RUN_TIMEOUT_S + REPLAY_TIMEOUT_S * (2 + RERUN_REPLAYS)
# Beside the window itself: to settle, to wait for two ticks, and for calls of seconds to end.
ENERGY_TIMEOUT_S = 60.0
# What a peer's first call in a process may take on top: PyTorch is imported, torch.compile and
# Triton compile, FlashInfer builds an extension with nvcc where its cache has none.
PEER_WARM_UP_S = 300.0
# For a kernel in Python, which compiles when it is first called, and imports what it needs.
CALL_WARM_UP_S = 60.0
# On top for the first of all: an engine's files come from a disk that may be slow, while the
# processes that compile ahead read them as well.
FIRST_CALL_S = 240.0
# For an answer that is there, or is not waited for.
ANSWERED_S = 0.1
# Long beside what an answer takes, and no more replays than honest ones fill it with.
OURS_S, MOST_REPLAYS = 5e-3, 40
# Without neighbours, for the second column of a comparison between them.
ALONE_ROUNDS = 15
# For a worker process that ends by itself.
LEAVING_S = 2.0
# What the seconds of a device go to besides (`tuner.process.tally`).
IMPORTING = "importing"
# Said where a kernel failed in a run beside such a neighbour.
SAID: Mapping[Probe, str] = {
    "none": "",
    "late writer": "; in this run the launch before had not ended: reading or writing before "
    "griddepcontrol.wait would explain it (docs/trust.md)",
    "eager successor": "; in this run the launch after overwrote the inputs as soon as it might "
    "begin: griddepcontrol.launch_dependents before the last read would explain it (docs/trust.md)",
}


class CudaDevice(VerifiedDevice):
    """Run programs on one GPU; raise `DeviceError` where another `tune` uses it or it is silent."""

    capabilities = VerifiedDevice.capabilities | {"callables", "sanitizer", "counters", "energy"}

    def __init__(self, ordinal: int, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        self._ordinal, self._operators = ordinal, dict(operators)
        uuid = gpu_uuid(ordinal)
        with ExitStack() as undo:
            self._lock = lock_gpu(uuid, f"GPU {ordinal}", "--device cuda:N or --gpus")
            undo.callback(self._lock.release)
            try:
                opened = (ordinal, spec, dict(operators))
                # The worker starts meanwhile.
                verifier = Child(cuda_verifier, opened, "tune-verifier", wait=False)
                undo.callback(verifier.kill)
                source = spec.source if spec.is_callable else None
                posed = spec if is_posed(spec) else None
                home = PeerHome(spec.reference, dict(operators), spec.path, source, posed)
                runner = CudaRunner(ordinal, home, spec.deterministic)
                undo.callback(runner.close)
                facts = runner.describe()
                verifier.wait_ready()
                streaming = verifier.call("streaming_gbps", timeout_s=VERIFIER_TIMEOUT_S)
            except (ChildDiedError, ChildTimeoutError, MemoryError) as error:
                raise DeviceError(f"the GPU's processes did not start: {error}") from error
            self._own_runner = runner
            capability = (facts["major"], facts["minor"])
            info = DeviceInfo(
                name=facts["name"],
                architecture=architecture_for(capability),
                compute_capability=capability,
                multiprocessors=facts["multiprocessors"],
                l2_bytes=facts["l2_bytes"],
                streaming_gbps=round(streaming, 1),
                recorded=False,
                environment={
                    "cuda_driver_api": str(facts["driver"]),
                    "protocol": str(PROTOCOL),
                    **_gpu_state(uuid),
                },
            )
            super().__init__(info, spec, verifier, runner)
            undo.pop_all()

    @contextmanager
    def limiting_runs(self, seconds: float) -> Iterator[None]:
        self._own_runner.run_timeout_s = seconds
        try:
            yield
        finally:
            self._own_runner.run_timeout_s = RUN_TIMEOUT_S

    def call_compiler(self, jobs: int | None) -> CallCompiler:
        return CallCompiler(self._spec, f"cuda:{self._ordinal}", jobs)

    def import_ahead(self, program: Program) -> None:
        self._own_runner.import_ahead(program)

    def watchers(self) -> Watchers:
        kinds = KINDS if find_compute_sanitizer() else ()
        arenas = Arenas(self._spec, self._operators)
        tools = tuple(ComputeSanitizer(kind, self._ordinal, arenas) for kind in kinds)
        return Watchers(tools, COMPILE_OPTIONS, LARGEST_BYTES)

    def counters(self) -> NsightCompute:
        return NsightCompute(self._ordinal, self.place_inputs)

    def require_energy(self) -> None:
        self._own_runner.require_energy()

    def idle_energy(self, *, seconds: float) -> EnergyWindow:
        return self._own_runner.idle_energy(seconds)

    def energy(self, program: Program, *, seconds: float) -> EnergyWindow | Outcome:
        def attempt() -> EnergyWindow | Outcome:
            self._enter(program)
            self._ask("prepare", program.workload, NORMAL, fresh_seed())
            window = self._own_runner.energy(program, seconds)
            verdict = self._verify_again(program)
            return window if verdict.passed else Outcome(Status.INCORRECT, verdict.reason)

        return self._outcome_of(program, attempt)

    def close(self) -> None:
        super().close()
        self._lock.release()


class CudaRunner(ChildRunner):
    """The worker process of one GPU, replaced when a kernel hangs or breaks it."""

    _called = "the worker process"
    run_timeout_s = RUN_TIMEOUT_S
    judged = JUDGED_ON_GPU

    def __init__(
        self,
        ordinal: int,
        home: PeerHome | None = None,
        deterministic: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self._ordinal, self._home, self._deterministic = ordinal, home, deterministic
        # Whether a kernel in Python has run: what it imports has been read from the disk.
        self._has_called = False
        # The worker that imports ahead, until somebody waits for it.
        self._importing: Child | None = None
        # How something was timed last: a run that stands for it has the same buffers.
        self._timed_by: TimingPolicy = SEARCH

    def close(self) -> None:
        """End the process; what peers import leaves semaphores behind where it is killed."""
        worker, self._closed = self._worker, True
        if self._home is not None and worker is not None:
            if self._importing is worker:
                with suppress(ChildDiedError, ChildTimeoutError, TunerError):
                    worker.receive(ANSWERED_S)
            worker.leave(LEAVING_S)
        super().close()

    def describe(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self._live_worker().call("describe", timeout_s=RUN_TIMEOUT_S)
        return facts

    def import_ahead(self, program: Program) -> None:
        """Have the worker import what a kernel in Python needs, and wait when it is next asked."""
        worker = self._worker
        if worker is None or self._attached or self._importing is worker:
            return
        try:
            worker.send("import_ahead", program)
        except (ChildDiedError, ChildTimeoutError):
            self._drop_worker()  # nothing ran in it
        else:
            self._importing = worker

    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        """Launch once; all but the first time a pdl launch has a neighbour that overlaps it."""
        # The GPU alone decides on the order: here it only says which run this is.
        neighbour = _neighbour(program, order)
        around = self._surroundings
        if neighbour == "eager successor" and around is not None and around.successor_waits:
            neighbour = "none"  # a config may rely on that
        hint = SAID[neighbour]
        try:
            with self._blamed_on_the_program():
                limit_s = _limit_s(self.run_timeout_s, program)
                if program.is_call and not self._has_called:
                    limit_s += FIRST_CALL_S
                worker = self._ready_worker()
                overlapped = worker.call("run_once", program, neighbour, timeout_s=limit_s)
                self._has_called = self._has_called or program.is_call
        except RunFailedError as error:
            if not hint:
                raise
            raise RunFailedError(error.status, f"{error}{hint}", killed=error.killed) from error
        return hint if overlapped else ""

    def time(
        self,
        program: Program,
        policy: TimingPolicy,
        incumbent_us: float | None,
        patch: Patch,
        judge: Judge,
    ) -> Measurement:
        self._timed_by = policy
        judge = self._beside_a_still_worker(judge, program)
        measurement: Measurement = self.ask_and_judge(
            *(judge, 1, "time", program, policy, incumbent_us, patch),
            timeout_s=_limit_s(TIMING_TIMEOUT_S, program),
        )
        if not program.is_call or self._surroundings is not None:
            return measurement
        ratios: list[float] = []
        while not ratios or (suspicious(ratios) and len(ratios) < SECOND_LOOKS):
            ratios.append(self._ratio_by_our_clock(measurement))
        return replace(measurement, wall_ratio=max(measurement.wall_ratio or 0.0, min(ratios)))

    def _beside_a_still_worker(self, judge: Judge, *programs: Program) -> Judge:
        """Have the worker stand still while kernels in Python are judged: it has their threads."""

        def judge_then_go_on(index: int, variant: int, repeats: bool) -> None:
            worker = self._live_worker()
            worker.stop()
            try:
                judge(index, variant, repeats)
            finally:
                worker.go_on()

        return judge_then_go_on if any(program.is_call for program in programs) else judge

    def _ratio_by_our_clock(self, measurement: Measurement) -> float:
        """Compare replays of what was timed with its times, which a kernel may have made up."""
        replay_s = measurement.median_us * measurement.calls_per_replay * 1e-6
        count = min(ceil(OURS_S / replay_s), MOST_REPLAYS)

        def take(*, calls: bool) -> float:
            started = time.perf_counter()
            self.ask("replay", count, calls=calls, timeout_s=TIMING_TIMEOUT_S)
            return time.perf_counter() - started

        return wall_ratio(count * replay_s, take(calls=True) - take(calls=False))

    def rerun(self, program: Program) -> None:
        self.ask("rerun", program, self._timed_by, timeout_s=_limit_s(RERUN_TIMEOUT_S, program))

    def compare(
        self, programs: Sequence[Program], rounds: int, patch: Patch, judge: Judge | None
    ) -> Rows:
        self._timed_by = FINALS
        timeout_s = _limit_s(TIMING_TIMEOUT_S * 4 + _rounds_limit_s(programs, rounds), *programs)
        judge = judge and self._beside_a_still_worker(judge, *programs)
        try:
            rows: Sequence[Sequence[float]] = self.ask_and_judge(
                *(judge, len(programs), "compare", programs, FINALS, rounds, patch),
                timeout_s=timeout_s,
            )
        except RunFailedError:
            self._drop_worker()
            raise
        return [tuple(row) for row in rows]

    def alone_us(self, programs: Sequence[Program]) -> tuple[float, ...]:
        rows: Sequence[Sequence[float]] = self.ask(
            *("compare", programs, ASIDE, ALONE_ROUNDS, UNCHANGED),
            alone=True,
            timeout_s=_limit_s(_rounds_limit_s(programs, ALONE_ROUNDS), *programs),
        )
        return tuple(median(column) for column in zip(*rows, strict=True))

    def isolated_us(self, programs: Sequence[Program]) -> tuple[float | None, ...]:
        policy = FINALS if self._surroundings is None else ASIDE
        limit_s = _limit_s(_rounds_limit_s(programs, ISOLATED_REPLAYS), *programs)
        return tuple(self.ask("isolated_us", programs, policy, timeout_s=limit_s))

    def require_energy(self) -> None:
        self._ask_of_energy("require_energy", timeout_s=RUN_TIMEOUT_S)

    def idle_energy(self, seconds: float) -> EnergyWindow:
        window: EnergyWindow = self._ask_of_energy(
            "idle_energy", seconds, timeout_s=ENERGY_TIMEOUT_S + seconds
        )
        return window

    def _ask_of_energy(self, method: str, *arguments: float, timeout_s: float) -> Any:
        try:
            return self._live_worker().call(method, *arguments, timeout_s=timeout_s)
        except (ChildDiedError, ChildTimeoutError) as error:
            raise DeviceError(f"the GPU's process gave no energy: {error}") from error

    def energy(self, program: Program, seconds: float) -> EnergyWindow:
        self._timed_by = ENERGY
        limit_s = _limit_s(ENERGY_TIMEOUT_S + seconds, program)
        window: EnergyWindow = self.ask("energy", program, ENERGY, seconds, timeout_s=limit_s)
        return window

    def _start(self) -> Child:
        failed = f"no process can be started on GPU {self._ordinal}"
        remedy = "nvidia-smi tells whether the GPU still works"
        with raise_worker_errors(failed, CudaError, remedy=remedy):
            opened = (self._ordinal, self._home, self._deterministic)
            return Child(CudaWorker, opened, "tune-worker")

    def _live_worker(self) -> Child:
        worker = super()._live_worker()
        if self._importing is not worker:
            return worker
        self._importing = None
        try:
            with spent_on(IMPORTING):
                worker.receive(CALL_WARM_UP_S + FIRST_CALL_S)
        except (ChildDiedError, ChildTimeoutError, TunerError):
            # In a process that has imported nothing the program's own run fails as it would have.
            self._drop_worker()
            return super()._live_worker()
        return worker

    def _map(self, worker: Child, arena: Arena) -> None:
        with raise_worker_errors("the verifier's memory cannot be mapped", CudaError):
            worker.call("attach", arena, self._surroundings, timeout_s=RUN_TIMEOUT_S)

    @contextmanager
    def _blame_own_failures(self) -> Iterator[None]:
        try:
            yield
        except (CudaError, PeerError) as error:
            if error.sticky:
                self._drop_worker()
            status = error.status if isinstance(error, PeerError) else Status.LAUNCH
            # What has ended its memory may have shared it with what others keep.
            short = error.sticky and status is Status.RESOURCE_LIMIT
            raise RunFailedError(status, error.message, killed=short) from error
        except MemoryError as error:
            if self._home is None or self._home.source is None:
                raise
            # PyTorch keeps what any kernel in Python has once allocated: another process has it
            # back, and it is the program's own memory where that does not help.
            self._drop_worker()
            reason = f"no memory is left beside what it allocates: {error}"
            raise RunFailedError(Status.RESOURCE_LIMIT, reason, killed=True) from error


def _neighbour(program: Program, order: int) -> Probe:
    """Choose who stands before or after a program in one of its runs; the first is alone.

    Who comes after may begin early only where the last launch lets it.
    """
    if order == 0 or not program.launches:
        return "none"
    if order % 2:
        return "late writer" if program.launches[0].pdl else "none"
    return "eager successor" if program.launches[-1].pdl else "none"


def _rounds_limit_s(programs: Sequence[Program], rounds: int) -> float:
    """Allow for rounds of programs whose calls are long, and for what stands before them."""
    return TIMING_TIMEOUT_S + REPLAY_TIMEOUT_S * rounds * (len(programs) + 1)


def _limit_s(seconds: float, *programs: Program) -> float:
    """Add the time in which peers get ready, in case this process has not met them yet."""
    peers = sum(bool(program.peer) for program in programs)
    calls = sum(program.is_call for program in programs)
    return seconds + PEER_WARM_UP_S * peers + CALL_WARM_UP_S * calls


def _gpu_state(uuid: str) -> dict[str, str]:
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


# Smaller allocations share a block of this size, and an IPC handle opens the whole block.
BLOCK_BYTES = 2 << 20
# One in so many bytes of a GPU's memory holds inputs and references for use again: of an MoE layer
# of 1.2 GB that is all kinds of input, each of which takes longer to draw than a config to time.
CACHE_SHARE = 8
# With what is computed of it an arena is so many times as large where references are held beside
# one another, and half of that where one is at a time.
LARGE_SHARE = 13


class CudaMemory(HostMemory):
    """Memory of one GPU, shared by CUDA IPC, or through host memory where there is none."""

    def __init__(self, ordinal: int) -> None:
        import cupy

        cupy.cuda.Device(ordinal).use()
        total_bytes = cupy.cuda.Device(ordinal).mem_info[1]
        super().__init__(cupy, total_bytes // CACHE_SHARE)
        self.large_bytes = total_bytes / LARGE_SHARE
        self._host: shared_memory.SharedMemory | None = None

    def open(self, key: str, layout: Layout) -> Arena:
        self.close()
        cupy = self.xp
        # Not from CuPy's pool: an IPC handle covers a whole cudaMalloc allocation.
        blocks = -(-layout.total_bytes // BLOCK_BYTES)
        try:
            memory = cupy.cuda.Memory(blocks * BLOCK_BYTES)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            wanted = f"{layout.total_bytes / 1e9:.3g} GB on the GPU"
            raise MemoryError(f"{wanted}: {error}") from error
        self.data = cupy.ndarray(
            (layout.total_bytes,), cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0)
        )
        try:
            handle = bytes(cupy.cuda.runtime.ipcGetMemHandle(memory.ptr))
            return Arena(key, layout, handle, None)
        except cupy.cuda.runtime.CUDARuntimeError:
            # Some containers and virtual machines have no CUDA IPC: go through host memory.
            self._host = shared_memory.SharedMemory(create=True, size=layout.total_bytes)
            return Arena(key, layout, None, self._host.name)

    def close(self) -> None:
        self.data = None
        if self._host is not None:
            self._host.close()
            self._host.unlink()
            self._host = None
        self.trim()

    def trim(self, spare_bytes: int = 0) -> None:
        pool = self.xp.get_default_memory_pool()
        if pool.free_bytes() > spare_bytes:
            pool.free_all_blocks()
        # A reference in PyTorch leaves there what CuPy then lacks.
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            kept_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            if kept_bytes > spare_bytes:
                torch.cuda.empty_cache()

    def push(self) -> None:
        if self._host is not None:
            self.data.get(out=np.ndarray(self.data.shape, np.uint8, self._host.buf))
        self.synchronize()

    def pull(self) -> None:
        if self._host is not None:
            self.data.set(np.ndarray(self.data.shape, np.uint8, self._host.buf))

    def synchronize(self) -> None:
        self.xp.cuda.Stream.null.synchronize()


def cuda_verifier(ordinal: int, spec: KernelSpec, operators: Mapping[str, str]) -> TellingVerifier:
    # CuPy compiles a reduction by CUB for 1.4 s when it first meets it, an own one for 0.1 s: in a
    # first run that is more time than all else that is verified.
    os.environ.setdefault("CUPY_ACCELERATORS", "")
    memory = CudaMemory(ordinal)
    # What CuPy and NumPy else import when inputs are first drawn is imported while the worker
    # starts: SciPy's sparse arrays take longer than to verify a baseline. Not in a thread of its
    # own: CuPy's modules import one another, and two threads then wait for each other.
    import cupyx
    import numpy.ma  # noqa: F401

    _ = cupyx.errstate  # which stands for a module until it is first asked for something
    return TellingVerifier(memory, spec, operators)
