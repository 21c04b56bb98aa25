"""The process that runs candidate code on the CPU, as its parent sees it."""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tuner.device.base import Program
from tuner.device.encoding import Array
from tuner.device.layout import SCALARS, UNCHANGED, Arena, Layout, Patch, Slot
from tuner.device.verify.shared_memory import memory_file
from tuner.extensions.cpu.child import (
    AttachRequest,
    DetachRequest,
    LaunchCall,
    LaunchEnd,
    LoadRequest,
    Request,
    RunAnswer,
    RunRequest,
    ServerHello,
    UnloadRequest,
    encode_request,
)
from tuner.model.errors import TunerError, WorkerError
from tuner.model.kernel import Launch
from tuner.model.tensor_maps import TensorMap
from tuner.process.child import ChildProcess

Ranges = Sequence[tuple[int, int]]


class VariedInputs:
    """Inputs in a memory that become one variant of a patch after the other.

    Those of the places that `holds` tells lie there; all do where it is None.
    """

    def __init__(
        self, memory: Array, patch: Patch, holds: Callable[[Array], Array] | None = None
    ) -> None:
        self._memory, self._patch, self._holds = memory, patch, holds
        self._variant = 0

    def take(self, variant: int) -> None:
        """Become a variant: what the last one changed is as it was."""
        before, after = self._patch.of(self._variant), self._patch.of(variant)
        for change, values in ((before, before.before), (after, after.after)):
            places = np.array(change.offsets, np.int64)
            here = slice(None) if self._holds is None else self._holds(places)
            self._memory[places[here]] = np.frombuffer(values, np.uint8)[here]
        self._variant = variant


class RunMemory:
    """What runs of one workload find and leave: `outputs` and `inputs`, with the arena's places.

    Both may be the arena itself. Its layout is one by pages; `compared` names the outputs whose
    bits may not differ between runs.
    """

    def __init__(
        self, layout: Layout, compared: frozenset[str], arena: Array, outputs: Array, inputs: Array
    ) -> None:
        self._arena, self._outputs, self._inputs = arena, outputs, inputs
        slots = [slot for slot in layout.slots if slot.role != "input" and slot.size_bytes]
        read = [slot for slot in layout.slots if slot.role == "input" and slot.size_bytes]
        self.written: Ranges = [layout.pages(slot) for slot in slots]
        self.readable: Ranges = [layout.pages(slot) for slot in read]
        # What its pages hold before and behind an array nobody may write.
        arrays = zip(self.written, _ranges(slots), strict=True)
        self._edges = [edge for (a, b), (start, end) in arrays for edge in ((a, start), (end, b))]
        self._restored = [*self._edges, *_ranges(layout.with_role("inout"))]
        self._spoiled, self._zeroed = _ranges(layout.spoiled), _ranges(layout.zeroed)
        repeating = (slot for slot in layout.with_role("output") if slot.name in compared)
        self._compared = _ranges(repeating)
        self._contents: list[Array] = []
        self._last: object = None
        self._judged = VariedInputs(arena, UNCHANGED)
        self._found: list[VariedInputs] = []

    def renew(self, patch: Patch) -> None:
        """Take what the arena holds for what runs find, but for outputs and the patch."""
        self._last = None
        self._contents = [self._arena[start:end].copy() for start, end in self._restored]
        self._judged = VariedInputs(self._arena, patch)
        self._found = [self._judged]
        if self._outputs is self._arena:
            return
        for start, end in self.readable:
            self._inputs[start:end] = self._arena[start:end]

        restored = self._restored

        # Not a byte of it goes into a hole: a mapping that is grown would show which places vary.
        def lies_in_outputs(places: Array) -> Array:
            inside = np.zeros(len(places), bool)
            for start, end in restored:
                inside |= (start <= places) & (places < end)
            return inside

        self._found = [
            VariedInputs(self._outputs, patch, lies_in_outputs),
            VariedInputs(self._inputs, patch, lambda places: ~lies_in_outputs(places)),
        ]

    def prepare(self, program: object, fill: int, variant: int) -> None:
        """Let every run find the same: nothing of the one before is left.

        Another program than the last finds zeros, too, where that may not have left them.
        """
        for start, end in self._spoiled:
            self._outputs[start:end] = fill
        for (start, end), content in zip(self._restored, self._contents, strict=True):
            self._outputs[start:end] = content
        for start, end in self._zeroed if program != self._last else ():
            self._outputs[start:end] = 0
        self._last = program
        for inputs in self._found:
            inputs.take(variant)

    def digest(self) -> int:
        """Compute a checksum of the compared outputs."""
        digest = 0
        for start, end in self._compared:
            digest = zlib.crc32(self._outputs[start:end], digest)
        return digest

    def intact(self) -> bool:
        """Tell whether the last run left what lies around its arrays as it was."""
        pieces = zip(self._edges, self._contents, strict=False)
        return all(bool((self._outputs[start:end] == was).all()) for (start, end), was in pieces)

    def take(self) -> list[bytes]:
        """Copy all that a program can write."""
        return [self._outputs[start:end].tobytes() for start, end in self.written]

    def show(self) -> None:
        """Put all that a program can write into the arena, to be judged."""
        for start, end in self.written:
            self._arena[start:end] = self._outputs[start:end]

    def put(self, taken: Sequence[bytes], variant: int) -> None:
        """Put what was taken into the arena, and this variant of the inputs, to be judged."""
        self._judged.take(variant)
        for (start, end), content in zip(self.written, taken, strict=True):
            self._arena[start:end] = np.frombuffer(content, np.uint8)


class KernelMemory(RunMemory):
    """Hold what programs write and what they read, each in a file, with holes for all else.

    No program's process ever maps the arena: what is judged there, and what lies between its
    arrays, is in nobody's reach. Raises `MemoryError`, and `FileNotFoundError` where the verifier's
    process has ended.
    """

    def __init__(self, arena: Arena, compared: frozenset[str] = frozenset()) -> None:
        size, data = arena.layout.total_bytes, map_arena(arena)
        super().__init__(arena.layout, compared, data, None, None)
        self._files: list[int] = []
        try:
            for name, pages in (("written", self.written), ("read", self.readable)):
                self._files.append(memory_file(name, size, pages))
            self._outputs, self._inputs = (_map(file, size) for file in self._files)
        except BaseException:
            self.close()
            raise

    def open(self) -> tuple[int, int]:
        """Open the file that is written, and for reading only the other; the caller closes both."""
        written, read = (f"/proc/self/fd/{file}" for file in self._files)
        return os.open(written, os.O_RDWR | os.O_CLOEXEC), os.open(read, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the files; whoever maps them keeps what they hold."""
        for file in self._files:
            os.close(file)
        self._files = []


def map_arena(arena: Arena) -> Array:
    """Map the verifier's memory."""
    assert arena.host_name is not None
    file = os.open(arena.host_name, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _map(file, arena.layout.total_bytes)
    finally:
        os.close(file)


def _ranges(slots: Iterable[Slot]) -> Ranges:
    return [(slot.offset, slot.offset + slot.size_bytes) for slot in slots]


def _map(file: int, size: int) -> Array:
    return np.frombuffer(mmap.mmap(file, size), np.uint8)


START_TIMEOUT_S = 60.0
# What the server may take beyond what it allows a program, which it watches itself.
GRACE_S = 10.0
# What a process may take beyond the limit that the kernel's own launch watches, and to load.
_LATE_S = 1.0
_LOAD_S = 3.0
# Programs whose processes live on, with their state, while others are verified.
LOADED_PROGRAMS = 16
_Key = tuple[bytes, tuple[Launch, ...], tuple[tuple[str, str], ...]]


class HostRunError(TunerError):
    """Report a run that did not end as it should.

    `log` is what the kernel's process wrote; `killed` says that SIGKILL ended it.
    """

    def __init__(
        self, message: str, code: LaunchEnd = LaunchEnd.REFUSED, log: str = "", killed: bool = False
    ) -> None:
        super().__init__(message)
        self.code, self.log, self.killed = code, log, killed


class HostWorker(ChildProcess):
    """Start a server that runs programs in confined children, and ask it.

    `environment` is all that it sees of the outside, apart from where libraries are. Raises
    `ChildDiedError` or `ChildTimeoutError` where the server itself fails, `WorkerError` where no
    child of it can be started, and `HostRunError` where a program does, which then has to be loaded
    again. `compared` names the outputs whose bits may not differ between runs.
    """

    # Isolated, without site-packages: nothing of the user's environment counts.
    flags = ("-I", "-S")

    def __init__(
        self,
        launch_timeout_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.launch_timeout_s = launch_timeout_s
        self._memory: KernelMemory | None = None
        self._layout: Layout | None = None
        self._loaded: dict[_Key, int] = {}
        self._count = 0
        libraries = os.environ.get("LD_LIBRARY_PATH", "")  # Python itself may need it
        outside = {"LD_LIBRARY_PATH": libraries} if libraries else {}
        outside |= environment or {}
        if "ASAN_OPTIONS" in outside:  # a kernel's process may create no files, reports included
            outside["ASAN_OPTIONS"] += ":log_path=stderr"
        # A sanitizer that names lines reads the program it is in.
        readable = [str(Path(sys.executable).resolve()), *filter(None, libraries.split(":"))]
        # Gone as soon as the server is in it: nothing can be created there, nor is left behind.
        with tempfile.TemporaryDirectory(prefix="tune-kernel-") as folder:
            super().__init__(
                "tune-kernels",
                "tuner.extensions.cpu.server",
                readable,
                environment=outside,
                folder=folder,
                stdout=subprocess.DEVNULL,
            )
        try:
            hello = ServerHello(**self.read(START_TIMEOUT_S).header)
            if hello.fault:
                raise WorkerError(f"no process can be started to run kernels: {hello.fault}")
        except BaseException:
            self.kill()
            raise
        self.limits = tuple(hello.limits)
        self._idle, self.noise_us = hello, hello.noise_us

    def attach(self, arena: Arena, compared: frozenset[str] = frozenset()) -> None:
        """Map the verifier's memory for one workload and end the programs of the previous one.

        Its layout is one by pages, for programs cannot reach what lies between arrays.
        """
        self._forget()
        descriptors: tuple[int, ...] = ()
        try:
            self._memory = KernelMemory(arena, compared)
            descriptors = self._memory.open()
            offsets = {slot.name: slot.offset for slot in arena.layout.slots}
            parameters = [
                offsets[item] if isinstance(item, str) else bytes(SCALARS[item[0]](item[1])).hex()
                for item in arena.layout.order
            ]
            places = (arena.layout.guards, self._memory.written, self._memory.readable)
            self._ask(
                AttachRequest(arena.layout.total_bytes, parameters, *places), GRACE_S, *descriptors
            )
        except FileNotFoundError as error:
            raise WorkerError("the process that verifies results ended") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._layout = arena.layout

    def detach(self) -> None:
        self._forget()
        self._ask(DetachRequest(), GRACE_S)

    def kill(self) -> None:
        super().kill()
        self._forget()

    def _forget(self) -> None:
        self._loaded.clear()
        if self._memory is not None:
            self._memory.close()
        self._memory = None

    @property
    def memory(self) -> KernelMemory:
        """What runs find and leave, from `attach` on; `renew` it before the first."""
        assert self._memory is not None
        return self._memory

    def run(self, program: Program, order: int, fill: int, variant: int = 0) -> tuple[float, int]:
        """Run the program; return microseconds and a checksum of the compared outputs.

        The time is the server's, not the word of the process that the program runs in, less what
        an empty command takes; it is never below what that varies by, nor what it computed for.
        Outputs and scratch hold the byte `fill` before, and the inputs are this variant of the
        patch.
        """
        number = self._load(program)
        timeout_s = self.launch_timeout_s * len(program.launches) + _LATE_S
        self.memory.prepare(number, fill, variant)
        ran = self._ask(RunRequest(number, order, timeout_s), timeout_s + GRACE_S)
        self._check(program, ran)
        wall_us = ran.wall_us - self._idle.handshake_us
        computing_us = ran.computing_us - self._idle.computing_us
        return max(wall_us, computing_us, self.noise_us), self.memory.digest()

    def keep_only(self, *programs: Program) -> None:
        """End the processes of all other programs: they would take part in what is timed."""
        kept = {_key(program) for program in programs}
        self._unload([key for key in self._loaded if key not in kept])

    def keep_latest(self, program: Program) -> None:
        """End the oldest programs where there are more than are kept beside this one."""
        others = [key for key in self._loaded if key != _key(program)]
        self._unload(others[: max(0, len(others) + 1 - LOADED_PROGRAMS)])

    def _unload(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            self._ask(UnloadRequest(self._loaded.pop(key)), GRACE_S)

    def _load(self, program: Program) -> int:
        """Load a program unless it is; its process keeps its state from run to run.

        What is right only in a first run, or gives an earlier run's results, would pass if every
        run had a process of its own.
        """
        key = _key(program)
        if key in self._loaded:
            self._loaded[key] = self._loaded.pop(key)  # the latest is the last
            return self._loaded[key]
        if fault := elf_fault(program.cubin):
            raise HostRunError(f"the compiled kernel {fault}")
        self._count += 1
        assert self._layout is not None
        calls = [
            LaunchCall(
                *(
                    program.lowered[launch.kernel],
                    launch.grid,
                    launch.block,
                    launch.cluster or (1, 1, 1),
                ),
                *(
                    launch.shared_bytes,
                    self._layout.places(launch.arguments),
                    bool(launch.arguments),
                ),
                [(self._layout.slot(each.of).offset, _tensor_map(each)) for each in launch.maps],
            )
            for launch in program.launches
        ]
        limit_s = self.launch_timeout_s
        request = LoadRequest(self._count, calls, limit_s, limit_s + _LOAD_S)
        # Put bytes into a file without a place that nobody can change; return its descriptor.
        descriptor = os.memfd_create("kernel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(program.cubin)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        library = descriptor
        try:
            self._check(program, self._ask(request, request.timeout_s + GRACE_S, library))
        finally:
            os.close(library)
        self._loaded[key] = self._count
        return self._count

    def _check(self, program: Program, ran: RunAnswer) -> None:
        code = LaunchEnd(ran.code)
        if code is LaunchEnd.DONE:
            return
        self._loaded.pop(_key(program), None)
        late = f" ({self.launch_timeout_s:g} s)" if code is LaunchEnd.TIMEOUT else ""
        raise HostRunError(ran.message + late, code, ran.log, killed=ran.killed)

    def _ask(self, request: Request, timeout_s: float, *descriptors: int) -> RunAnswer:
        self.write(encode_request(request), descriptors=descriptors)
        return RunAnswer(**self.read(timeout_s).header)


def _key(program: Program) -> _Key:
    return program.cubin, program.launches, tuple(sorted(program.lowered.items()))


# As `TensorMap` in headers/on_host/asynchronous.h, where the innermost dimension is the first.
_MAP = struct.Struct("=QQIIII5Q4Q5I4x")
_MAP_MAGIC = 0x70616D726F736E74


def _tensor_map(tensor_map: TensorMap) -> str:
    def pad_sizes(sizes: Sequence[int], count: int) -> list[int]:
        return [*reversed(sizes), *[0] * (count - len(sizes))]

    sizes, strides, box = (
        pad_sizes(tensor_map.shape, 5),
        pad_sizes(tensor_map.strides, 4),
        pad_sizes(tensor_map.box, 5),
    )
    kind = (len(tensor_map.shape), tensor_map.element_bytes, tensor_map.swizzle, 0)
    return _MAP.pack(_MAP_MAGIC, 0, *kind, *sizes, *strides, *box).hex()


_HEADER = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 190: "CUDA", 243: "riscv64"}


def elf_fault(library: bytes) -> str:
    """Say why these bytes are no shared library for this machine; empty if they may be one."""
    if len(library) < _HEADER.size:
        return f"is no library: it has {len(library)} bytes"
    magic, wide, _, _, _, kind, machine, *rest = _HEADER.unpack_from(library)
    sections, section_bytes, section_count = rest[3], rest[8], rest[9]
    if magic != b"\x7fELF":
        return "is no library: it does not begin as an ELF file"
    name = _MACHINES.get(machine, f"machine {machine}")
    if name != platform.machine() and platform.machine() in _MACHINES.values():
        return f"is for {name}, and this machine is {platform.machine()}"
    if wide != 2 or kind != 3:  # ET_DYN
        return "is no shared library of 64 bits"
    # The table of sections is the last thing in a library.
    expected = sections + section_bytes * section_count
    if len(library) < expected:
        return f"is cut short: {len(library)} of {expected} bytes"
    return ""
