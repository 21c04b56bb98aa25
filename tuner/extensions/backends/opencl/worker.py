"""The process that runs candidate code in OpenCL: it may crash or hang, and is killed then."""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from tuner.device.base import Program
from tuner.device.layout import SCALARS, UNCHANGED, Arena, Layout, Patch, fill_byte
from tuner.device.timing import TimingPolicy, finished, hopeless
from tuner.extensions.backends.opencl.devices import find_device, keep_private
from tuner.model.errors import DeviceError, TunerError
from tuner.model.kernel import Launch
from tuner.model.trial import Measurement
from tuner.process.confinement import be_quiet

LOADED_PROGRAMS = 16
# Copies of a workload's arrays, each for one call of a replay: as many as fit, at least two.
COPIES_BYTES, MOST_COPIES, LEAST_COPIES = 64 << 20, 32, 2
# What stands for timed calls is replayed up to so many times.
RERUN_REPLAYS = 4
LEAST_US = 1e-3
PROBE_BYTES, PROBE_REPEATS = 64 << 20, 7
_OWN_KERNELS = """
__kernel void stream(__global float4* to, __global const float4* a, __global const float4* b) {
  const size_t i = get_global_id(0);
  to[i] = a[i] + b[i];
}
__kernel void spoil(__local uint* words, uint count, uint value) {
  for (uint i = get_local_id(0); i < count; i += get_local_size(0)) words[i] = value;
}
"""


class OpenclError(TunerError):
    """Report a call of OpenCL that failed; after a `sticky` one nothing works in its process."""

    def __init__(self, message: str, *, sticky: bool = False) -> None:
        super().__init__(message)
        self.sticky = sticky

    def __reduce__(self) -> Any:
        return _error, (self.message, self.sticky)


def _error(message: str, sticky: bool) -> OpenclError:
    return OpenclError(message, sticky=sticky)


class Copy:
    """One copy of a workload's arrays on the device, with the guards between them.

    `variant` is that of its inputs, None where they are unknown.
    """

    def __init__(self, cl: Any, context: Any, layout: Layout) -> None:
        self.buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, layout.total_bytes)
        self.arrays = {
            slot.name: self.buffer.get_sub_region(slot.offset, slot.size_bytes)
            for slot in layout.slots
        }
        self.variant: int | None = None


class OpenclWorker:
    """Load, launch and time programs on one OpenCL device.

    `deterministic` names the outputs whose bits may not differ between timed calls; `cache_dir` is
    where OpenCL keeps what it compiles.
    """

    def __init__(self, number: int, cache_dir: Path, deterministic: frozenset[str]) -> None:
        keep_private(cache_dir)
        be_quiet()
        import pyopencl

        self._cl: Any = pyopencl
        self._device, self._handle = find_device(number)
        self._context = pyopencl.Context([self._handle])
        profiling = pyopencl.command_queue_properties.PROFILING_ENABLE
        self._queue = pyopencl.CommandQueue(self._context, properties=profiling)
        self._own = pyopencl.Program(self._context, _OWN_KERNELS).build()
        self._spoiler = pyopencl.Kernel(self._own, "spoil")
        self._deterministic = deterministic
        self._loaded: OrderedDict[bytes, Any] = OrderedDict()
        self._memory: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self._layout: Layout | None = None
        self._copies: list[Copy] = []
        self._images: list[Any] = []
        self._kept: dict[tuple[int, int], np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._differing: set[int] = set()

    def describe(self) -> Mapping[str, Any]:
        """Tell what the device is and what it offers a kernel."""
        device, cl = self._handle, self._cl
        group = cl.kernel_work_group_info.PREFERRED_WORK_GROUP_SIZE_MULTIPLE
        return {
            "device": self._device,
            "c_version": device.opencl_c_version.strip(),
            "cache_bytes": int(device.global_mem_cache_size),
            "local_bytes": int(device.local_mem_size),
            "max_threads": int(device.max_work_group_size),
            "max_sizes": tuple(map(int, device.max_work_item_sizes[:3])),
            "alignment_bytes": int(device.mem_base_addr_align) // 8,
            "threads_per_warp": int(self._spoiler.get_work_group_info(group, device)),
            "streaming_gbps": self._streaming_gbps(),
        }

    def _streaming_gbps(self) -> float:
        """Measure the rate of reading two large arrays and writing one, in GB/s."""
        cl, size = self._cl, PROBE_BYTES
        buffers = [cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size) for _ in range(3)]
        for buffer in buffers:
            cl.enqueue_fill_buffer(self._queue, buffer, np.float32(1.0), 0, size)
        kernel, times = cl.Kernel(self._own, "stream"), []
        kernel.set_args(*buffers)
        for _ in range(PROBE_REPEATS):
            event = cl.enqueue_nd_range_kernel(self._queue, kernel, (size // 16,), None)
            event.wait()
            times.append(int(event.profile.end - event.profile.start))
        return 3 * size / max(min(times), 1)

    def attach(self, arena: Arena) -> None:
        """Map the verifier's memory for one workload."""
        self.detach()
        assert arena.host_name is not None
        descriptor = os.open(arena.host_name, os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(descriptor, arena.layout.total_bytes)
        finally:
            os.close(descriptor)
        self._memory = np.frombuffer(mapped, np.uint8)
        self._lay_out(arena.layout)

    def fit(self, layout: Layout) -> None:
        """Take another layout of what is mapped."""
        self._lay_out(layout)

    def _lay_out(self, layout: Layout) -> None:
        self._layout = layout
        self._kept.clear()
        count = max(LEAST_COPIES, min(COPIES_BYTES // layout.total_bytes, MOST_COPIES))
        try:
            self._copies = [Copy(self._cl, self._context, layout) for _ in range(count)]
            flags = self._cl.mem_flags.READ_ONLY
            # The arena with the one and with the other variant of the inputs.
            self._images = [
                self._cl.Buffer(self._context, flags, layout.total_bytes) for _ in range(2)
            ]
        except self._cl.Error as error:
            wanted = f"{count + 2} copies of {layout.total_bytes} bytes"
            raise MemoryError(f"{wanted}: {error}") from error

    def detach(self) -> None:
        self._copies, self._images, self._memory, self._layout = [], [], None, None
        self._kept.clear()

    def run_once(self, program: Program) -> None:
        """Run it once on what the arena holds, and copy all of that back."""
        copy = secrets.choice(self._copies)
        copy.variant = None
        self._move(copy.buffer, self._mapped)
        self._spoil()
        self._issue(self._load(program), program.launches, copy)
        self._move(self._mapped, copy.buffer)

    def time(
        self, program: Program, policy: TimingPolicy, incumbent_us: float | None, patch: Patch
    ) -> Measurement:
        """Time replays of a few calls, each on a copy of its own; `show` gives what they left."""
        self._renew(patch)
        kernels = self._load(program)
        calls, times = self._calls(program, kernels, policy), list[float]()
        started = time.perf_counter()
        while not finished(policy, times, time.perf_counter() - started, incumbent_us):
            times.append(self._replay(0, program, kernels, calls))
        slow = hopeless(policy, times, incumbent_us)
        return Measurement(tuple(times), calls, 1, slow)

    def compare(
        self, programs: Sequence[Program], policy: TimingPolicy, rounds: int, patch: Patch
    ) -> list[list[float]]:
        """Time programs interleaved, in an order drawn for each round: rows in us."""
        self._renew(patch)
        loaded = [self._load(program) for program in programs]
        calls = max(
            self._calls(program, kernels, policy)
            for program, kernels in zip(programs, loaded, strict=True)
        )
        turns, rows = list(range(len(programs))), []
        for _ in range(rounds):
            secrets.SystemRandom().shuffle(turns)
            row = [0.0] * len(programs)
            for index in turns:
                row[index] = self._replay(index, programs[index], loaded[index], calls)
            rows.append(row)
        return rows

    def rerun(self, program: Program) -> None:
        """Run it as when it was timed, on what the arena holds now; leave one result there."""
        self._renew(UNCHANGED)
        kernels = self._load(program)
        for _ in range(1 + secrets.randbelow(RERUN_REPLAYS)):
            self._replay(0, program, kernels, 1 + secrets.randbelow(len(self._copies)))
        self.show(0, 0)

    def show(self, index: int, variant: int) -> bool | None:
        """Put a program's last kept result on a variant into the arena; tell if bits repeat.

        Return None where there is none.
        """
        kept = self._kept.get((index, variant))
        if kept is None:
            return None
        self._mapped[...] = kept
        return index not in self._differing

    @property
    def _mapped(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        assert self._memory is not None
        return self._memory

    @property
    def _placed(self) -> Layout:
        assert self._layout is not None
        return self._layout

    def _renew(self, patch: Patch) -> None:
        """Take what the arena holds as the inputs of calls to come, and forget all results."""
        self._kept.clear()
        self._differing.clear()
        self._patch = patch
        image = self._mapped.copy()
        for buffer, values in zip(self._images, patch.values, strict=True):
            image[list(patch.offsets)] = np.frombuffer(values, np.uint8)
            self._move(buffer, image)
        for copy in self._copies:
            copy.variant = None

    def _calls(self, program: Program, kernels: Sequence[Any], policy: TimingPolicy) -> int:
        """Choose how many calls make a replay long enough to time."""
        expected_us = self._replay(None, program, kernels, 1)
        return max(1, min(ceil(policy.min_replay_us / expected_us), len(self._copies)))

    def _replay(
        self, index: int | None, program: Program, kernels: Sequence[Any], calls: int
    ) -> float:
        """Run so many calls back to back; microseconds a call.

        The result of one of them is kept, as the program's of that index. Each call has a copy of
        its own, of a variant and a fill that nobody can foresee.
        """
        chosen = secrets.SystemRandom().sample(self._copies, calls)
        fill = fill_byte()
        for copy, variant in zip(chosen, self._patch.draw(calls), strict=True):
            self._prepare(copy, variant, fill)
        self._spoil()
        self._queue.finish()
        issued = [self._issue(kernels, program.launches, copy) for copy in chosen]
        self._finish()
        if index is not None:
            self._keep(index, secrets.choice(chosen))
        elapsed_ns = int(issued[-1][-1].profile.end - issued[0][0].profile.start)
        return max(elapsed_ns * 1e-3 / calls, LEAST_US)

    def _prepare(self, copy: Copy, variant: int, fill: int) -> None:
        cl, queue, layout, image = self._cl, self._queue, self._placed, self._images[variant]
        if copy.variant != variant:
            size = layout.total_bytes
            cl.enqueue_copy(queue, copy.buffer, image, byte_count=size)
        elif restored := layout.with_role("inout"):
            for slot in restored:
                places = {"src_offset": slot.offset, "dst_offset": slot.offset}
                cl.enqueue_copy(queue, copy.buffer, image, byte_count=slot.size_bytes, **places)
        for slots, byte in ((layout.spoiled, fill), (layout.zeroed, 0)):
            for slot in slots:
                value = np.uint8(byte)
                cl.enqueue_fill_buffer(queue, copy.buffer, value, slot.offset, slot.size_bytes)
        copy.variant = variant

    def _spoil(self) -> None:
        """Write over what kernels before have left in local memory."""
        words = int(self._handle.local_mem_size) // 4
        self._spoiler.set_args(
            self._cl.LocalMemory(4 * words), np.uint32(words), np.uint32(fill_byte() * 0x01010101)
        )
        groups = 4 * self._device.compute_units
        self._cl.enqueue_nd_range_kernel(self._queue, self._spoiler, (groups,), (1,))

    def _keep(self, index: int, copy: Copy) -> None:
        assert copy.variant is not None
        found, key = np.empty_like(self._mapped), (index, copy.variant)
        self._move(found, copy.buffer)
        before = self._kept.get(key)
        for slot in self._placed.with_role("output", "inout"):
            place = slice(slot.offset, slot.offset + slot.size_bytes)
            if before is None or slot.name not in self._deterministic:
                continue
            if not np.array_equal(found[place], before[place]):
                self._differing.add(index)
        self._kept[key] = found

    def _issue(self, kernels: Sequence[Any], launches: Sequence[Launch], copy: Copy) -> list[Any]:
        return [
            self._launched(kernel, launch, copy)
            for kernel, launch in zip(kernels, launches, strict=True)
        ]

    def _launched(self, kernel: Any, launch: Launch, copy: Copy) -> Any:
        layout = self._placed
        values: list[Any] = []
        for place in layout.places(launch.arguments):
            item = layout.order[place]
            if isinstance(item, str):
                values.append(copy.arrays[item])
            else:
                values.append(bytes(SCALARS[item[0]](item[1])))
        if launch.shared_bytes:
            values.append(self._cl.LocalMemory(launch.shared_bytes))
        if kernel.num_args != len(values):
            raise OpenclError(
                f"the kernel `{launch.kernel}` has {kernel.num_args} parameters, and the launch "
                f"gives it {len(values)}" + (" with its local memory" * bool(launch.shared_bytes))
            )
        sizes = [count * size for count, size in zip(launch.grid, launch.block, strict=True)]
        try:
            for index, value in enumerate(values):
                kernel.set_arg(index, value)
            return self._cl.enqueue_nd_range_kernel(self._queue, kernel, sizes, launch.block)
        except self._cl.Error as error:
            raise OpenclError(f"{launch.kernel}: {error}") from error

    def _move(self, to: Any, source: Any) -> None:
        """Copy between this process and the device, behind all that was enqueued, and wait."""
        try:
            self._cl.enqueue_copy(self._queue, to, source)
            self._queue.finish()
        except self._cl.Error as error:
            raise OpenclError(str(error), sticky=True) from error

    def _finish(self) -> None:
        try:
            self._queue.finish()
        except self._cl.Error as error:
            raise OpenclError(str(error), sticky=True) from error

    def _load(self, program: Program) -> list[Any]:
        """Build a program's binary unless it is built; give a kernel for each launch."""
        cl, binary = self._cl, program.cubin
        if binary not in self._loaded:
            while len(self._loaded) >= LOADED_PROGRAMS:
                self._loaded.popitem(last=False)
            try:
                made = cl.Program(self._context, [self._handle], [binary])
                unlinked = cl.program_binary_type.COMPILED_OBJECT
                what = cl.program_build_info.BINARY_TYPE
                if made.get_build_info(self._handle, what) == unlinked:
                    built = cl.link_program(self._context, [made], devices=[self._handle])
                else:
                    built = made.build()
            except cl.Error as error:
                raise OpenclError(f"the compiled kernel cannot be loaded: {error}") from error
            self._loaded[binary] = built
        self._loaded.move_to_end(binary)
        built = self._loaded[binary]
        return [cl.Kernel(built, program.lowered[launch.kernel]) for launch in program.launches]


def require_aligned(alignment_bytes: int, ours: int, name: str) -> None:
    """Raise `DeviceError` where arrays cannot lie in one buffer as they are laid out."""
    if alignment_bytes > ours:
        raise DeviceError(
            f"{name} wants arrays at multiples of {alignment_bytes} bytes, and they lie at {ours}"
        )
