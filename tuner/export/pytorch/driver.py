"""The part of the CUDA driver that launches kernels, by its C interface.

A copy of this file is part of every exported package.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PORTABLE_CLUSTER_BLOCKS = 8
# Of cuda.h: CUlaunchAttributeID, CUfunction_attribute, CUdevice_attribute, CUstreamCaptureMode.
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6
MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14
_CAPTURE_RELAXED = 2


@dataclass(frozen=True)
class Launch:
    """One kernel launch: `cluster` is None for none, `shared_bytes` are the dynamic ones.

    `arguments` are the places of those that it takes in the table's order; empty for all.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...] | None
    shared_bytes: int
    programmatic: bool
    arguments: tuple[int, ...] = ()


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
