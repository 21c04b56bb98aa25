"""Launch tuned kernels from their cubins on PyTorch's tensors; needs torch and the CUDA driver.

A copy of this file is part of every exported package. What depends on shapes alone is computed once
for them, and kept: `Operator.plans`. A usual call is enqueued by its table's `quick`, which is
written out for its arguments because loops over them take longer; others by `Operator.__call__`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf, log, prod
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from .driver import (
    MAX_DYNAMIC_SHARED,
    NON_PORTABLE_CLUSTER,
    PORTABLE_CLUSTER_BLOCKS,
    Config,
    Driver,
    EncodedMap,
    Launch,
    ZeroedMemory,
    configured,
)

logger = logging.getLogger(__name__)
# What cudaMalloc and PyTorch's allocator give; wide accesses of the kernels rely on 16.
ALIGNMENT = 16
# A shape halfway between two has the first of them whatever the last bit of a logarithm says.
TIE = 1e-9
# Of two, the most rows that a shape has to be served at where their bits are kept.
MOST_POWER = 17
# The same for every compute capability (CUDA C++ Programming Guide, technical specifications).
GRID_LIMITS = (2**31 - 1, 65535, 65535)
BLOCK_LIMITS = (1024, 1024, 64)
_WHOLE = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_SCALARS: dict[str, Any] = {name: getattr(ctypes, f"c_{name}") for name in _WHOLE}
_SCALARS |= {"float32": ctypes.c_float, "float64": ctypes.c_double}


class TunedKernelError(RuntimeError):
    """A call that no tuned kernel serves, without a fallback to take it."""


def ceil_div(a: int, b: int) -> int:
    """Divide and round up."""
    return -(-a // b)


def whole(value: float) -> int:
    """Return a size that came out as a float; raise `ValueError` for what is no whole number."""
    if value != int(value):
        raise ValueError(f"{value} is no size")
    return int(value)


@dataclass(frozen=True)
class Array:
    """An array argument; `role` is input, output, inout or scratch.

    `zeroed` scratch is all zeros before a call and after it.
    """

    name: str
    dtype: str
    role: str
    zeroed: bool = False


@dataclass(frozen=True)
class Scalar:
    """A number that the kernel takes: given by the caller where it has a `default`."""

    name: str
    dtype: str
    default: float | None = None

    @property
    def schema(self) -> str:
        """Write it as a parameter of PyTorch's operators."""
        kind = "bool" if self.dtype == "bool" else "float" if "float" in self.dtype else "int"
        return f"{kind} {self.name}={self.default!r}"


@dataclass(frozen=True)
class Numbers:
    """What conditions and launches may ask of a device."""

    multiprocessors: int
    max_shared_bytes: int
    max_threads: int = 1024
    warp_size: int = 32
    wave: int = 32
    # Nothing is known of what comes after a call.
    successor_waits: bool = False


@dataclass(frozen=True)
class Variant:
    """A cubin, where it is right, and its launches; each takes the axes, then `Numbers`."""

    number: int
    cubin: str
    symbols: dict[str, str]
    static_bytes: dict[str, int]
    fits: Callable[..., bool]
    launches: Callable[..., Sequence[Launch | None]]
    # Scalars whose defaults are in the code: it is wrong for every other value.
    fixed: tuple[str, ...] = ()
    # Of all scratch, where the variant has a size of its own.
    scratch_bytes: Callable[..., tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Table:
    """All that an operator is made of; functions take the axes in their order.

    `read_axes` finds them from the shapes of the arrays but for scratch and from the axes in
    `given`, and raises `IndexError` where there are none. `points` are tuned shapes with who serves
    them, 0 for nobody.
    """

    name: str
    device: str
    capability: tuple[int, int]
    axes: tuple[str, ...]
    given: tuple[str, ...]
    order: tuple[Array | Scalar, ...]
    read_axes: Callable[..., tuple[int, ...]]
    shapes: Callable[..., tuple[tuple[int, ...], ...]]
    scratch_bytes: Callable[..., tuple[int, ...]]
    scalars: Callable[..., tuple[float, ...]]
    variants: tuple[Variant, ...]
    points: tuple[tuple[tuple[int, ...], int], ...]
    folder: Path
    # The place of the axis that counts rows, where the bits of no row of any output depend on it.
    rows: int | None = None


@dataclass
class Plan:
    """Launches for one set of shapes on one device, ready but for addresses and stream.

    `arrays` are those that the caller passes, as types and places for addresses, `defaults` the
    scalars that he may give; `why` says what stands in the way where nothing serves. Whoever fills
    in an address holds the `lock` until all is launched.
    """

    device: int
    why: str = ""
    launches: list[tuple[Config, int, int, int]] = field(default_factory=list)
    arrays: list[tuple[Any, Any]] = field(default_factory=list)
    defaults: list[tuple[str, Any, float]] = field(default_factory=list)
    # Of these the ones that the code has written in, with what they come out as.
    fixed: list[tuple[str, Any, float]] = field(default_factory=list)
    # Places for addresses, bytes, and the names of what has to be zeros.
    scratch: list[tuple[Any, int, str]] = field(default_factory=list)
    maps: list[EncodedMap] = field(default_factory=list)
    variant: int = 0
    # Where addresses go, in the order of the arrays.
    addresses: tuple[Any, ...] = ()
    # What the driver reads through addresses.
    kept: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Operator:
    """A tuned operator: call it with its arrays in the kernel's order, scratch left out.

    `fallback` takes the same arguments wherever no tuned kernel serves; without one that is a
    `TunedKernelError`. `calls` counts by variant, 0 for the fallback. `devices` names the GPUs that
    it serves on: add one of the same compute capability to try it there.
    """

    def __init__(self, table: Table, *, driver: Callable[[], Driver] = Driver) -> None:
        self.table, self._open_driver = table, driver
        self.fallback: Callable[..., Any] | None = None
        self.calls: Counter[int] = Counter()
        self.devices = {table.device}
        # Whether a fallback is said to nobody but a debugger.
        self.quiet = False
        self._arrays = tuple(a for a in table.order if isinstance(a, Array) and a.role != "scratch")
        self.dtypes = tuple(getattr(torch, _TORCH.get(a.dtype, a.dtype)) for a in self._arrays)
        self._keeps_rows = False
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._registered: Any = None
        self._forget()
        # What belongs to a device is not inherited by a forked process.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._driver: Driver | None = None
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self._libraries: dict[int, int] = {}

    def register(self, library: Any) -> None:
        """Make it an operator of a `torch.library.Library`, as `torch.compile` needs it.

        It has no derivative: where one is asked for, that is an error.
        """
        name, table = self.table.name, self.table
        arrays = (
            f"Tensor{'' if a.role == 'input' else f'({letter}!)'} {a.name}"
            for a, letter in zip(self._arrays, "abcdefghijklmnopqrstuvwxyz", strict=False)
        )
        sizes = (f"SymInt {axis}" for axis in table.given)
        numbers = (scalar.schema for scalar in self._given_scalars)
        keywords = ", ".join(chain(sizes, numbers))
        schema = ", ".join([*arrays, *(["*", keywords] if keywords else [])])
        library.define(f"{name}({schema}) -> ()", tags=(torch.Tag.needs_fixed_stride_order,))
        self._registered = getattr(getattr(torch.ops, library.ns), name).default
        library.impl(name, self._launched, "CompositeExplicitAutograd")
        library.impl(name, self._without_derivative, "Autograd")
        torch.library.register_fake(f"{library.ns}::{name}", lambda *_, **__: None, lib=library)

    @property
    def _given_scalars(self) -> list[Scalar]:
        numbers = (one for one in self.table.order if isinstance(one, Scalar))
        return [number for number in numbers if number.default is not None]

    def _launched(self, *tensors: Any, **keywords: Any) -> None:
        given = tuple(keywords.pop(axis) for axis in self.table.given)
        self.call(tensors, given, **keywords)

    def _without_derivative(self, *tensors: Any, **keywords: Any) -> None:
        self._refuse_derivative(tensors)
        with torch._C._AutoDispatchBelowAutograd():
            self._registered(*tensors, **keywords)

    def _refuse_derivative(self, tensors: Iterable[Any]) -> None:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise TunedKernelError(
                f"{self.table.name} has no derivative; call it under torch.no_grad(), or detach"
            )

    def __call__(self, *tensors: Any, **keywords: Any) -> None:
        """Enqueue the operator on the current stream; the axes in `given` are keywords."""
        # What is traced, or is no tensor with memory of its own, goes by PyTorch's dispatcher.
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            self._registered(*tensors, **keywords)
            return
        graded = torch.is_grad_enabled()
        for tensor in tensors:
            if type(tensor) not in PLAIN:
                self._registered(*tensors, **keywords)
                return
            if graded and tensor.requires_grad:
                self._refuse_derivative(tensors)
        if self.table.given:
            self._launched(*tensors, **keywords)
        elif why := self.enqueue(tensors, (), keywords):
            self._fall_back(why, tensors, keywords)

    def attempt(self, *tensors: Any, **keywords: Any) -> bool:
        """Enqueue it where a tuned kernel serves, or do nothing and return False.

        `torch.compile` can't know: there it is part of the graph, with the fallback. So it is for
        what traces by PyTorch's dispatcher, as passes over a compiled graph do.
        """
        if torch.compiler.is_compiling():
            self._registered(*tensors, **keywords)
            return True
        if torch._C._len_torch_dispatch_stack():
            if self.fallback is not None:
                self._registered(*tensors, **keywords)
            return self.fallback is not None
        graded = torch.is_grad_enabled()
        for tensor in tensors:
            if type(tensor) not in PLAIN or (graded and tensor.requires_grad):
                return False
        given = tuple(keywords.pop(axis) for axis in self.table.given)
        return not self.enqueue(tensors, given, keywords)

    def keep_rows(self) -> bool:
        """Serve from now on only where a row has the same bits at every size; say whether any do.

        Those are the problems that were tuned so, at all their sizes.
        """
        if self.table.rows is not None and not self._keeps_rows:
            self._keeps_rows = True
            self.plans.clear()
        return self._keeps_rows

    def call(self, tensors: tuple[Any, ...], given: tuple[int, ...] = (), **scalars: float) -> None:
        """Enqueue the variant that serves these shapes on the current stream, or the fallback."""
        why = self.enqueue(tensors, given, scalars)
        if why:
            keywords = {**dict(zip(self.table.given, given, strict=True)), **scalars}
            self._fall_back(why, tensors, keywords)

    def enqueue(
        self, tensors: tuple[Any, ...], given: tuple[int, ...], scalars: dict[str, float]
    ) -> str:
        """Enqueue the variant that serves these shapes, or say why none does."""
        plan = self.plans.get((tensors[0].get_device(), given, *map(_shape, tensors)))
        if plan is None:
            plan = self._planned(tensors, given)
        if plan.why:
            return plan.why
        with plan.lock:
            why = self._filled(plan, tensors, scalars)
            if why:
                return why
            self.issue(plan)
        self.calls[plan.variant] += 1
        return ""

    def _filled(self, plan: Plan, tensors: tuple[Any, ...], scalars: dict[str, float]) -> str:
        """Put a call's addresses and scalars in their places, or say what is not as it must be."""
        device = plan.device
        for tensor, (dtype, address) in zip(tensors, plan.arrays, strict=True):
            place = tensor.data_ptr()
            if (
                tensor.dtype is not dtype
                or place % ALIGNMENT
                or not tensor.is_contiguous()
                or tensor.get_device() != device
            ):
                return self._unsuited(tensors, device)
            address.value = place
        for name, number, default in plan.defaults:
            number.value = scalars.get(name, default)
        return _other_value(plan) if plan.fixed else ""

    def issue(self, plan: Plan) -> None:
        """Launch what a plan holds on its device's current stream; its lock is held."""
        if plan.device != torch._C._cuda_getDevice():
            with torch.cuda.device(plan.device):
                self.issue(plan)
            return
        assert self._driver is not None
        stream = torch._C._cuda_getCurrentRawStream(plan.device)
        held = []
        for address, size_bytes, zeroed in plan.scratch:
            if zeroed:
                address.value = self._zeroed.address(zeroed, size_bytes, plan.device, stream)
                continue
            # PyTorch gives it to nobody else before this stream is past the launches.
            room = torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{plan.device}")
            held.append(room)
            address.value = room.data_ptr()
        for encoded_map in plan.maps:
            encoded_map.follow(self._driver)
        launch = self._driver.launch
        for config, where, kernel, parameters in plan.launches:
            config.stream = stream
            status = launch(where, kernel, parameters, None)
            if status:
                raise RuntimeError(f"{self.table.name}: {self._driver.error(status)}")

    def _planned(self, tensors: Sequence[Any], given: tuple[int, ...]) -> Plan:
        key = (tensors[0].get_device(), given, *map(_shape, tensors))
        with self._lock:
            if key not in self.plans:
                self.plans[key] = self._plan(tensors, given)
            return self.plans[key]

    def launches_at(self, device: int, axes: tuple[int, ...]) -> tuple[int, list[Launch]]:
        """Say which variant serves these axes, 0 where the fallback does, and what it launches."""
        properties = torch.cuda.get_device_properties(device)
        numbers = numbers_of(properties)
        variant = serving(self.table, axes, numbers) if self._is_for(properties) else None
        if variant is None:
            return 0, []
        return variant.number, [one for one in variant.launches(*axes, numbers) if one is not None]

    def _is_for(self, properties: Any) -> bool:
        capability = properties.major, properties.minor
        return capability == self.table.capability and properties.name in self.devices

    def _plan(self, tensors: Sequence[Any], given: Sequence[int]) -> Plan:
        table, device = self.table, tensors[0].get_device()
        if device < 0:
            return Plan(device, f"its arrays are on {tensors[0].device}")
        properties = torch.cuda.get_device_properties(device)
        if not self._is_for(properties):
            return Plan(device, f"tuned for {table.device}, not for {properties.name}")
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        try:
            axes = table.read_axes(*shapes, *given)
            wanted = table.shapes(*axes)
        except (ArithmeticError, IndexError, ValueError):
            axes, wanted = (), ()
        if shapes != wanted or min(axes, default=0) < 1:
            named = ", ".join(f"{a.name} {s}" for a, s in zip(self._arrays, shapes, strict=True))
            return Plan(device, f"shapes that it is not for: {named}")
        numbers = numbers_of(properties)
        if self._keeps_rows:
            table = of_one_problem(table, axes, numbers)
        variant = serving(table, axes, numbers)
        if variant is None:
            said = ", ".join(f"{n}={v}" for n, v in zip(table.axes, axes, strict=True))
            return Plan(device, f"nothing is proved faster at {said}")
        return self._made(variant, axes, numbers, device)

    def _made(self, variant: Variant, axes: tuple[int, ...], numbers: Numbers, device: int) -> Plan:
        plan = Plan(device, variant=variant.number)
        scalars = iter(self.table.scalars(*axes))
        sizes = iter((variant.scratch_bytes or self.table.scratch_bytes)(*axes))
        parameters: list[Any] = []
        for one in self.table.order:
            if isinstance(one, Array):
                parameters.append(ctypes.c_void_p())
                if one.role == "scratch":
                    name = one.name if one.zeroed else ""
                    plan.scratch.append((parameters[-1], next(sizes), name))
                else:
                    plan.arrays.append((self.dtypes[len(plan.arrays)], parameters[-1]))
                continue
            value = next(scalars)
            parameters.append(_SCALARS[one.dtype](value))
            if one.default is not None:
                plan.defaults.append((one.name, parameters[-1], value))
            if one.name in variant.fixed:
                plan.fixed.append((one.name, parameters[-1], parameters[-1].value))
        plan.addresses = tuple(address for _, address in plan.arrays)
        plan.kept.append(parameters)
        used: set[int] = set()
        for launch in variant.launches(*axes, numbers):
            if launch is not None:
                taken = [parameters[place] for place in launch.arguments] or parameters
                maps = [EncodedMap(one, parameters[one.place]) for one in launch.maps]
                places = [*map(ctypes.addressof, taken), *(encoded_map.at for encoded_map in maps)]
                pointers = (ctypes.c_void_p * len(places))(*places)
                plan.maps += maps
                plan.kept.append(pointers)
                used |= {*map(id, taken), *(id(parameters[one.place]) for one in launch.maps)}
                config = configured(launch, plan.kept)
                place = ctypes.addressof(config), self._kernel(variant, launch, device)
                plan.launches.append((config, *place, ctypes.addressof(pointers)))
        plan.scratch = [one for one in plan.scratch if id(one[0]) in used]
        return plan

    def _kernel(self, variant: Variant, launch: Launch, device: int) -> int:
        if self._driver is None:
            self._driver = self._open_driver()
            self._zeroed = ZeroedMemory(self._driver)
        driver = self._driver
        if variant.number not in self._libraries:
            cubin = (self.table.folder / variant.cubin).read_bytes()
            self._libraries[variant.number] = driver.load(cubin)
        symbol = variant.symbols[launch.kernel]
        kernel = driver.kernel(self._libraries[variant.number], symbol)
        if launch.shared_bytes:
            driver.set(kernel, MAX_DYNAMIC_SHARED, launch.shared_bytes, device)
        x, y, z = (*(launch.cluster or ()), 1, 1, 1)[:3]
        if x * y * z > PORTABLE_CLUSTER_BLOCKS:
            driver.set(kernel, NON_PORTABLE_CLUSTER, 1, device)
        return kernel

    def _unsuited(self, tensors: Sequence[Any], device: int) -> str:
        for one, array, dtype in zip(tensors, self._arrays, self.dtypes, strict=True):
            if one.dtype is not dtype:
                return f"{array.name} is {one.dtype}, not {dtype}"
            if one.get_device() != device:
                return f"{array.name} is on {one.device}, not on cuda:{device}"
            if not one.is_contiguous():
                return f"{array.name} is not contiguous"
        return f"an array does not begin at a multiple of {ALIGNMENT} bytes"

    def _fall_back(self, why: str, tensors: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self.fallback is None:
            raise TunedKernelError(
                f"{self.table.name}: {why}; set its `fallback` to what takes such calls"
            )
        if why not in self._said:
            self._said.add(why)
            level = logging.DEBUG if self.quiet else logging.WARNING
            logger.log(level, "%s: %s; its fallback serves", self.table.name, why)
        self.calls[0] += 1
        self.fallback(*tensors, **keywords)


# The names that PyTorch gives to types which are called otherwise here.
_TORCH = {"float8_e4m3": "float8_e4m3fn"}
_shape = attrgetter("shape")
# Types of tensors that have memory of their own.
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
# What a table's `quick` asks for in each call.
is_compiling = torch.compiler.is_compiling
dispatch_modes = torch._C._len_torch_dispatch_stack
is_grad_enabled = torch.is_grad_enabled


def numbers_of(properties: Any) -> Numbers:
    """Read what launches may ask of a device."""
    shared_bytes = properties.shared_memory_per_block_optin
    return Numbers(properties.multi_processor_count, shared_bytes)


def serving(table: Table, axes: tuple[int, ...], numbers: Numbers) -> Variant | None:
    """Find the variant of the nearest tuned shape whose kernel may run, None for the fallback."""
    logs, by_number = [log(size) for size in axes], {one.number: one for one in table.variants}
    least, found = inf, None
    for sizes, number in table.points:
        distance = sum((a - log(b)) ** 2 for a, b in zip(logs, sizes, strict=True))
        if distance >= least * (1.0 - TIE):
            continue
        variant = by_number.get(number)
        if variant is None or _may_run(variant, axes, numbers):
            least, found = distance, variant
    return found


def of_one_problem(table: Table, axes: tuple[int, ...], numbers: Numbers) -> Table:
    """Keep the points that differ in rows alone; none where not all sizes are served by them."""
    place = table.rows
    assert place is not None
    points = tuple(
        (sizes, number)
        for sizes, number in table.points
        if sizes[:place] == axes[:place] and sizes[place + 1 :] == axes[place + 1 :]
    )
    of_problem = replace(table, points=points)
    # Not every size is tried: powers of two, halfway between them, and beside the points.
    tried = {n << power for n in (1, 3) for power in range(MOST_POWER)} | {1 << MOST_POWER}
    tried |= {sizes[place] + more for sizes, _ in points for more in (-1, 0, 1)} - {0}
    whole = all(number for _, number in points) and all(
        serving(of_problem, (*axes[:place], rows, *axes[place + 1 :]), numbers) for rows in tried
    )
    return of_problem if whole else replace(table, points=())


def _other_value(plan: Plan) -> str:
    for name, number, expected in plan.fixed:
        if number.value != expected:
            return f"{name} is {number.value:.8g}, and {expected:.8g} is written into its code"
    return ""


def _may_run(variant: Variant, axes: tuple[int, ...], numbers: Numbers) -> bool:
    try:
        if not variant.fits(*axes, numbers):
            return False
        launches = [launch for launch in variant.launches(*axes, numbers) if launch is not None]
    except (ArithmeticError, ValueError):
        return False
    return bool(launches) and all(
        all(1 <= size <= most for size, most in zip(launch.grid, GRID_LIMITS, strict=False))
        and all(1 <= size <= most for size, most in zip(launch.block, BLOCK_LIMITS, strict=False))
        and prod(launch.block) <= numbers.max_threads
        and 0
        <= launch.shared_bytes
        <= numbers.max_shared_bytes - variant.static_bytes[launch.kernel]
        and all(
            of_cluster >= 1 and size % of_cluster == 0
            for size, of_cluster in zip((*launch.grid, 1, 1), launch.cluster or (), strict=False)
        )
        and all(each.is_possible for each in launch.maps)
        for launch in launches
    )
