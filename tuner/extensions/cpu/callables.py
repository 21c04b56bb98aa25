"""Kernels in Python on the CPU: the process that calls them, and as its parent sees it.

It is not confined, unlike the processes of compiled kernels: Python of the user's own, with
libraries of any kind. It may hang or crash, and ask for memory until that ends; the judge stays
apart.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from tuner.device.base import Program
from tuner.device.callables import Modules, Originals, blamed_on_call, checked_results
from tuner.device.encoding import Array, encode, torch_name
from tuner.device.layout import Arena, Layout, Slot
from tuner.device.reference import PeerError, ran_out
from tuner.extensions.cpu.worker import RunMemory, map_arena
from tuner.model.errors import WorkerError
from tuner.model.statistics import LEAST_US
from tuner.process.child import Child

# A first call imports what it needs and compiles.
FIRST_CALL_S = 30.0
ASK_S = 30.0
# Of the memory that is free once the arrays are there: the rest is for the verifier, and for
# whatever else runs here, of which the system would end something.
MEMORY_SHARE = 0.75
# Empty answers before the first call, and what a call's may take longer than the quickest of them.
ANSWERS, CLOCK_MARGIN_US = 20, 100.0
# Read in 3.6.0: others may be built otherwise.
RELEASE = "3.6."


class CallableWorker:
    """Call kernels in Python in processes of their own; as `HostWorker`, for `HostRunner`.

    The baseline has one that no config's code runs in, and each stands still between its calls.
    What they find is written from here, what they leave is taken when they stand still, and our
    clock is beside theirs: what a kernel changes in its process changes none of that.

    Raises `ChildDiedError` or `ChildTimeoutError` where a kernel ends or blocks its process, and
    `PeerError` for what it raises. `available_bytes` says how much memory is free, None where
    nobody knows: then nothing bounds what a process takes.
    """

    limits: tuple[str, ...] = ()
    noise_us = 0.0

    def __init__(
        self,
        call_timeout_s: float,
        source: Path,
        operators: Mapping[str, str],
        available_bytes: Callable[[], int | None],
    ) -> None:
        self._call_timeout_s, self._available_bytes = call_timeout_s, available_bytes
        self._opened = (source, dict(operators))
        self._arena: Arena | None = None
        self._memory: RunMemory | None = None
        # By whether it is the baseline's.
        self._processes = {True: _Process(*self._opened)}
        self._called: set[str] = set()

    def attach(self, arena: Arena, compared: frozenset[str] = frozenset()) -> None:
        """Map the memory; the processes do when they are asked to call."""
        try:
            data = map_arena(arena)
        except FileNotFoundError as error:
            raise WorkerError("the process that verifies results ended") from error
        self._arena, self._memory = arena, RunMemory(arena.layout, compared, data, data, data)

    def detach(self) -> None:
        self._arena = self._memory = None
        for process in self._processes.values():
            process.go_on()
            process.call("detach", timeout_s=ASK_S)
            process.arena = None
            process.stop()

    @property
    def memory(self) -> RunMemory:
        """What calls find and leave, from `attach` on; `renew` it before the first."""
        assert self._memory is not None
        return self._memory

    def keep_only(self, *programs: Program) -> None:
        """Keep all: a module takes little."""

    def keep_latest(self, program: Program) -> None:
        """Keep all, as `keep_only` does."""

    def run(self, program: Program, order: int, fill: int, variant: int = 0) -> tuple[float, int]:
        """Call the kernel; return microseconds and a checksum of the compared outputs.

        The variant is written last: nobody can begin much sooner than the clock.
        """
        process, key = self._process(program), program.text_key
        timeout_s = self._call_timeout_s + (0.0 if key in self._called else FIRST_CALL_S)
        self._called.add(key)
        try:
            process.call("make_ready", program, timeout_s=timeout_s)
            self.memory.prepare(key, fill, variant)
            time_us = process.go(timeout_s)
        finally:
            process.stop()
        return time_us, self.memory.digest()

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _process(self, program: Program) -> _Process:
        mine = program.config is None
        if mine not in self._processes:
            self._processes[mine] = _Process(*self._opened)
        process = self._processes[mine]
        process.go_on()
        if process.arena is not self._arena:
            available = self._available_bytes()
            most_bytes = None if available is None else int(available * MEMORY_SHARE)
            process.call("attach", self._arena, most_bytes, timeout_s=ASK_S)
            process.arena = self._arena
        return process


class _Process(Child):
    """A process that calls kernels, whose clock may be one that a kernel has put there."""

    def __init__(self, source: Path, operators: Mapping[str, str]) -> None:
        super().__init__(CallRunner, (source, operators), "tune-calls")
        self.arena: Arena | None = None
        self._answer_us = 0.0
        # While nothing but our own code has run there.
        self._answer_us = min(self.go(ASK_S) for _ in range(ANSWERS)) + CLOCK_MARGIN_US

    def stop(self) -> None:
        """Have it stand still, all of its threads, before this returns."""
        super().stop()
        with suppress(ChildProcessError):  # it has ended
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go(self, timeout_s: float) -> float:
        """Have it call what is ready; return microseconds by its clock, no fewer than by ours.

        Ours leaves out what an answer takes, and how long it waited for a processor, or we then.
        """
        waited_us, started = _waited_us(self.pid), perf_counter()
        self.send("go")
        waited_us += _waited_us("thread-self")
        told_us: float = self.receive(timeout_s)
        ours_us = (perf_counter() - started) * 1e6 + waited_us
        ours_us -= _waited_us(self.pid) + _waited_us("thread-self") + self._answer_us
        return max(LEAST_US, told_us, ours_us)


def _waited_us(task: int | str) -> float:
    with suppress(OSError):  # where the system doesn't count it
        return int(Path(f"/proc/{task}/schedstat").read_text(encoding="ascii").split()[1]) / 1e3
    return 0.0


class CallRunner:
    """Hold the arrays of one workload as tensors on the CPU, and call kernels on them."""

    def __init__(self, source: Path, operators: Mapping[str, str]) -> None:
        # Triton has no other way to run on a CPU, and asks when it is imported.
        os.environ.setdefault("TRITON_INTERPRET", "1")
        self._operators = dict(operators)
        self._modules, self._clock = Modules(source), Originals(time, "perf_counter")
        self._untimed = False
        self._mapped: tuple[Array, Layout] | None = None
        self._ready: Callable[[], None] | None = None
        self._most_bytes: int | None = None

    def attach(self, arena: Arena, most_bytes: int | None = None) -> None:
        """Map the memory; from now on calls may take so many bytes beyond what is taken."""
        self.detach()
        self._most_bytes = most_bytes
        if most_bytes is not None:
            limit_growth(most_bytes)
        self._mapped = map_arena(arena), arena.layout

    def detach(self) -> None:
        # Whoever holds a tensor still keeps the memory mapped.
        self._mapped = self._ready = None

    def make_ready(self, program: Program) -> None:
        """Make what `go` calls: the function of a program with tensors over the arrays."""
        with self._telling_limit(), blamed_on_call(program):
            torch: Any = import_module("torch")
            function = self._modules.function(program)
        if not self._untimed:
            # After the module's own lines, at whose top is what an import of Triton's depends on.
            with suppress(ImportError):
                choose_first_config(import_module("triton.runtime.autotuner").Autotuner)
                mend_interpreter()
            self._untimed = True
        assert self._mapped is not None
        memory, layout = self._mapped
        # Anew for each call: one may resize them in place, and the next is another config's.
        tensors = {slot.name: _tensor(torch, memory, slot) for slot in layout.slots}
        given, axes = dict(tensors), dict(program.workload.values)
        outputs = [slot.name for slot in layout.with_role("output", "inout")]

        def called() -> None:
            with blamed_on_call(program), torch.no_grad():
                returned = function(given, axes, **self._operators)
                for name, result in checked_results(torch, returned, tensors, outputs).items():
                    tensors[name].copy_(result)

        self._ready = called

    def go(self) -> float:
        """Call what is ready; return microseconds, in which results came into the arrays.

        Whatever else the call holds is let go within them.
        """
        called, self._ready = self._ready, None
        started = perf_counter()
        try:
            if called is not None:
                with self._telling_limit():
                    called()
            del called
            return (perf_counter() - started) * 1e6
        finally:
            self._clock.require()

    @contextmanager
    def _telling_limit(self) -> Iterator[None]:
        try:
            yield
        except PeerError as error:
            if self._most_bytes is not None and ran_out(error.__cause__):
                said = error.message.rstrip(": ")
                error.message = f"{said}; calls may take {self._most_bytes / 1e9:.3g} GB here"
            raise


def limit_growth(most_bytes: int) -> None:
    """Let this process take so much memory beyond what it has; more is refused, and kills nobody.

    The limit is on what only this process writes to: arrays that are shared do not count.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    most = pages * resource.getpagesize() + most_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def choose_first_config(tuner: Any) -> None:
    """Let Triton's autotuner take the first config that its pruning leaves, and time none.

    Its timing asks for a GPU's driver, and so does its file of earlier choices. All else stays
    Triton's: what it does to the arrays before and after a choice, too.
    """
    tuner._bench, tuner.check_disk_cache = _skip_timing, _not_looked_up


def _skip_timing(tuner: Any, *given: Any, config: Any, **named: Any) -> list[float]:
    return [0.0, 0.0, 0.0]  # of configs alike Triton takes the first


def _not_looked_up(tuner: Any, key: Any, configs: Any, choose: Callable[[], object]) -> bool:
    choose()
    return False


def _tensor(torch: Any, memory: Array, slot: Slot) -> Any:
    """Make a tensor over an array, whose storage ends where the array does."""
    dtype = getattr(torch, torch_name(slot.dtype))
    raw = torch.frombuffer(memory, dtype=torch.uint8, offset=slot.offset, count=slot.size_bytes)
    return raw.view(dtype).reshape(slot.shape)


def mend_interpreter() -> None:
    """Make up for what Triton 3.6's interpreter cannot do; leave other releases as they are.

    It computes with the bits of bfloat16 as with whole numbers, rounds to it towards zero, has no
    constants of it, and reads a scalar in a way that NumPy 2.4 refuses. Raises `ImportError`
    without Triton.
    """
    triton: Any = import_module("triton")
    interpreter: Any = import_module("triton.runtime.interpreter")
    if not triton.__version__.startswith(RELEASE):
        return
    bfloat16, float32 = triton.language.bfloat16, triton.language.float32
    builder, handle_of = interpreter.InterpreterBuilder, interpreter.TensorHandle
    binary, dot, cast = builder.binary_op, builder.create_dot, builder.cast_impl
    patch = interpreter._patch_lang_tensor

    def widen_handle(handle: Any) -> Any:
        if handle.dtype.scalar != bfloat16:
            return handle
        return handle_of((handle.data.astype(np.uint32) << 16).view(np.float32), float32)

    def narrow_values(values: np.ndarray) -> Any:
        return handle_of(encode(np, values, "bfloat16"), bfloat16)

    def binary_op(self: Any, left: Any, right: Any, operation: Any) -> Any:
        made = binary(self, widen_handle(left), widen_handle(right), operation)
        narrow = left.dtype.scalar == bfloat16 and made.data.dtype == np.float32
        return cast_impl(self, made, bfloat16) if narrow else made

    def create_dot(self: Any, left: Any, right: Any, *others: Any) -> Any:
        return dot(self, widen_handle(left), widen_handle(right), *others)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar != float32 or target.scalar != bfloat16:
            return cast(self, source, target)
        return narrow_values(source.data)

    def get_bf16(self: Any, value: float) -> Any:
        return narrow_values(np.array([value]))

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    builder.binary_op, builder.create_dot, builder.cast_impl = binary_op, create_dot, cast_impl
    builder.get_bf16, interpreter._patch_lang_tensor = get_bf16, patch_tensor
