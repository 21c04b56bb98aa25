"""OpenCL as a `Runtime` of programs, by pyopencl."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tuner.device.base import Program
from tuner.device.layout import SCALARS, Layout, fill_byte
from tuner.extensions.backends.copying import Bytes, CallFailedError, CopyingWorker
from tuner.model.errors import DeviceError
from tuner.model.kernel import Launch
from tuner.process.confinement import be_quiet

INSTALL = (
    "pip install -e '.[opencl]' in the checkout brings PoCL, which is one for every CPU (Debian: "
    "pocl-opencl-icd); a GPU's comes with its driver"
)
# Whose compiler waits with the machine code until it knows the size of a work-group.
POCL = "Portable Computing Language"


@dataclass(frozen=True, slots=True)
class OpenclDescription:
    """One device as its platform describes it; `--device opencl:NUMBER` names it."""

    number: int
    name: str
    platform: str
    version: str
    compute_units: int
    memory_gib: float
    is_cpu: bool

    @property
    def title(self) -> str:
        return f"{self.name.removeprefix('pthread-')} ({self.platform})"

    @property
    def is_pocl(self) -> bool:
        return self.platform.startswith(POCL)


def list_devices() -> tuple[OpenclDescription, ...]:
    """List them in the platforms' order; none where pyopencl or every platform is missing."""
    return tuple(_describe_device(number, one) for number, one in enumerate(_handles()))


def find_device(number: int) -> tuple[OpenclDescription, Any]:
    """Look a device up, with pyopencl's object for it; raise `DeviceError` where there is none."""
    if importlib.util.find_spec("pyopencl") is None:
        raise DeviceError("pyopencl is not installed, which kernels in OpenCL need", remedy=INSTALL)
    handles = _handles()
    if not handles:
        raise DeviceError("no OpenCL platform was found", remedy=INSTALL)
    if number >= len(handles):
        known = "the only one is 0" if len(handles) == 1 else f"there are 0 to {len(handles) - 1}"
        raise DeviceError(f"there is no OpenCL device {number}", remedy=f"{known}: `tune devices`")
    return _describe_device(number, handles[number]), handles[number]


def keep_private(cache_dir: Path) -> None:
    """Keep what OpenCL caches in this process in a folder of its own; before it is imported.

    Otherwise times and results could depend on what the user has compiled before.
    """
    os.environ |= {"POCL_CACHE_DIR": str(cache_dir), "PYOPENCL_NO_CACHE": "1"}


def _handles() -> list[Any]:
    try:
        import pyopencl
    except ImportError:
        return []
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.LogicError:  # so the loader says that there is no platform
        return []
    found: list[Any] = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except pyopencl.Error:  # a driver without its hardware
            continue
    return found


def _describe_device(number: int, device: Any) -> OpenclDescription:
    import pyopencl

    platform = device.platform
    return OpenclDescription(
        number=number,
        name=" ".join(device.name.split()),
        platform=platform.name.strip(),
        version=f"{platform.version.strip()}, driver {device.driver_version.strip()}",
        compute_units=device.max_compute_units,
        memory_gib=device.global_mem_size / 2**30,
        is_cpu=bool(device.type & pyopencl.device_type.CPU),
    )


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


class Arguments:
    """The arrays of a layout in one buffer, as kernels are given them."""

    def __init__(self, layout: Layout, buffer: Any) -> None:
        self.layout = layout
        self.arrays = {
            slot.name: buffer.get_sub_region(slot.offset, slot.size_bytes) for slot in layout.slots
        }


class Opencl:
    """One device of a platform in this process; implements `Runtime`."""

    most_copies, warm_up_calls = 32, 1

    def __init__(self, number: int) -> None:
        import pyopencl

        self._cl: Any = pyopencl
        self._device, self._handle = find_device(number)
        self._context = pyopencl.Context([self._handle])
        profiling = pyopencl.command_queue_properties.PROFILING_ENABLE
        self._queue = pyopencl.CommandQueue(self._context, properties=profiling)
        try:
            self._own = pyopencl.Program(self._context, _OWN_KERNELS).build()
        except pyopencl.Error as error:  # PoCL's LLVM may be older than the processor
            lines = [line for line in str(error).splitlines() if line.startswith("error:")]
            raise DeviceError(
                f"{self._device.title} compiles nothing here: {' '.join(lines) or error}",
                remedy="an OpenCL platform that knows this processor, such as a newer PoCL; "
                "`tune devices` lists what is here",
            ) from error
        self._spoiler = pyopencl.Kernel(self._own, "spoil")
        # Of what was launched since the clock was started.
        self._events: list[Any] = []

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

    def allocate(self, size_bytes: int) -> Any:
        try:
            return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size_bytes)
        except self._cl.Error as error:
            raise MemoryError(str(error)) from error

    def free(self, place: Any) -> None:
        place.release()

    def upload(self, place: Any, source: Bytes) -> None:
        self._move(place, source)

    def download(self, target: Bytes, place: Any) -> None:
        self._move(target, place)

    def copy(self, target: Any, source: Any, offset: int, size_bytes: int) -> None:
        places = {"src_offset": offset, "dst_offset": offset}
        self._cl.enqueue_copy(self._queue, target, source, byte_count=size_bytes, **places)

    def fill(self, place: Any, byte: int, offset: int, size_bytes: int) -> None:
        self._cl.enqueue_fill_buffer(self._queue, place, np.uint8(byte), offset, size_bytes)

    def load(self, program: Program) -> dict[str, Any]:
        """Build a program's binary; give its kernels by the names that launches use."""
        cl = self._cl
        try:
            made = cl.Program(self._context, [self._handle], [program.cubin])
            unlinked = cl.program_binary_type.COMPILED_OBJECT
            what = cl.program_build_info.BINARY_TYPE
            if made.get_build_info(self._handle, what) == unlinked:
                built = cl.link_program(self._context, [made], devices=[self._handle])
            else:
                built = made.build()
        except cl.Error as error:
            raise CallFailedError(f"the compiled kernel cannot be loaded: {error}") from error
        names = {launch.kernel for launch in program.launches}
        return {name: cl.Kernel(built, program.lowered[name]) for name in names}

    def unload(self, code: dict[str, Any]) -> None:
        code.clear()

    def bind(self, layout: Layout, place: Any) -> Arguments:
        return Arguments(layout, place)

    def launch(self, code: dict[str, Any], launch: Launch, arguments: Arguments) -> None:
        kernel, layout, values = code[launch.kernel], arguments.layout, list[Any]()
        for place in layout.places(launch.arguments):
            item = layout.order[place]
            if isinstance(item, str):
                values.append(arguments.arrays[item])
            else:
                values.append(bytes(SCALARS[item[0]](item[1])))
        if launch.shared_bytes:
            values.append(self._cl.LocalMemory(launch.shared_bytes))
        if kernel.num_args != len(values):
            raise CallFailedError(
                f"the kernel `{launch.kernel}` has {kernel.num_args} parameters, and the launch "
                f"gives it {len(values)}" + (" with its local memory" * bool(launch.shared_bytes))
            )
        sizes = [count * size for count, size in zip(launch.grid, launch.block, strict=True)]
        try:
            for index, value in enumerate(values):
                kernel.set_arg(index, value)
            event = self._cl.enqueue_nd_range_kernel(self._queue, kernel, sizes, launch.block)
        except self._cl.Error as error:
            raise CallFailedError(f"{launch.kernel}: {error}") from error
        self._events.append(event)

    def spoil(self) -> None:
        """Write over what kernels before have left in local memory."""
        words = int(self._handle.local_mem_size) // 4
        self._spoiler.set_args(
            self._cl.LocalMemory(4 * words), np.uint32(words), np.uint32(fill_byte() * 0x01010101)
        )
        groups = 4 * self._device.compute_units
        self._cl.enqueue_nd_range_kernel(self._queue, self._spoiler, (groups,), (1,))

    def wait(self) -> None:
        try:
            self._queue.finish()
        except self._cl.Error as error:
            raise CallFailedError(str(error), sticky=True) from error

    def start(self) -> None:
        self._events.clear()

    def stop_us(self) -> float:
        self.wait()
        return int(self._events[-1].profile.end - self._events[0].profile.start) * 1e-3

    def _move(self, to: Any, source: Any) -> None:
        try:
            self._cl.enqueue_copy(self._queue, to, source)
        except self._cl.Error as error:
            raise CallFailedError(str(error), sticky=True) from error
        self.wait()


def opencl_worker(
    number: int, cache_dir: Path, deterministic: frozenset[str]
) -> CopyingWorker[Any, dict[str, Any], Arguments]:
    """Make the worker of one device, in a process of its own that caches in a folder of its own."""
    keep_private(cache_dir)
    be_quiet()
    return CopyingWorker(Opencl(number), deterministic)
