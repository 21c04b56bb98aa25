"""The HIP runtime as this project uses it: errors as exceptions, launches, events, by ctypes.

Only functions whose C interface has been the same since ROCm 5 are called, so that no header and
no package of one release is needed. It has not run on AMD's hardware yet: tests put a library in
its place whose kernels are the CPU's.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.device.layout import SCALARS, Layout
from tuner.model.amd import ROCM
from tuner.model.errors import WorkerError
from tuner.model.kernel import Launch

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
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3


class HipError(WorkerError):
    """Report a failed call of the runtime; `sticky` tells that the process is lost with it."""

    def __init__(self, message: str, *, sticky: bool = True, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.sticky = sticky


class Hip:
    """The runtime in this process, on one of its devices.

    Raises `HipError` where there is no runtime, or no such device.
    """

    def __init__(self, ordinal: int) -> None:
        self._library = _loaded()
        self._library.hipGetErrorString.restype = ctypes.c_char_p
        count = self._count()
        if ordinal >= count:
            message = f"there is no AMD GPU {ordinal}: the HIP runtime shows {count or 'none'}"
            raise HipError(message, sticky=False, remedy=_SEEN)
        self._ordinal = ordinal
        self.call("hipSetDevice", ordinal)

    def _count(self) -> int:
        count = ctypes.c_int()
        for name, argument in (("hipInit", 0), ("hipGetDeviceCount", ctypes.byref(count))):
            status = getattr(self._library, name)(argument)
            if status == _NO_DEVICE:
                return 0
            self._check(name, status)
        return count.value

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the runtime; raise `HipError` with its name and reason."""
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            text = self._library.hipGetErrorString(status) or b"no description"
            message = f"{name}: error {status} ({text.decode(errors='replace')})"
            raise HipError(message, sticky=status not in _REFUSALS)

    @property
    def name(self) -> str:
        room = ctypes.create_string_buffer(_NAME_BYTES)
        self.call("hipDeviceGetName", room, _NAME_BYTES, self._ordinal)
        return room.value.decode(errors="replace")

    @property
    def bus_id(self) -> str:
        """Where the GPU is: `0000:c1:00.0`."""
        room = ctypes.create_string_buffer(_BUS_ID_BYTES)
        self.call("hipDeviceGetPCIBusId", room, _BUS_ID_BYTES, self._ordinal)
        return room.value.decode(errors="replace").lower()

    @property
    def version(self) -> str:
        found = ctypes.c_int()
        self.call("hipRuntimeGetVersion", ctypes.byref(found))
        return str(found.value)

    @property
    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("hipMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size_bytes: int) -> int:
        """Allocate memory of the GPU; raise `MemoryError` where it is full."""
        place = ctypes.c_void_p()
        status = self._library.hipMalloc(ctypes.byref(place), ctypes.c_size_t(size_bytes))
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"{size_bytes / 1e9:.3g} GB on the GPU")
        if status or place.value is None:
            raise HipError(f"hipMalloc: error {status}")
        return place.value

    def free(self, place: int) -> None:
        self.call("hipFree", ctypes.c_void_p(place))

    def upload(self, place: int, source: int, size_bytes: int) -> None:
        """Copy from an address of this process's memory, and wait."""
        self._copy(place, source, size_bytes, _TO_DEVICE)

    def download(self, target: int, place: int, size_bytes: int) -> None:
        """Copy to an address of this process's memory, and wait."""
        self._copy(target, place, size_bytes, _TO_HOST)

    def copy(self, target: int, place: int, size_bytes: int) -> None:
        self._copy(target, place, size_bytes, _ON_DEVICE)

    def _copy(self, target: int, source: int, size_bytes: int, kind: int) -> None:
        places = ctypes.c_void_p(target), ctypes.c_void_p(source)
        self.call("hipMemcpy", *places, ctypes.c_size_t(size_bytes), ctypes.c_int(kind))

    def fill(self, place: int, byte: int, size_bytes: int) -> None:
        size = ctypes.c_size_t(size_bytes)
        self.call("hipMemset", ctypes.c_void_p(place), ctypes.c_int(byte), size)

    def synchronize(self) -> None:
        self.call("hipDeviceSynchronize")

    def launch(self, function: ctypes.c_void_p, launch: Launch, parameters: int) -> None:
        """Enqueue a kernel; `parameters` is where the addresses of its parameters lie."""
        sizes = (*launch.grid, *launch.block, launch.shared_bytes)
        numbers = map(ctypes.c_uint, sizes)
        places = (ctypes.c_void_p(None), ctypes.c_void_p(parameters), ctypes.c_void_p(None))
        self.call("hipModuleLaunchKernel", function, *numbers, *places)


def _loaded() -> ctypes.CDLL:
    folder = Path(os.environ.get("ROCM_PATH", ROCM), "lib")
    for name in (*LIBRARIES, *(str(folder / one) for one in LIBRARIES)):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise HipError(
        f"no AMD GPU can be used: the HIP runtime ({LIBRARIES[0]}) is not installed",
        sticky=False,
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
        except HipError:
            self.unload()
            raise

    def unload(self) -> None:
        self._hip.call("hipModuleUnload", self._module)


class Parameters:
    """The parameters of a kernel's launches for arrays at one place, as the runtime reads them."""

    def __init__(self, layout: Layout, base: int) -> None:
        self._layout = layout
        offsets = {slot.name: slot.offset for slot in layout.slots}
        self._values: list[Any] = [
            ctypes.c_void_p(base + offsets[item])
            if isinstance(item, str)
            else SCALARS[item[0]](item[1])
            for item in layout.order
        ]
        self._pointers: dict[tuple[str, ...], ctypes.Array[ctypes.c_void_p]] = {}

    def address(self, taken: tuple[str, ...]) -> int:
        """Return where the addresses of what a launch takes lie; without names, of all."""
        if taken not in self._pointers:
            values = [self._values[place] for place in self._layout.places(taken)]
            pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            self._pointers[taken] = pointers
        return ctypes.addressof(self._pointers[taken])


class Stopwatch:
    """Two events of the default stream, and the time between them."""

    def __init__(self, hip: Hip) -> None:
        self._hip = hip
        self._events = ctypes.c_void_p(), ctypes.c_void_p()
        for event in self._events:
            hip.call("hipEventCreate", ctypes.byref(event))

    def start(self) -> None:
        self._record(self._events[0])

    def stop_us(self) -> float:
        """Wait for what was enqueued since the start; return what it took, in microseconds."""
        self._record(self._events[1])
        self._hip.call("hipEventSynchronize", self._events[1])
        time_ms = ctypes.c_float()
        self._hip.call("hipEventElapsedTime", ctypes.byref(time_ms), *self._events)
        return time_ms.value * 1e3

    def _record(self, event: ctypes.c_void_p) -> None:
        self._hip.call("hipEventRecord", event, ctypes.c_void_p(None))
