"""The part of the CUDA driver that launches kernels, by its C interface.

A copy of this file is part of every exported package.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PORTABLE_CLUSTER_BLOCKS = 8
# Of cuda.h: CUlaunchAttributeID, CUfunction_attribute, CUdevice_attribute, CUstreamCaptureMode.
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6
MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14
_CAPTURE_RELAXED = 2
# Of cuda.h: CUstreamCaptureStatus, CUstream_flags.
_CAPTURING, _NON_BLOCKING = 1, 1
_LEAST_BYTES = 4096
# Of cuTensorMapEncodeTiled; an enumerator's number is its place here.
_MOST_BOX, _SWIZZLES, _L2_PROMOTIONS = 256, (0, 32, 64, 128), (0, 64, 128, 256)
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_KEPT_MAPS = 256


@dataclass(frozen=True)
class Map:
    """A tensor map of the array at a place of the table's order, which has so many `elements`.

    `type` is a CUtensorMapDataType; dimensions begin with the innermost, strides are in bytes.
    """

    place: int
    type: int
    element_bytes: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    l2_promotion: int
    elements: int

    @property
    def is_possible(self) -> bool:
        """Whether the driver takes it, and no box of it leaves the array."""
        wide = self.box[0] * self.element_bytes
        steps = (1, *(stride // self.element_bytes for stride in self.strides))
        reach = 1 + sum((n - 1) * step for n, step in zip(self.sizes, steps, strict=True))
        return (
            all(1 <= size <= 1 << 32 for size in self.sizes)
            and all(0 < stride < 1 << 40 and stride % 16 == 0 for stride in self.strides)
            and all(1 <= size <= _MOST_BOX for size in self.box)
            and self.swizzle in _SWIZZLES
            and self.l2_promotion in _L2_PROMOTIONS
            and wide % 16 == 0
            and (self.swizzle == 0 or wide <= self.swizzle)
            and reach <= self.elements
        )


@dataclass(frozen=True)
class Launch:
    """One kernel launch: `cluster` is None for none, `shared_bytes` are the dynamic ones.

    `arguments` are the places of those that it takes in the table's order; empty for all. After
    them come tensor maps.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...] | None
    shared_bytes: int
    programmatic: bool
    arguments: tuple[int, ...] = ()
    maps: tuple[Map, ...] = ()


class _Dimensions(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _AttributeValue(ctypes.Union):
    _fields_ = (
        ("padding", ctypes.c_char * 64),
        ("cluster", _Dimensions),
        ("programmatic", ctypes.c_int),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_char * 4), ("value", _AttributeValue))


class Config(ctypes.Structure):
    _fields_ = (
        ("grid", _Dimensions),
        ("block", _Dimensions),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class Driver:
    """The functions of the CUDA driver that are needed; errors become exceptions with names."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        # Calls hold the interpreter's lock: they are short, and what they read is kept and reused.
        self._library = ctypes.PyDLL(library)
        launch = self._library.cuLaunchKernelEx
        launch.argtypes = [ctypes.c_void_p] * 4
        self.launch: Callable[[Any, Any, Any, None], int] = launch

    def load(self, cubin: bytes) -> int:
        """Load code for all devices; allowed while a stream of this thread captures a graph."""
        mode, library = ctypes.c_int(_CAPTURE_RELAXED), ctypes.c_void_p()
        self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            none = (None, None, ctypes.c_uint(0))
            self.call("cuLibraryLoadData", ctypes.byref(library), cubin, *none, *none)
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        return library.value or 0

    def kernel(self, library: int, symbol: str) -> int:
        """Find a kernel by its lowered name."""
        found = ctypes.c_void_p()
        self.call(
            "cuLibraryGetKernel", ctypes.byref(found), ctypes.c_void_p(library), symbol.encode()
        )
        return found.value or 0

    def zeros(self, size_bytes: int) -> int:
        """Allocate on the current device and zero, also while this thread captures a graph.

        What is captured is not done yet: so the memory is neither the graph's nor zeroed by it.
        """
        mode, place = ctypes.c_int(_CAPTURE_RELAXED), ctypes.c_uint64()
        own = ctypes.c_void_p()
        self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size_bytes))
            self.call("cuStreamCreate", ctypes.byref(own), ctypes.c_uint(_NON_BLOCKING))
            amount = ctypes.c_ubyte(0), ctypes.c_size_t(size_bytes)
            self.call("cuMemsetD8Async", place, *amount, own)
            self.call("cuStreamSynchronize", own)
            self.call("cuStreamDestroy_v2", own)
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        return place.value

    def capture(self, stream: int) -> int:
        """Name the capture that a stream takes part in, 0 where it takes part in none."""
        status, number = ctypes.c_int(), ctypes.c_uint64()
        asked = (ctypes.byref(status), ctypes.byref(number), None, None, None)
        self.call("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), *asked)
        return number.value if status.value == _CAPTURING else 0

    def encode(self, one: Map, address: int, to: Any) -> None:
        """Encode a tensor map of the array at an address."""
        rank = len(one.sizes)
        whole, half = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        numbers = (_SWIZZLES.index(one.swizzle), _L2_PROMOTIONS.index(one.l2_promotion))
        self.call(
            "cuTensorMapEncodeTiled",
            *(ctypes.byref(to), ctypes.c_int(one.type), ctypes.c_uint(rank)),
            ctypes.c_void_p(address),
            *(whole(*one.sizes), whole(*one.strides), half(*one.box), half(*(1,) * rank)),
            *map(ctypes.c_int, (0, *numbers, 0)),
        )

    def set(self, kernel: int, attribute: int, value: int, device: int) -> None:
        """Set an attribute of a kernel on one device."""
        numbers = (ctypes.c_int(attribute), ctypes.c_int(value))
        self.call("cuKernelSetAttribute", *numbers, ctypes.c_void_p(kernel), ctypes.c_int(device))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; raise `RuntimeError` with its error's name."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {self.error(status)}")

    def error(self, status: int) -> str:
        """Name an error."""
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
        return (text.value or b"unknown error").decode()


class ZeroedMemory:
    """Memory that kernels find all zeros and leave so: one piece for each stream of a device.

    Calls of one stream take turns. A graph may run beside others, whatever stream captured it: so
    each stream has another piece for each capture. No piece is given back, for nobody says when a
    graph is gone.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # Places and bytes, by name, device, stream and capture.
        self._pieces: dict[tuple[str, int, int, int], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def address(self, name: str, size_bytes: int, device: int, stream: int) -> int:
        """Return where a call on the current device finds its zeros."""
        key = name, device, stream, self._driver.capture(stream)
        with self._lock:
            place, held = self._pieces.get(key, (0, 0))
            if held < size_bytes:
                # Few sizes: what was there before is in use until launches have ended.
                held = max(_LEAST_BYTES, 1 << (size_bytes - 1).bit_length())
                place = self._driver.zeros(held)
                self._pieces[key] = place, held
        return place


class EncodedMap:
    """A tensor map as a kernel takes it: encoded anew where its array lies at another address."""

    def __init__(self, one: Map, address: ctypes.c_void_p) -> None:
        self._map, self._address = one, address
        self._room = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        self.at = ctypes.addressof(self._room)
        self.at += -self.at % _MAP_ALIGNMENT
        self._place = (ctypes.c_char * _MAP_BYTES).from_address(self.at)
        self._of: int | None = None
        self._known: dict[int, bytes] = {}

    def follow(self, driver: Driver) -> None:
        """Make it one of the array whose address its argument holds now."""
        address = self._address.value or 0
        if address == self._of:
            return
        known = self._known.get(address)
        if known is None:
            driver.encode(self._map, address, self._place)
            if len(self._known) >= _KEPT_MAPS:
                self._known.clear()
            self._known[address] = self._place.raw
        else:
            self._place.raw = known
        self._of = address


def configured(launch: Launch, kept: list[Any]) -> Config:
    """Write a launch as the driver reads it; what it points to goes to `kept`."""
    attributes = []
    if launch.programmatic:
        attributes.append(_Attribute(_PROGRAMMATIC_SERIALIZATION))
        attributes[-1].value.programmatic = 1
    if launch.cluster is not None:
        attributes.append(_Attribute(_CLUSTER_DIMENSION))
        attributes[-1].value.cluster = _dimensions(launch.cluster)
    held = (_Attribute * max(len(attributes), 1))(*attributes)
    kept.append(held)
    return Config(
        _dimensions(launch.grid),
        _dimensions(launch.block),
        launch.shared_bytes,
        None,
        held,
        len(attributes),
    )


def _dimensions(sizes: Sequence[int]) -> _Dimensions:
    return _Dimensions(*(*sizes, 1, 1, 1)[:3])
