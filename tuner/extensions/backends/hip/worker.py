"""The process that runs candidate code on an AMD GPU: it may crash or hang, and is killed then."""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import time
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from tuner.device.base import Program
from tuner.device.layout import UNCHANGED, Arena, Patch, fill_byte
from tuner.device.timing import TimingPolicy, finished, hopeless
from tuner.extensions.backends.hip.driver import Hip, LoadedModule, Parameters, Stopwatch
from tuner.extensions.backends.hip.topology import NODES, gpu_at
from tuner.model.amd import amd_limits
from tuner.model.trial import Measurement
from tuner.process.confinement import be_quiet

LOADED_PROGRAMS = 16
# What stands for timed calls is run up to so many times.
RERUN_CALLS = 4
WARM_UP_CALLS = 3
# What a flush writes, in the largest cache's sizes.
FLUSH_MULTIPLE = 2
# For the streaming rate: beyond every cache, within an eighth of the memory that is free.
PROBE_BYTES, PROBE_SHARE, PROBE_REPEATS = 1 << 30, 8, 3
# Events may come out alike for what took less than their resolution.
LEAST_US = 1e-3
# After a fault ROCm's runtime writes the GPU's memory to a file, which takes minutes, unless told
# otherwise; where it heeds neither of these it stays within the limit on core files.
_NO_DUMPS = {"HSA_DISABLE_COREDUMP_ON_EXCEPTION": "1", "HSA_COREDUMP_PATTERN": os.devnull}


class HipWorker:
    """Load, launch and time programs on one GPU; the verifier's memory is copied in and out.

    `deterministic` names the outputs whose bits may not differ between timed calls.
    """

    def __init__(
        self, ordinal: int, deterministic: frozenset[str] = frozenset(), nodes: Path = NODES
    ) -> None:
        be_quiet()
        os.environ |= _NO_DUMPS
        self._hip = Hip(ordinal)
        self._deterministic = deterministic
        gpu = gpu_at(self._hip.bus_id, nodes)
        self.architecture, limits = gpu.architecture, amd_limits(gpu.architecture)
        self._multiprocessors = max(1, gpu.simds // limits.partitions)
        self._cache_bytes = limits.cache_bytes
        self._stopwatch = Stopwatch(self._hip)
        self._loaded: OrderedDict[str, LoadedModule] = OrderedDict()
        self._flushed: int | None = None
        self._flushes = count()
        self._mapped: _Mapped | None = None
        # Of each program that was timed last: what its last call on each variant left.
        self._kept: list[_Kept] = []
        self._patch = UNCHANGED

    def bus_id(self) -> str:
        """Say which GPU it is, without any work on it."""
        return self._hip.bus_id

    def describe(self) -> Mapping[str, int | float | str]:
        return {
            "name": self._hip.name,
            "architecture": self.architecture,
            "multiprocessors": self._multiprocessors,
            "cache_bytes": self._cache_bytes,
            "runtime": self._hip.version,
            "streaming_gbps": self._streaming_gbps(),
        }

    def attach(self, arena: Arena) -> None:
        self.detach()
        self._mapped = _Mapped(self._hip, arena)

    def detach(self) -> None:
        self._kept = []
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    def run_once(self, program: Program) -> None:
        """Copy all in, launch once, wait, and copy all back, with what lies around the arrays."""
        memory = self._memory
        memory.upload()
        self._launch(program)
        self._hip.synchronize()
        memory.download()

    def time(
        self, program: Program, policy: TimingPolicy, incumbent_us: float | None, patch: Patch
    ) -> Measurement:
        """Time single calls, each on restored arrays and with the caches full of other things."""
        self._renew(patch, 1)
        for _ in range(WARM_UP_CALLS):
            self._timed(program, 0)
        times: list[float] = []
        started = time.perf_counter()
        while self._kept[0].repeats and not finished(
            policy, times, time.perf_counter() - started, incumbent_us
        ):
            times.append(self._timed(program, 0))
        return Measurement(tuple(times), 1, 1, hopeless(policy, times, incumbent_us))

    def compare(
        self, programs: Sequence[Program], rounds: int, patch: Patch
    ) -> list[tuple[float, ...]]:
        """Time programs in alternation, in an order drawn for each round."""
        self._renew(patch, len(programs))
        turns = list(range(len(programs)))
        for index in turns:
            self._timed(programs[index], index)
        rows = []
        for _ in range(rounds):
            secrets.SystemRandom().shuffle(turns)
            row = [0.0] * len(programs)
            for index in turns:
                row[index] = self._timed(programs[index], index)
            rows.append(tuple(row))
        return rows

    def rerun(self, program: Program) -> None:
        """Run it as when it was timed, on what the arena holds now; the last result is shown."""
        self._renew(UNCHANGED, 1)
        for _ in range(1 + secrets.randbelow(RERUN_CALLS)):
            self._timed(program, 0)
        self.show(0, 0)

    def show(self, index: int, variant: int) -> bool | None:
        """Put back what a program's last call on a variant left; say whether its bits repeat.

        None where no call met that variant.
        """
        kept, memory = self._kept[index], self._memory
        if variant not in kept.left:
            return None
        for offset, value in zip(self._patch.offsets, self._patch.values[variant], strict=True):
            memory.host[offset] = value
        memory.put(kept.left[variant])
        return kept.repeats

    def _renew(self, patch: Patch, programs: int) -> None:
        """Take what the arena holds for what each call finds, but for outputs and the patch."""
        self._patch = patch
        self._kept = [_Kept() for _ in range(programs)]
        self._memory.keep()

    def _timed(self, program: Program, index: int) -> float:
        memory, kept = self._memory, self._kept[index]
        (variant,) = self._patch.draw()
        memory.restore(fill_byte())
        for offset, value in zip(self._patch.offsets, self._patch.values[variant], strict=True):
            self._hip.fill(memory.base + offset, value, 1)
        self._load(program)
        self._flush()
        self._hip.synchronize()
        self._stopwatch.start()
        self._launch(program)
        time_us = self._stopwatch.stop_us()
        left = memory.take()
        kept.left[variant] = left
        digest = memory.digest(left, self._deterministic)
        kept.repeats &= kept.digests.setdefault(variant, digest) == digest
        return max(time_us, LEAST_US)

    def _launch(self, program: Program) -> None:
        module, parameters = self._load(program), self._memory.parameters
        for launch in program.launches:
            function = module.functions[launch.kernel]
            self._hip.launch(function, launch, parameters.address(launch.arguments))

    def _load(self, program: Program) -> LoadedModule:
        key = program.key
        if key not in self._loaded:
            while len(self._loaded) >= LOADED_PROGRAMS:
                self._loaded.popitem(last=False)[1].unload()
            code = (program.cubin, program.lowered, program.launches)
            self._loaded[key] = LoadedModule(self._hip, *code)
        self._loaded.move_to_end(key)
        return self._loaded[key]

    def _flush(self) -> None:
        """Fill the caches, the one beside the memory too, with what no kernel reads."""
        size_bytes = FLUSH_MULTIPLE * self._cache_bytes
        if self._flushed is None:
            self._flushed = self._hip.allocate(size_bytes)
        self._hip.fill(self._flushed, next(self._flushes) & 0xFF, size_bytes)

    def _streaming_gbps(self) -> float:
        """Measure copying on the GPU, reads and writes together, in GB/s."""
        size_bytes = min(PROBE_BYTES, self._hip.free_bytes // PROBE_SHARE) // 2
        target, source = (self._hip.allocate(size_bytes) for _ in range(2))
        times_us = []
        for _ in range(1 + PROBE_REPEATS):
            self._stopwatch.start()
            self._hip.copy(target, source, size_bytes)
            times_us.append(max(self._stopwatch.stop_us(), LEAST_US))
        for place in (target, source):
            self._hip.free(place)
        return 2 * size_bytes / min(times_us) / 1e3

    @property
    def _memory(self) -> _Mapped:
        assert self._mapped is not None
        return self._mapped


class _Kept:
    """What the timed calls of one program left, by the variant of the inputs that they met."""

    def __init__(self) -> None:
        self.left: dict[int, list[bytes]] = {}
        self.digests: dict[int, int] = {}
        self.repeats = True


class _Mapped:
    """The verifier's memory, a copy of it on the GPU, and one that calls are restored from."""

    def __init__(self, hip: Hip, arena: Arena) -> None:
        assert arena.host_name is not None
        self._hip, self.layout = hip, arena.layout
        self._size = self.layout.total_bytes
        descriptor = os.open(arena.host_name, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.host = mmap.mmap(descriptor, self._size)
        finally:
            os.close(descriptor)
        self.base = hip.allocate(self._size)
        self._kept: int | None = None
        self.parameters = Parameters(self.layout, self.base)
        self._written = self.layout.with_role("output", "scratch", "inout")

    def upload(self) -> None:
        self._hip.upload(self.base, self._address, self._size)

    def download(self) -> None:
        self._hip.download(self._address, self.base, self._size)

    def keep(self) -> None:
        """Keep what the verifier's memory holds now, on the GPU."""
        if self._kept is None:
            self._kept = self._hip.allocate(self._size)
        self._hip.upload(self._kept, self._address, self._size)

    def restore(self, byte: int) -> None:
        """Give a call what was kept, and spoil what it has yet to write with `byte`."""
        assert self._kept is not None
        self._hip.copy(self.base, self._kept, self._size)
        for slot in self.layout.spoiled:
            self._hip.fill(self.base + slot.offset, byte, slot.size_bytes)

    def take(self) -> list[bytes]:
        """Copy what a call has left of all that it can write, and around it."""
        found = []
        for start, end in self._places:
            room = ctypes.create_string_buffer(end - start)
            self._hip.download(ctypes.addressof(room), self.base + start, end - start)
            found.append(room.raw)
        return found

    def put(self, taken: Sequence[bytes]) -> None:
        for (start, end), content in zip(self._places, taken, strict=True):
            self.host[start:end] = content

    def digest(self, taken: Sequence[bytes], names: frozenset[str]) -> int:
        """Sum up the outputs whose bits have to repeat."""
        digest = 0
        written = dict(zip((slot.name for slot in self._written), taken, strict=False))
        for slot in self.layout.with_role("output"):
            if slot.name in names:
                digest = zlib.crc32(written[slot.name], digest)
        return digest

    def close(self) -> None:
        self.host.close()
        for place in (self.base, self._kept):
            if place is not None:
                self._hip.free(place)

    @property
    def _places(self) -> list[tuple[int, int]]:
        slots = [(slot.offset, slot.offset + slot.size_bytes) for slot in self._written]
        return [*slots, *self.layout.guards]

    @property
    def _address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.host))
