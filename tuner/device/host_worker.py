"""The process that runs candidate code on the CPU: it may crash or hang, and is killed then."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing import shared_memory
from statistics import median

import numpy as np

from tuner.device.base import Program
from tuner.device.layout import SCALARS, Arena
from tuner.device.timing import TimingPolicy, finished, hopeless
from tuner.errors import TunerError
from tuner.kernel import Launch

LOADED_PROGRAMS = 16
MESSAGE_BYTES = 1024
PROBE_BYTES = 1 << 18
PROBE_REPEATS = 50


class Code(IntEnum):
    """How a launch ended; equal to `Code` in host_cuda/on_host/scheduler.h."""

    DONE = 0
    REFUSED = 1
    STUCK = 2
    TIMEOUT = 3
    FAULT = 4


class HostRunError(TunerError):
    """Report a launch that did not end as it should."""

    def __init__(self, message: str, code: Code = Code.REFUSED) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[HostRunError], tuple[str, Code]]:
        return HostRunError, (self.message, self.code)


class _LaunchRecord(ctypes.Structure):
    # As `Launch` in host_cuda/on_host/scheduler.h.
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_uint),
        ("backwards", ctypes.c_uint),
        ("timeout_s", ctypes.c_double),
        ("values", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("message_bytes", ctypes.c_size_t),
    )


@dataclass(frozen=True, slots=True)
class HostTimed:
    """What timing one program gave."""

    times_us: tuple[float, ...]
    stopped_early: bool


class HostWorker:
    """Load, launch and time programs on the CPU."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._arena: Arena | None = None
        self._shared: shared_memory.SharedMemory | None = None
        self._arguments: _Arguments | None = None
        self._loaded: OrderedDict[bytes, _Library] = OrderedDict()

    def streaming_gbps(self) -> float:
        """Measure adding two arrays that fit in the cache, in GB/s: no kernel can be faster."""
        a, b, c = (np.ones(PROBE_BYTES // 8) for _ in range(3))
        times = []
        for _ in range(PROBE_REPEATS):
            started = time.perf_counter()
            np.add(a, b, out=c)
            times.append(time.perf_counter() - started)
        return 3 * PROBE_BYTES / median(times) / 1e9

    def attach(self, arena: Arena) -> None:
        """Map the judge's memory for one workload and forget the previous workload."""
        self.detach()
        self._shared = shared_memory.SharedMemory(name=arena.host_name)
        self._arena = arena
        self._arguments = _Arguments(arena, self._address(0))

    def detach(self) -> None:
        """Unmap the judge's memory."""
        self._arena = self._arguments = None
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def run_once(self, program: Program, backwards: bool) -> None:
        """Run the program on the arena, the blocks and threads in either order."""
        library = self._load(program)
        for launch in program.launches:
            self._launch(library, program.lowered[launch.kernel], launch, backwards)

    def time(self, program: Program, policy: TimingPolicy, incumbent_us: float | None) -> HostTimed:
        """Time the program by the wall clock; the last run's output is left in the arena."""
        self.run_once(program, False)
        times: list[float] = []
        started = time.perf_counter()
        while not finished(policy, times, time.perf_counter() - started, incumbent_us):
            times.append(self._timed_us(program))
        return HostTimed(tuple(times), hopeless(policy, times, incumbent_us))

    def compare(self, programs: Sequence[Program], rounds: int, seed: int) -> list[list[float]]:
        """Time programs interleaved, each round in random order: `rounds` rows, in us."""
        shuffle = random.Random(seed).shuffle  # noqa: S311 - an order, not a secret
        order = list(range(len(programs)))
        for program in programs:
            self.run_once(program, False)
        rows = []
        for _ in range(rounds):
            shuffle(order)
            row = [0.0] * len(programs)
            for index in order:
                row[index] = self._timed_us(programs[index])
            rows.append(row)
        return rows

    def _timed_us(self, program: Program) -> float:
        self._spoil_outputs()
        started = time.perf_counter()
        self.run_once(program, False)
        return (time.perf_counter() - started) * 1e6

    def _spoil_outputs(self) -> None:
        """Overwrite the outputs with numbers that look like results: every run must do its work."""
        assert self._arena is not None
        byte = 0x40 + secrets.randbelow(0x3B)
        for slot in self._arena.layout.with_role("output", "scratch"):
            ctypes.memset(self._address(slot.offset), byte, slot.size_bytes)

    def _address(self, offset: int) -> int:
        assert self._shared is not None
        assert self._shared.buf is not None
        return ctypes.addressof(ctypes.c_char.from_buffer(self._shared.buf)) + offset

    def _launch(self, library: _Library, symbol: str, launch: Launch, backwards: bool) -> None:
        assert self._arguments is not None
        if launch.cluster is not None:
            raise HostRunError("thread block clusters can't run on the `host` device")
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        record = _LaunchRecord(
            grid=launch.grid,
            block=launch.block,
            shared_bytes=launch.shared_bytes,
            arguments=len(self._arguments.values),
            backwards=backwards,
            timeout_s=self._timeout_s,
            values=ctypes.addressof(self._arguments.pointers),
            sizes=ctypes.addressof(self._arguments.sizes),
            message=ctypes.addressof(message),
            message_bytes=MESSAGE_BYTES,
        )
        code = Code(library.function(symbol)(ctypes.byref(record)))
        if code is not Code.DONE:
            raise HostRunError(message.value.decode(errors="replace"), code)

    def _load(self, program: Program) -> _Library:
        key = program.cubin
        if key not in self._loaded:
            if len(self._loaded) >= LOADED_PROGRAMS:
                self._loaded.popitem(last=False)[1].unload()
            self._loaded[key] = _Library(key)
        self._loaded.move_to_end(key)
        return self._loaded[key]


class _Arguments:
    """A kernel's parameters: an array of pointers to them, and their sizes."""

    def __init__(self, arena: Arena, base: int) -> None:
        offsets = {slot.name: slot.offset for slot in arena.layout.slots}
        self.values = [
            ctypes.c_void_p(base + offsets[item])
            if isinstance(item, str)
            else SCALARS[item[0]](item[1])
            for item in arena.layout.order
        ]
        count = len(self.values)
        self.pointers = (ctypes.c_void_p * count)(*map(ctypes.addressof, self.values))
        self.sizes = (ctypes.c_uint * count)(*map(ctypes.sizeof, self.values))


class _Library:
    """A compiled kernel in this process."""

    def __init__(self, content: bytes) -> None:
        # Without a name in any folder: nothing is left behind when this process is killed. It
        # stays open, for the loader takes an equal path for the same library.
        self._file = os.memfd_create("kernel")
        with open(self._file, "wb", closefd=False) as file:
            file.write(content)
        try:
            self._library = ctypes.CDLL(f"/proc/self/fd/{self._file}")
        except OSError as error:
            os.close(self._file)
            raise HostRunError(f"the compiled kernel cannot be loaded: {error}") from error

    def function(self, symbol: str) -> ctypes._NamedFuncPointer:
        """Return the function that launches one kernel."""
        return self._library[symbol]

    def unload(self) -> None:
        """Release the library."""
        _ctypes.dlclose(self._library._handle)
        os.close(self._file)
