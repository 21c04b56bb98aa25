"""Where a kernel's arrays lie: each in its place between guard zones."""

from __future__ import annotations

import ctypes
import mmap
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.model.errors import KernelError
from tuner.model.kernel import DTYPE_BYTES, FLOAT_DTYPES, Argument, ChosenScratch, KernelSpec, Role

if TYPE_CHECKING:
    from tuner.model.expressions import Value

GUARD_BYTES = 4096
ALIGNMENT = 256
# Where memory is closed by pages: the largest of a page's usual size and this machine's.
PAGE_BYTES = max(4096, mmap.PAGESIZE)
# NaN in every float format, -1 in every signed integer.
NAN_BYTE = 0xFF
# One fill in so many is NaN: a product with zero would hide any other number that nobody wrote.
NAN_EVERY = 4
# How a kernel receives what is passed by value.
SCALARS: dict[str, Callable[..., Any]] = {
    "bool": ctypes.c_bool,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    **{f"int{bits}": getattr(ctypes, f"c_int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(ctypes, f"c_uint{bits}") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class Slot:
    """One array's place: bytes from the start of the allocation.

    A config chose the size of a `sized` one, which may have room behind it for another config's.
    A `zeroed` one is all zeros between calls, a `constant` one written by nobody near them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    offset: int
    size_bytes: int
    sized: bool = False
    zeroed: bool = False
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """All arrays of one workload in one allocation, and the scalars beside them.

    `order` lists the arguments: a slot's name, or a scalar's dtype and value; `names` are theirs.
    """

    slots: tuple[Slot, ...]
    order: tuple[str | tuple[str, float], ...]
    total_bytes: int
    names: tuple[str, ...] = ()
    # How many of the last arguments only those launches take that name them.
    added: int = 0

    @property
    def guards(self) -> tuple[tuple[int, int], ...]:
        """Byte ranges outside every array: nobody may write there."""
        edges = [0]
        for slot in self.slots:
            edges += [slot.offset, slot.offset + slot.size_bytes]
        edges.append(self.total_bytes)
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    @property
    def changing(self) -> tuple[tuple[int, int], ...]:
        """Byte ranges that hold no constant input."""
        edges = [0]
        for slot in self.slots:
            if slot.constant:
                edges += [slot.offset, slot.offset + slot.size_bytes]
        edges.append(self.total_bytes)
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    @property
    def footprint_bytes(self) -> int:
        """What every config touches: scratch that a config sizes counts for nothing."""
        return sum(slot.size_bytes for slot in self.slots if not slot.sized)

    @property
    def set_bytes(self) -> int:
        """What a copy of all arrays takes, about."""
        sized = any(slot.sized for slot in self.slots)
        return self.total_bytes if sized else self.footprint_bytes

    def slot(self, name: str) -> Slot:
        return next(slot for slot in self.slots if slot.name == name)

    def pages(self, slot: Slot) -> tuple[int, int]:
        """Return the byte range of the pages that a slot of a layout by pages has to itself."""
        first = slot.offset // PAGE_BYTES * PAGE_BYTES
        return first, _align(slot.offset + slot.size_bytes, PAGE_BYTES)

    def places(self, arguments: tuple[str, ...]) -> list[int]:
        """Find in `order` what a launch takes; without names all that the file declares."""
        declared = range(len(self.order) - self.added)
        return [self.names.index(name) for name in arguments] or [*declared]

    @property
    def spoiled(self) -> tuple[Slot, ...]:
        """What a kernel has yet to write, and may hold anything before."""
        return tuple(s for s in self.with_role("output", "scratch") if not s.zeroed)

    @property
    def zeroed(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.zeroed)

    def with_role(self, *roles: Role) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.role in roles)


@dataclass(frozen=True, slots=True)
class Arena:
    """How the worker reaches the verifier's memory: an IPC handle, or host memory by name."""

    key: str
    layout: Layout
    ipc_handle: bytes | None
    host_name: str | None

    def shares(self, other: Arena) -> bool:
        """Tell whether it is the same memory, laid out otherwise at most."""
        return self == replace(other, layout=self.layout)


@dataclass(frozen=True, slots=True)
class InputChange:
    """A few bytes of the inputs that are others: where they lie, and what was and is there."""

    offsets: tuple[int, ...] = ()
    before: bytes = b""
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class Varied:
    """An input of which each change has so many other elements: one in each part of it."""

    offset: int
    size: int
    width_bytes: int
    elements: int

    def edges(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Give where its parts begin, and where the last one ends."""
        return np.arange(self.elements + 1) * self.size // self.elements

    def draw(
        self, chance: np.random.Generator, shape: tuple[int, ...]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Draw which elements are others, in so many changes: the last dimension has them."""
        edges = self.edges()
        chosen: np.ndarray[Any, np.dtype[np.int64]] = chance.integers(
            edges[:-1], edges[1:], (*shape, self.elements)
        )
        return chosen


@dataclass(frozen=True, slots=True)
class Patch:
    """Variants of the inputs: as they are, number 0, and with each of the changes.

    Which of them a timed call meets nobody can foresee, nor where it differs from others: a kernel
    that doesn't read all of its input doesn't notice. The bytes of a change are those of the
    elements that it has of each `varied` input, in this order.
    """

    changes: tuple[InputChange, ...] = ()
    varied: tuple[Varied, ...] = ()

    def of(self, number: int) -> InputChange:
        """Return what a variant has that number 0 has not."""
        return self.changes[number - 1] if number else InputChange()


UNCHANGED = Patch()


def fill_byte(*, nan: bool = True, other_than: int | None = None) -> int:
    """Draw what memory that a kernel has yet to write holds before a call.

    Checks, timed calls and comparisons all draw it here: a kernel that looks cannot tell one from
    the other. Where NaN is a right result (`nan` is False) only numbers are drawn, which are finite
    in every float format.
    """
    while True:
        is_nan = nan and secrets.randbelow(NAN_EVERY) == 0
        byte = NAN_BYTE if is_nan else 0x40 + secrets.randbelow(0x3B)
        if byte != other_than:
            return byte


def lay_out(
    spec: KernelSpec,
    names: Mapping[str, Value],
    *,
    by_pages: bool = False,
    scratch: Mapping[str, ChosenScratch] | None = None,
    rooms: Mapping[str, int] | None = None,
) -> Layout:
    """Place every array argument of `spec` for the axes in `names`.

    `by_pages` gives each array pages of its own that it fills to the end, with at least one page
    between two arrays: whoever maps them may close what lies between. `scratch` has what a config
    chose, else of what the file declares one element each; `rooms` are bytes to keep for them at
    least, so that layouts for several configs differ in nothing else.
    """
    chosen = dict(scratch or {})
    added = [sized.argument for sized in chosen.values() if sized.argument is not None]
    arguments = (*(one for one in spec.arguments if not one.added), *added)
    slots: list[Slot] = []
    end = 0
    unit = PAGE_BYTES if by_pages else ALIGNMENT
    for argument in arguments:
        if argument.is_scalar:
            continue
        sized = spec.is_sized(argument)
        if argument.name in chosen:
            shape = chosen[argument.name].shape
        else:
            shape = (1,) * len(argument.shape) if sized else argument.dimensions(names)
        if min(shape, default=1) < 1:
            listed = " ".join(f"{name}={value}" for name, value in names.items())
            raise KernelError(
                f"the argument {argument.name!r} has the shape {shape} for {listed}",
                path=spec.path,
                line=argument.line,
                remedy="every dimension must be 1 or more: change the shape or the workload",
            )
        size = DTYPE_BYTES[argument.dtype] * prod(shape)
        room = _align(max(size, (rooms or {}).get(argument.name, 0)), unit)
        first = _align(end + max(GUARD_BYTES, unit), unit)
        offset = first + (room - _align(size) if by_pages else 0)
        what = (argument.name, argument.dtype, shape, argument.role)
        slots.append(Slot(*what, offset, size, sized, argument.zeroed, argument.constant))
        end = first + room
    order = tuple(_parameter(spec, argument, names) for argument in arguments)
    total_bytes = _align(end + max(GUARD_BYTES, unit), unit)
    named = tuple(argument.name for argument in arguments)
    return Layout(tuple(slots), order, total_bytes, named, len(added))


def _parameter(
    spec: KernelSpec, argument: Argument, names: Mapping[str, Value]
) -> str | tuple[str, float]:
    if argument.value is None:
        return argument.name
    dtype = argument.dtype
    if dtype in ("float32", "float64"):
        return dtype, float(argument.value.evaluate(names))
    if dtype == "bool":
        return dtype, bool(argument.value.evaluate(names))
    if dtype in FLOAT_DTYPES:
        wrong, remedy = (
            f"{dtype}, which cannot be passed by value",
            "make it float32, in the kernel too",
        )
    else:
        value, bounds = argument.value.integer(names), np.iinfo(dtype)
        if bounds.min <= value <= bounds.max:
            return dtype, value
        wrong = f"{value}, which {dtype} cannot hold"
        remedy = "make it int64, in the kernel too, or leave out the workload"
    raise KernelError(
        f"the scalar {argument.name!r} is {wrong}",
        path=spec.path,
        line=argument.line,
        remedy=remedy,
    )


def _align(offset: int, unit: int = ALIGNMENT) -> int:
    return -(-offset // unit) * unit


class KernelParameters:
    """A kernel's parameters for arrays at one place in memory, in the form that drivers read."""

    def __init__(self, layout: Layout, base: int) -> None:
        self.layout, self.base = layout, base
        offsets = {slot.name: slot.offset for slot in layout.slots}
        self._values: list[Any] = [
            ctypes.c_void_p(base + offsets[item])
            if isinstance(item, str)
            else SCALARS[item[0]](item[1])
            for item in layout.order
        ]
        # By what a launch takes.
        self._pointers: dict[object, ctypes.Array[ctypes.c_void_p]] = {}

    def address(self, taken: tuple[str, ...] = ()) -> int:
        """Return where the addresses of what a launch takes lie; without names, of all."""
        if taken not in self._pointers:
            self._point_to(taken, [self._values[place] for place in self.layout.places(taken)])
        return ctypes.addressof(self._pointers[taken])

    def _point_to(self, key: object, values: list[Any]) -> None:
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._pointers[key] = pointers
