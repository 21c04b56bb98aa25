"""How arrays are stored: each one's place between guard zones, and its numbers as raw bits."""

from __future__ import annotations

import ctypes
import mmap
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.model.errors import KernelError
from tuner.model.kernel import DTYPE_BYTES, FLOAT_DTYPES, Argument, KernelSpec, Role

if TYPE_CHECKING:
    from tuner.model.expressions import Value

Array = Any  # numpy.ndarray or cupy.ndarray: the same code runs on both

# The types NumPy lacks are stored as the unsigned integer of their size.
STORAGE: dict[str, str] = {
    "bfloat16": "uint16",
    "float8_e4m3": "uint8",
    "float8_e5m2": "uint8",
}

# Largest finite value: IEEE 754 for NumPy's types, OCP 8-bit floating point for fp8.
LARGEST: dict[str, float] = {
    "float16": 65504.0,
    "bfloat16": float(np.array(0x7F7F0000, np.uint32).view(np.float32)),
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
    "float8_e4m3": 448.0,
    "float8_e5m2": 57344.0,
}
SMALLEST_NORMAL: dict[str, float] = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
    "float8_e4m3": 2.0**-6,
    "float8_e5m2": 2.0**-14,
}

GUARD_BYTES = 4096
ALIGNMENT = 256
# Where memory is closed by pages: the largest of a page's usual size and this machine's.
PAGE_BYTES = max(4096, mmap.PAGESIZE)
# NaN in every float format, -1 in every signed integer.
NAN_BYTE = 0xFF
# One fill in so many is NaN: a product with zero would hide any other number that nobody wrote.
NAN_EVERY = 4
# Elements that are compared at a time, on the CPU converted too. On a GPU float64 temporaries stay
# near 128 MB each; on the CPU in its caches, and in memory that the system need not clear.
GPU_PIECE, CPU_PIECE = 1 << 24, 1 << 16
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
        """Find in `order` what a launch takes; without names all there is."""
        return [self.names.index(name) for name in arguments] or [*range(len(self.order))]

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
class Patch:
    """Two variants of a few bytes of the inputs: where they lie, and what each variant has there.

    Which of the two a timed call meets nobody can foresee, and a kernel that doesn't read all of
    its input doesn't notice.
    """

    offsets: tuple[int, ...] = ()
    values: tuple[bytes, bytes] = (b"", b"")

    def draw(self, count: int = 1) -> bytes:
        """Choose a variant for each of so many calls."""
        if not self.offsets:
            return bytes(count)
        return (np.frombuffer(secrets.token_bytes(count), np.uint8) & 1).tobytes()


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
    scratch: Mapping[str, tuple[int, ...]] | None = None,
    rooms: Mapping[str, int] | None = None,
) -> Layout:
    """Place every array argument of `spec` for the axes in `names`.

    `by_pages` gives each array pages of its own that it fills to the end, with at least one page
    between two arrays: whoever maps them may close what lies between. `scratch` has the shapes that
    a config chose, else one element each; `rooms` are bytes to keep for them at least, so that
    layouts for several configs differ in nothing else.
    """
    slots: list[Slot] = []
    end = 0
    unit = PAGE_BYTES if by_pages else ALIGNMENT
    for argument in spec.arguments:
        if argument.is_scalar:
            continue
        sized = spec.is_sized(argument)
        if sized:
            shape = (scratch or {}).get(argument.name, (1,) * len(argument.shape))
        else:
            shape = argument.dimensions(names)
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
    order = tuple(_parameter(spec, argument, names) for argument in spec.arguments)
    total_bytes = _align(end + max(GUARD_BYTES, unit), unit)
    return Layout(tuple(slots), order, total_bytes, tuple(one.name for one in spec.arguments))


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


def torch_name(dtype: str) -> str:
    """Name a dtype as PyTorch does."""
    return "float8_e4m3fn" if dtype == "float8_e4m3" else dtype


def storage_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(STORAGE.get(dtype, dtype))


def pieces(xp: Any, size: int) -> Iterator[slice]:
    """Cut so many elements into what is worked on at a time."""
    length = CPU_PIECE if xp.__name__ == "numpy" else GPU_PIECE
    return (slice(start, start + length) for start in range(0, size, length))


def decode(xp: Any, raw: Array, dtype: str) -> Array:
    """Turn stored bits into float64 values (integers into float64 as well)."""
    return _converted(xp, raw, np.dtype(np.float64), lambda piece: _decoded(xp, piece, dtype))


def encode(xp: Any, values: Array, dtype: str) -> Array:
    """Round float values to the nearest stored bits, ties to even; fp8 saturates."""
    return _converted(xp, values, storage_dtype(dtype), lambda piece: _encoded(xp, piece, dtype))


def _converted(
    xp: Any, values: Array, to: np.dtype[Any], convert: Callable[[Array], Array]
) -> Array:
    if xp.__name__ != "numpy":
        return convert(values)
    flat, found = values.reshape(-1), np.empty(values.size, to)
    for piece in pieces(xp, flat.size):
        found[piece] = convert(flat[piece])
    return found.reshape(values.shape)


def _decoded(xp: Any, raw: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (raw.astype(xp.uint32) << 16).view(xp.float32).astype(xp.float64)
    if dtype in STORAGE:
        return xp.asarray(_fp8_values(dtype))[raw]
    return raw.astype(xp.float64)


def _encoded(xp: Any, values: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        bits = values.astype(xp.float32).view(xp.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return xp.where(xp.isnan(values), xp.uint32(0x7FFF), rounded).astype(xp.uint16)
    if dtype in STORAGE:
        return _encode_fp8(xp, values, dtype)
    if dtype in FLOAT_DTYPES:
        return values.astype(dtype)
    return xp.rint(values).astype(dtype)


def code_distance(xp: Any, a: Array, b: Array, dtype: str) -> Array:
    """Count the representable values between two stored arrays (0 where they are equal)."""
    return xp.abs(_ordinal(xp, a, dtype) - _ordinal(xp, b, dtype))


def _ordinal(xp: Any, raw: Array, dtype: str) -> Array:
    if dtype not in FLOAT_DTYPES:
        return raw.astype(xp.int64)
    size = storage_dtype(dtype).itemsize
    bits = raw.view(f"i{size}").astype(xp.int64)
    magnitude = bits & (2 ** (8 * size - 1) - 1)
    return xp.where(bits < 0, -magnitude, magnitude)


@lru_cache
def _fp8_values(dtype: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if dtype == "float8_e4m3" else (5, 2, 15)
    code = np.arange(256)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = (1.0 + mantissa) * 2.0 ** (exponent - bias)
    values = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), normal)
    if dtype == "float8_e4m3":  # the "fn" variant: no infinity, one NaN a sign
        values[(code & 0x7F) == 0x7F] = np.nan
    else:
        top = exponent == 31
        values[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    return np.where(code & 0x80, -values, values)


def _encode_fp8(xp: Any, values: Array, dtype: str) -> Array:
    table = _fp8_values(dtype)[:0x80]
    finite = xp.asarray(table[np.isfinite(table)])
    magnitude = xp.minimum(xp.abs(values.astype(xp.float64)), finite[-1])
    above = xp.clip(xp.searchsorted(finite, magnitude), 1, len(finite) - 1)
    low, high = finite[above - 1], finite[above]
    middle = (low + high) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    code = xp.where(up, above, above - 1)
    code = xp.where(xp.isnan(values), 0x7F, code)
    return (code | xp.where(xp.signbit(values), 0x80, 0)).astype(xp.uint8)
