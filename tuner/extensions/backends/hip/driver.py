"""The HIP runtime as a `Runtime` of programs, by ctypes.

Only functions whose C interface has been the same since ROCm 5 are called, so that no header and
no package of one release is needed. It has not run on AMD's hardware yet: tests put a library in
its place whose kernels are the CPU's.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tuner.device.base import Program
from tuner.device.layout import KernelParameters, Layout
from tuner.extensions.backends.copying import Bytes, CallFailedError, CopyingWorker
from tuner.model.errors import DeviceError
from tuner.model.hardware import ROCM, amd_limits
from tuner.model.kernel import Launch
from tuner.process.confinement import be_quiet

LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")
_NO_DEVICE = 100
_SEEN = (
    "rocminfo lists them: the user has to be in the groups render and video, a container needs "
    "/dev/kfd and /dev/dri, and HIP_VISIBLE_DEVICES chooses among them; --device host verifies on "
    "the CPU"
)
# hipError_t: what was refused before anything ran leaves the process as good as before.
_REFUSALS = frozenset((1, 2, 9, 98, 200, 201, 209, 300, 301, 500, 701))
_OUT_OF_MEMORY = 2
_BUS_ID_BYTES, _NAME_BYTES = 64, 256
# What a flush writes, in the largest cache's sizes.
FLUSH_MULTIPLE = 2
# For the streaming rate: beyond every cache, within an eighth of the memory that is free.
PROBE_BYTES, PROBE_SHARE, PROBE_REPEATS = 1 << 30, 8, 3
# Events may come out alike for what took less than their resolution.
_LEAST_PROBE_US = 1e-3
# After a fault ROCm's runtime writes the GPU's memory to a file, which takes minutes, unless told
# otherwise; where it heeds neither of these it stays within the limit on core files.
_NO_DUMPS = {"HSA_DISABLE_COREDUMP_ON_EXCEPTION": "1", "HSA_COREDUMP_PATTERN": os.devnull}
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
NODES = Path("/sys/class/kfd/kfd/topology/nodes")


class Hip:
    """The runtime in this process, on one of its devices; implements `Runtime`.

    Raises `CallFailedError` where there is no runtime, or no such device. `nodes` is where Linux's
    driver describes its GPUs.
    """

    most_copies, warm_up_calls = 1, 3

    def __init__(self, ordinal: int, nodes: Path = NODES) -> None:
        self._library = _load_library()
        self._library.hipGetErrorString.restype = ctypes.c_char_p
        gpus = self._count()
        if ordinal >= gpus:
            message = f"there is no AMD GPU {ordinal}: the HIP runtime shows {gpus or 'none'}"
            raise CallFailedError(message, remedy=_SEEN)
        self._ordinal = ordinal
        self.call("hipSetDevice", ordinal)
        self._gpu = gpu_at(self.bus_id(), nodes)
        self._limits = amd_limits(self._gpu.architecture)
        self._flushed: int | None = None
        self._flushes = count()
        self._events = ctypes.c_void_p(), ctypes.c_void_p()
        for event in self._events:
            self.call("hipEventCreate", ctypes.byref(event))

    def _count(self) -> int:
        gpus = ctypes.c_int()
        for name, argument in (("hipInit", 0), ("hipGetDeviceCount", ctypes.byref(gpus))):
            status = getattr(self._library, name)(argument)
            if status == _NO_DEVICE:
                return 0
            self._check(name, status)
        return gpus.value

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the runtime; raise `CallFailedError` with its name and reason."""
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            text = self._library.hipGetErrorString(status) or b"no description"
            message = f"{name}: error {status} ({text.decode(errors='replace')})"
            raise CallFailedError(message, sticky=status not in _REFUSALS)

    def bus_id(self) -> str:
        """Say where the GPU is, `0000:c1:00.0`, without any work on it."""
        room = ctypes.create_string_buffer(_BUS_ID_BYTES)
        self.call("hipDeviceGetPCIBusId", room, _BUS_ID_BYTES, self._ordinal)
        return room.value.decode(errors="replace").lower()

    def describe(self) -> Mapping[str, int | float | str]:
        """Tell what the GPU is, and measure its memory."""
        name, version = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_int()
        self.call("hipDeviceGetName", name, _NAME_BYTES, self._ordinal)
        self.call("hipRuntimeGetVersion", ctypes.byref(version))
        return {
            "name": name.value.decode(errors="replace"),
            "architecture": self._gpu.architecture,
            "multiprocessors": max(1, self._gpu.simds // self._limits.partitions),
            "cache_bytes": self._limits.cache_bytes,
            "runtime": str(version.value),
            "streaming_gbps": self._streaming_gbps(),
        }

    def _streaming_gbps(self) -> float:
        """Measure copying on the GPU, reads and writes together, in GB/s."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("hipMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        size_bytes = min(PROBE_BYTES, free.value // PROBE_SHARE) // 2
        target, source = (self.allocate(size_bytes) for _ in range(2))
        times_us = []
        for _ in range(1 + PROBE_REPEATS):
            self.start()
            self.copy(target, source, 0, size_bytes)
            times_us.append(max(self.stop_us(), _LEAST_PROBE_US))
        for place in (target, source):
            self.free(place)
        return 2 * size_bytes / min(times_us) / 1e3

    def allocate(self, size_bytes: int) -> int:
        """Allocate memory of the GPU; raise `MemoryError` where it is full."""
        place = ctypes.c_void_p()
        status = self._library.hipMalloc(ctypes.byref(place), ctypes.c_size_t(size_bytes))
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"{size_bytes / 1e9:.3g} GB on the GPU")
        if status or place.value is None:
            raise CallFailedError(f"hipMalloc: error {status}", sticky=True)
        return place.value

    def free(self, place: int) -> None:
        self.call("hipFree", ctypes.c_void_p(place))

    def upload(self, place: int, source: Bytes) -> None:
        self._copy(place, source.ctypes.data, source.nbytes, _TO_DEVICE)

    def download(self, target: Bytes, place: int) -> None:
        self._copy(target.ctypes.data, place, target.nbytes, _TO_HOST)

    def copy(self, target: int, source: int, offset: int, size_bytes: int) -> None:
        self._copy(target + offset, source + offset, size_bytes, _ON_DEVICE)

    def _copy(self, target: int, source: int, size_bytes: int, kind: int) -> None:
        places = ctypes.c_void_p(target), ctypes.c_void_p(source)
        self.call("hipMemcpy", *places, ctypes.c_size_t(size_bytes), ctypes.c_int(kind))

    def fill(self, place: int, byte: int, offset: int, size_bytes: int) -> None:
        where, size = ctypes.c_void_p(place + offset), ctypes.c_size_t(size_bytes)
        self.call("hipMemset", where, ctypes.c_int(byte), size)

    def load(self, program: Program) -> LoadedModule:
        return LoadedModule(self, program.cubin, program.lowered, program.launches)

    def unload(self, code: LoadedModule) -> None:
        code.unload()

    def bind(self, layout: Layout, place: int) -> KernelParameters:
        return KernelParameters(layout, place)

    def launch(self, code: LoadedModule, launch: Launch, arguments: KernelParameters) -> None:
        sizes = (*launch.grid, *launch.block, launch.shared_bytes)
        parameters = ctypes.c_void_p(arguments.address(launch.arguments))
        places = (ctypes.c_void_p(None), parameters, ctypes.c_void_p(None))
        numbers = map(ctypes.c_uint, sizes)
        self.call("hipModuleLaunchKernel", code.functions[launch.kernel], *numbers, *places)

    def spoil(self) -> None:
        """Fill the caches, the one beside the memory too, with what no kernel reads."""
        size_bytes = FLUSH_MULTIPLE * self._limits.cache_bytes
        if self._flushed is None:
            self._flushed = self.allocate(size_bytes)
        self.fill(self._flushed, next(self._flushes) & 0xFF, 0, size_bytes)

    def wait(self) -> None:
        self.call("hipDeviceSynchronize")

    def start(self) -> None:
        self.call("hipEventRecord", self._events[0], ctypes.c_void_p(None))

    def stop_us(self) -> float:
        self.call("hipEventRecord", self._events[1], ctypes.c_void_p(None))
        self.call("hipEventSynchronize", self._events[1])
        time_ms = ctypes.c_float()
        self.call("hipEventElapsedTime", ctypes.byref(time_ms), *self._events)
        return time_ms.value * 1e3


def hip_worker(
    ordinal: int, deterministic: frozenset[str], nodes: Path
) -> CopyingWorker[int, LoadedModule, KernelParameters]:
    """Make the worker of one GPU, in a process of its own."""
    be_quiet()
    os.environ |= _NO_DUMPS
    return CopyingWorker(Hip(ordinal, nodes), deterministic)


def _load_library() -> ctypes.CDLL:
    folder = Path(os.environ.get("ROCM_PATH", ROCM), "lib")
    for name in (*LIBRARIES, *(str(folder / one) for one in LIBRARIES)):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CallFailedError(
        f"no AMD GPU can be used: the HIP runtime ({LIBRARIES[0]}) is not installed",
        remedy=f"install ROCm where there is an AMD GPU (ROCM_PATH names its folder, {ROCM} "
        "otherwise); --device host verifies on the CPU",
    )


class LoadedModule:
    """A code object on the GPU, with its `functions` by the names that launches use."""

    def __init__(
        self, hip: Hip, code: bytes, lowered: Mapping[str, str], launches: tuple[Launch, ...]
    ) -> None:
        # The code is kept as long as the module: the runtime may not have copied all of it.
        self._hip, self._module, self._code = hip, ctypes.c_void_p(), code
        hip.call("hipModuleLoadData", ctypes.byref(self._module), code)
        self.functions: dict[str, ctypes.c_void_p] = {}
        try:
            for kernel in dict.fromkeys(launch.kernel for launch in launches):
                found = ctypes.c_void_p()
                symbol = lowered[kernel].encode()
                hip.call("hipModuleGetFunction", ctypes.byref(found), self._module, symbol)
                self.functions[kernel] = found
        except CallFailedError:
            self.unload()
            raise

    def unload(self) -> None:
        self._hip.call("hipModuleUnload", self._module)


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """One GPU, or a partition of one, at a place on the bus: `location` is bus, device, function.

    In the bits above these 16 stands a partition's number.
    """

    architecture: str
    simds: int
    domain: int
    location: int


def list_gpus(nodes: Path = NODES) -> tuple[AmdGpu, ...]:
    """List what the driver shows, in its order; nothing without a driver."""
    return tuple(
        AmdGpu(
            _architecture(node["gfx_target_version"]),
            node["simd_count"],
            node.get("domain", 0),
            node.get("location_id", 0),
        )
        for node in _properties(nodes)
        if node.get("simd_count") and "gfx_target_version" in node
    )


def gpu_at(bus_id: str, nodes: Path = NODES) -> AmdGpu:
    """Return the GPU at `0000:c1:00.0`; raise `DeviceError` where the driver shows none there."""
    domain, bus, rest = bus_id.split(":")
    device, _, function = rest.partition(".")
    location = int(bus, 16) << 8 | int(device, 16) << 3 | int(function or "0", 16)
    gpus = list_gpus(nodes)
    # The runtime may tell partitions, which are all alike, apart by the function.
    for bits in (0xFFFF, 0xFFF8):
        for gpu in gpus:
            if (gpu.domain, gpu.location & bits) == (int(domain, 16), location & bits):
                return gpu
    raise DeviceError(
        f"the driver shows no GPU at {bus_id}",
        path=nodes,
        remedy="a container needs /dev/kfd, /dev/dri and /sys of the machine",
    )


def _properties(nodes: Path) -> Iterator[Mapping[str, int]]:
    for path in sorted(nodes.glob("*/properties"), key=_number):
        with suppress(OSError):  # a container may show a node and not let it be read
            pairs = (line.split() for line in path.read_text(encoding="ascii").splitlines())
            yield {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _number(path: Path) -> int:
    return int(path.parent.name) if path.parent.name.isdecimal() else 0


def _architecture(version: int) -> str:
    """Name what the driver counts as 90402: `gfx942`."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
