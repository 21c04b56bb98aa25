"""Kernels in Python on the CPU: the process that calls them, and as its parent sees it.

It is not confined, unlike the processes of compiled kernels: Python of the user's own, with
libraries of any kind. It may hang or crash, and ask for memory until that ends; the judge stays
apart.
"""

from __future__ import annotations

import mmap
import os
import resource
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tuner.device.base import Program
from tuner.device.callables import Modules, blamed_on_call, checked_results
from tuner.device.encoding import torch_name
from tuner.device.layout import UNCHANGED, Arena, Layout, Patch, Slot
from tuner.device.reference import PeerError, ran_out
from tuner.extensions.cpu.triton_interpreter import mend_interpreter
from tuner.process.child import Child

# A first call imports what it needs and compiles.
FIRST_CALL_S = 30.0
ASK_S = 30.0
# Of the memory that is free once the arrays are there: the rest is for the verifier, and for
# whatever else runs here, of which the system would end something.
MEMORY_SHARE = 0.75


class CallableWorker:
    """Call kernels in Python in a process of their own; as `HostWorker`, for `HostRunner`.

    Raises `ChildDiedError` or `ChildTimeoutError` where a kernel ends or blocks the process, and
    `PeerError` for what it raises. `available_bytes` says how much memory is free, None where
    nobody knows: then nothing bounds what the process takes.
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
        self._child = Child(CallRunner, (source, dict(operators)), "tune-calls")
        self._called: set[str] = set()

    def attach(self, arena: Arena, compared: frozenset[str] = frozenset()) -> None:
        available = self._available_bytes()
        most_bytes = None if available is None else int(available * MEMORY_SHARE)
        self._child.call("attach", arena, compared, most_bytes, timeout_s=ASK_S)

    def detach(self) -> None:
        self._child.call("detach", timeout_s=ASK_S)

    def take(self) -> list[bytes]:
        taken: list[bytes] = self._child.call("take", timeout_s=ASK_S)
        return taken

    def put(self, taken: Sequence[bytes], variant: int) -> None:
        self._child.call("put", list(taken), variant, timeout_s=ASK_S)

    def show(self) -> None:
        """Do nothing: what it calls writes into what the verifier sees."""

    def renew(self, patch: Patch) -> None:
        self._child.call("renew", patch, timeout_s=ASK_S)

    def keep_only(self, *programs: Program) -> None:
        """Keep all: a module takes little."""

    def keep_latest(self, program: Program) -> None:
        """Keep all, as `keep_only` does."""

    def run(self, program: Program, order: int, fill: int, variant: int = 0) -> tuple[float, int]:
        """Call the kernel; return microseconds and a checksum of the compared outputs."""
        first = program.text_key not in self._called
        self._called.add(program.text_key)
        timeout_s = self._call_timeout_s + (FIRST_CALL_S if first else 0.0)
        ran: tuple[float, int] = self._child.call(
            "run", program, fill, variant, timeout_s=timeout_s
        )
        return ran

    def kill(self) -> None:
        self._child.kill()


class CallRunner:
    """Hold the arrays of one workload as tensors on the CPU, and call kernels on them."""

    def __init__(self, source: Path, operators: Mapping[str, str]) -> None:
        # Triton has no other way to run on a CPU, and asks when it is imported.
        os.environ.setdefault("TRITON_INTERPRET", "1")
        self._operators = dict(operators)
        self._modules = Modules(source)
        self._untimed = False
        self._memory: mmap.mmap | None = None
        self._arena: Arena | None = None
        self._tensors: dict[str, Any] = {}
        self._compared: frozenset[str] = frozenset()
        self._restored: dict[str, bytes] = {}
        self._patch = UNCHANGED
        self._most_bytes: int | None = None
        # The text of the program that ran last, by its key.
        self._last = ""

    def attach(self, arena: Arena, compared: frozenset[str], most_bytes: int | None = None) -> None:
        """Map the memory; from now on calls may take so many bytes beyond what is taken."""
        assert arena.host_name is not None
        self.detach()
        self._most_bytes = most_bytes
        if most_bytes is not None:
            limit_growth(most_bytes)
        descriptor = os.open(arena.host_name, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(descriptor, arena.layout.total_bytes)
        finally:
            os.close(descriptor)
        self._arena, self._compared = arena, compared

    def detach(self) -> None:
        # Whoever holds a tensor still keeps the memory mapped.
        self._tensors = {}
        self._memory = self._arena = None

    def renew(self, patch: Patch) -> None:
        """Take what the memory holds for what calls find there, but for outputs and the patch."""
        self._patch, self._last = patch, ""
        slots = self._layout.with_role("inout")
        self._restored = {slot.name: self._content(slot) for slot in slots}

    def take(self) -> list[bytes]:
        return [self._content(slot) for slot in self._written]

    def put(self, taken: Sequence[bytes], variant: int) -> None:
        """Put back what was taken, and this variant of the inputs, to be judged."""
        self._set_variant(variant)
        for slot, content in zip(self._written, taken, strict=True):
            self._write(slot, content)

    def run(self, program: Program, fill: int, variant: int) -> tuple[float, int]:
        try:
            return self._ran(program, fill, variant)
        except PeerError as error:
            if self._most_bytes is not None and ran_out(error.__cause__):
                said = error.message.rstrip(": ")
                error.message = f"{said}; calls may take {self._most_bytes / 1e9:.3g} GB here"
            raise

    def _ran(self, program: Program, fill: int, variant: int) -> tuple[float, int]:
        with blamed_on_call(program):
            torch: Any = import_module("torch")
        function = self._modules.function(program)
        if not self._untimed:
            # After the module's own lines, at whose top is what an import of Triton's depends on.
            with suppress(ImportError):
                choose_first_config(import_module("triton.runtime.autotuner").Autotuner)
                mend_interpreter()
            self._untimed = True
        # Anew for each call: one may resize them in place, and the next is another config's.
        self._tensors = {
            slot.name: _tensor(torch, self._mapped, slot) for slot in self._layout.slots
        }
        for name, content in self._restored.items():
            self._write(self._layout.slot(name), content)
        self._set_variant(variant)  # some of it lies in what was restored
        for slot in self._layout.spoiled:
            self._write(slot, bytes([fill]) * slot.size_bytes)
        self._zero(program)
        axes, tensors = program.workload.values, dict(self._tensors)
        with blamed_on_call(program), torch.no_grad():
            started = time.perf_counter()
            returned = function(dict(self._tensors), dict(axes), **self._operators)
            ended = time.perf_counter()
            outputs = [slot.name for slot in self._layout.with_role("output", "inout")]
            for name, result in checked_results(torch, returned, tensors, outputs).items():
                tensors[name].copy_(result)
        return (ended - started) * 1e6, self._digest()

    def _zero(self, program: Program) -> None:
        """Give another program the zeros that the last one may not have left."""
        if program.text_key != self._last:
            for slot in self._layout.zeroed:
                self._write(slot, bytes(slot.size_bytes))
        self._last = program.text_key

    def _digest(self) -> int:
        digest = 0
        for slot in self._layout.with_role("output"):
            if slot.name in self._compared:
                digest = zlib.crc32(self._content(slot), digest)
        return digest

    def _set_variant(self, variant: int) -> None:
        for offset, value in zip(self._patch.offsets, self._patch.values[variant], strict=True):
            self._mapped[offset] = value

    def _content(self, slot: Slot) -> bytes:
        return self._mapped[slot.offset : slot.offset + slot.size_bytes]

    def _write(self, slot: Slot, content: bytes) -> None:
        self._mapped[slot.offset : slot.offset + slot.size_bytes] = content

    @property
    def _written(self) -> tuple[Slot, ...]:
        return self._layout.with_role("output", "scratch", "inout")

    @property
    def _layout(self) -> Layout:
        assert self._arena is not None
        return self._arena.layout

    @property
    def _mapped(self) -> mmap.mmap:
        assert self._memory is not None
        return self._memory


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


def _tensor(torch: Any, memory: mmap.mmap, slot: Slot) -> Any:
    """Make a tensor over an array, whose storage ends where the array does."""
    dtype = getattr(torch, torch_name(slot.dtype))
    raw = torch.frombuffer(memory, dtype=torch.uint8, offset=slot.offset, count=slot.size_bytes)
    return raw.view(dtype).reshape(slot.shape)
