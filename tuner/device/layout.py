"""Where each array lies in one allocation, with guard zones on both sides."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.model.errors import KernelError
from tuner.model.kernel import FLOAT_DTYPES, Argument, KernelSpec, Role

if TYPE_CHECKING:
    from tuner.model.expressions import Value

GUARD_BYTES = 4096
# Whoever reads there gets NaN or a huge number, in turn, and shows it.
GUARDS = (0xFF, 0x7B)
ALIGNMENT = 256
# NaN in every float format, -1 in every signed integer; alternated with a second pattern, so
# that an output that happens to equal one of them cannot hide an element nobody wrote.
POISONS = (0xFF, 0x7B)
# How a kernel receives what is passed by value.
SCALARS: dict[str, Callable[..., Any]] = {
    "bool": ctypes.c_bool,
    "int8": ctypes.c_int8,
    "uint8": ctypes.c_uint8,
    "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


@dataclass(frozen=True, slots=True)
class Slot:
    """One array's place: bytes from the start of the allocation."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """All arrays of one workload in one allocation, and the scalars beside them.

    `order` lists the kernel's parameters: a slot's name, or a scalar's dtype and value.
    """

    slots: tuple[Slot, ...]
    order: tuple[str | tuple[str, float], ...]
    total_bytes: int

    @property
    def guards(self) -> tuple[tuple[int, int], ...]:
        """Byte ranges outside every array: nobody may write there."""
        edges = [0]
        for slot in self.slots:
            edges += [slot.offset, slot.offset + slot.size_bytes]
        edges.append(self.total_bytes)
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all arrays, guards left out."""
        return sum(slot.size_bytes for slot in self.slots)

    def with_role(self, *roles: Role) -> tuple[Slot, ...]:
        """List the slots that have one of the roles."""
        return tuple(slot for slot in self.slots if slot.role in roles)


@dataclass(frozen=True, slots=True)
class Arena:
    """How the worker reaches the judge's memory: an IPC handle, or host memory by name."""

    key: str
    layout: Layout
    ipc_handle: bytes | None
    host_name: str | None


def plausible_byte() -> int:
    """Choose a poison that a kernel cannot tell from an output: finite in every float format."""
    return 0x40 + secrets.randbelow(0x3B)


def lay_out(spec: KernelSpec, names: Mapping[str, Value]) -> Layout:
    """Place every array argument of `spec` for the axes in `names`."""
    slots: list[Slot] = []
    end = 0
    for argument in spec.arguments:
        if argument.is_scalar:
            continue
        offset = _align(end + GUARD_BYTES)
        shape = argument.dimensions(names)
        if min(shape, default=1) < 1:
            raise KernelError(
                f"the argument {argument.name!r} has the shape {shape} for {_listed(names)}",
                path=spec.path,
                line=argument.line,
                remedy="every dimension must be 1 or more: change the shape or the workload",
            )
        size = argument.size_bytes(names)
        slots.append(Slot(argument.name, argument.dtype, shape, argument.role, offset, size))
        end = offset + size
    order = tuple(_parameter(spec, argument, names) for argument in spec.arguments)
    return Layout(tuple(slots), order, _align(end + GUARD_BYTES))


def _parameter(
    spec: KernelSpec, argument: Argument, names: Mapping[str, Value]
) -> str | tuple[str, float]:
    if argument.value is None:
        return argument.name
    if argument.dtype in ("float32", "float64"):
        return argument.dtype, float(argument.value.evaluate(names))
    if argument.dtype == "bool":
        return argument.dtype, bool(argument.value.evaluate(names))
    if argument.dtype in FLOAT_DTYPES:
        raise KernelError(
            f"the scalar {argument.name!r} is {argument.dtype}, which cannot be passed by value",
            path=spec.path,
            line=argument.line,
            remedy="make it float32, in the kernel too",
        )
    value, bounds = argument.value.integer(names), np.iinfo(argument.dtype)
    if not bounds.min <= value <= bounds.max:
        raise KernelError(
            f"the scalar {argument.name!r} is {value}, which {argument.dtype} cannot hold",
            path=spec.path,
            line=argument.line,
            remedy="make it int64, in the kernel too, or leave out the workload",
        )
    return argument.dtype, value


def _listed(names: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={value}" for name, value in names.items())


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
