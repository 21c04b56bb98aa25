"""Peers in the worker process: PyTorch's view of the buffers, on the worker's own stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from inspect import signature
from math import prod
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from cuda.bindings import driver

from tuner.device.base import Program
from tuner.device.callables import (
    Modules,
    Originals,
    blamed_on_call,
    checked_results,
    compile_in_place,
)
from tuner.device.cuda.buffers import Graph, MappedArena
from tuner.device.cuda.driver import CudaError, LaunchArguments, allocate, call
from tuner.device.encoding import STORAGE, torch_name
from tuner.device.layout import Slot
from tuner.device.problem_peers import peers_of
from tuner.device.reference import (
    PeerError,
    PeerFunction,
    blamed_on_peer,
    load_functions,
    load_peers,
    ran_out,
)
from tuner.model.errors import KernelError
from tuner.model.kernel import KernelSpec

# The first call compiles or loads modules, the next ones may still choose algorithms; none of that
# is allowed while a graph is captured. PyTorch's own guide to CUDA graphs warms up three times.
WARM_UP_CALLS = 3
_CAPTURED = (
    "its calls are captured into a CUDA graph, where nothing may wait for the GPU or read from it"
)
# What the worker's times and waits come from.
_CLOCKS = ("cuEventRecord", "cuEventElapsedTime", "cuGraphLaunch", "cuCtxSynchronize")
# Kernels in Python that are ready to be called: more than a comparison has.
MOST_CALLS = 24
# Of the GPU's memory, for what kernels in Python allocate.
MOST_OF_MEMORY = 0.5


@dataclass(frozen=True, slots=True)
class PeerHome:
    """Where a kernel's peers come from, and what they are called with besides the tensors.

    `space` is the file that names its neighbours, `source` the kernel's own where it is Python,
    `posed` the kernel where its reference is a problem: that has peers of its own.
    """

    reference: Path
    operators: Mapping[str, str] = field(default_factory=dict)
    space: Path | None = None
    source: Path | None = None
    posed: KernelSpec | None = None


class PeerLaunchers:
    """Make the launchers of one kernel's peers; PyTorch is imported for the first of them."""

    def __init__(self, ordinal: int, stream: Any, home: PeerHome) -> None:
        self._ordinal, self._stream, self._home = ordinal, stream, home
        self._functions: dict[str, PeerFunction] = {}
        self._launchers: dict[str, PeerLauncher] = {}
        self._modules = Modules(home.source or home.reference)
        self._clocks = Originals(time, "perf_counter"), Originals(driver, *_CLOCKS)

    def launcher(self, program: Program, arena: MappedArena) -> PeerLauncher:
        """Return the launcher of a peer or a Python kernel, warmed up on a copy of the arrays.

        Raises `PeerError` where it is not installed, fails, or cannot be captured, and
        `MemoryError` where other kernels in Python have left no memory for it.
        """
        name = program.peer or f"{program.key} {program.text_key}"
        if name not in self._launchers:
            # The oldest kernels in Python go; a comparison has fewer than are kept.
            calls = [key for key, launcher in self._launchers.items() if launcher.is_call]
            for key in calls[: max(len(calls) - MOST_CALLS + 1, 0)]:
                del self._launchers[key]
            try:
                with self._blame(program):
                    launcher = self._make_launcher(program)
                _warm_up(launcher, arena, self._stream)
            except PeerError as error:
                # No graph was being captured: to start PyTorch once more would take longer.
                with suppress(CudaError):
                    call(driver.cuStreamSynchronize, self._stream)
                    # What it allocated until there was no more PyTorch would keep.
                    error.sticky = ran_out(error.__cause__)
                raise
            # On the arrays themselves: what is captured does not run.
            place = LaunchArguments(arena.layout, arena.base)
            try:
                Graph(launcher, [place], self._stream).close()
            except PeerError as error:
                raise PeerError(f"{error.message}; {_CAPTURED}", status=error.status) from error
            self._launchers[name] = launcher
        return self._launchers[name]

    def import_ahead(self, program: Program) -> None:
        """Import what the first call of a Python kernel will; raise `PeerError` where that fails.

        What it has imported by then is imported in part: its failure is another process's to tell.
        """
        with self._blame(program):
            self._imported_torch(program)
            self._modules.import_ahead(program)

    def require_clocks(self) -> None:
        """Raise `PeerError` where a kernel in Python has replaced what it is timed by."""
        for clock in self._clocks:
            clock.require()

    def clear(self) -> None:
        """Forget what belongs to one workload, its compiled code and its memory too."""
        if not self._launchers:
            return
        self._launchers.clear()
        with _blamed_on_peer(self._home.reference):
            torch = sys.modules["torch"]
            torch.cuda.empty_cache()
            if "torch._dynamo" in sys.modules:
                # Else a second shape would be compiled for any shape, and some more not at all.
                torch.compiler.reset()

    def _imported_torch(self, program: Program) -> Any:
        compile_in_place()
        torch: Any = import_module("torch")
        torch.cuda.set_device(self._ordinal)
        if program.is_call:
            # PyTorch keeps what was allocated: the verifier and the timed copies need the rest.
            torch.cuda.set_per_process_memory_fraction(MOST_OF_MEMORY, self._ordinal)
        return torch

    def _make_launcher(self, program: Program) -> PeerLauncher:
        torch = self._imported_torch(program)
        stream = torch.cuda.ExternalStream(int(self._stream), device=f"cuda:{self._ordinal}")
        return PeerLauncher(
            torch,
            stream,
            self._home,
            self._function(program),
            program.workload.values,
            partial(self._blame, program),
            program.is_call,
        )

    def _function(self, program: Program) -> PeerFunction:
        if program.is_call:
            return self._modules.function(program)
        if not self._functions:
            posed = self._home.posed
            self._functions = peers_of(posed) if posed else load_peers(self._home.reference)
        if program.peer not in self._functions:
            raise PeerError(f"{self._home.reference} has no peer named {program.peer!r}")
        return self._functions[program.peer]

    def _blame(self, program: Program) -> AbstractContextManager[None]:
        if program.is_call:
            return blamed_on_call(program)
        return _blamed_on_peer(self._home.reference)


@dataclass(slots=True)
class PeerLauncher:
    """One operator call of a peer; each set of arrays keeps what its last call returned."""

    torch: Any
    stream: Any
    home: PeerHome
    function: PeerFunction
    axes: Mapping[str, int]
    # Whoever is told that it raised.
    blamed: Callable[[], AbstractContextManager[None]]
    is_call: bool = False
    # By the address of the arrays.
    tensors: dict[int, dict[str, Any]] = field(default_factory=dict)
    returned: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    # Of a kernel in Python: where each result lies, which no code of its own is asked later.
    places: dict[int, Mapping[str, int]] = field(default_factory=dict)
    # A peer may allocate and load modules, which stricter captures forbid.
    relaxed: bool = True

    @property
    def repeats(self) -> bool:
        return self.is_call

    def issue(
        self, arguments: LaunchArguments, instead: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Enqueue the call; tensors of `instead` take the place of the arrays of their names."""
        with self._views(arguments) as tensors:
            given = {**tensors, **instead}
            if self.is_call:  # which may resize or transpose its tensors in place
                given = {
                    slot.name: _over(
                        self.torch, tensors[slot.name].untyped_storage(), slot, self.stream
                    )
                    for slot in arguments.layout.slots
                }
            returned = self.function(given, dict(self.axes), **self.home.operators)
            outputs = [slot.name for slot in arguments.layout.with_role("output", "inout")]
            checked = checked_results(self.torch, returned, tensors, outputs)
            if self.is_call:  # what a view leaves to be copied is part of the call
                checked = {name: result.contiguous() for name, result in checked.items()}
                self.places[arguments.base] = {
                    n: result.data_ptr() for n, result in checked.items()
                }
            self.returned[arguments.base] = checked

    def collect(self, arguments: LaunchArguments) -> None:
        for name, place in self.places.get(arguments.base, {}).items():
            slot = arguments.layout.slot(name)
            ends = arguments.base + slot.offset, place
            call(driver.cuMemcpyDtoDAsync, *ends, slot.size_bytes, self.stream.cuda_stream)
        if self.is_call:
            return
        with self._views(arguments) as tensors:
            for name, result in self.returned.get(arguments.base, {}).items():
                tensors[name].copy_(result)

    def results(self, arguments: LaunchArguments) -> Mapping[str, Any]:
        """Give what the last call there returned, in the layout that a successor expects.

        Raises `PeerError` for a view that is not contiguous: who follows would have to copy it.
        """
        returned = self.returned.get(arguments.base, {})
        for name, result in returned.items():
            if not result.is_contiguous():
                strides = tuple(result.stride())
                raise PeerError(f"returns {name!r} with strides {strides}: not contiguous")
        return returned

    def forget(self, arguments: LaunchArguments) -> None:
        self.tensors.pop(arguments.base, None)
        self.returned.pop(arguments.base, None)
        self.places.pop(arguments.base, None)

    @contextmanager
    def _views(self, arguments: LaunchArguments) -> Iterator[dict[str, Any]]:
        torch, base = self.torch, arguments.base
        with self.blamed(), torch.cuda.stream(self.stream), torch.no_grad():
            if base not in self.tensors:
                self.tensors[base] = {
                    slot.name: _tensor(torch, slot, base, self.stream)
                    for slot in arguments.layout.slots
                }
            yield self.tensors[base]


def make_neighbour(
    home: PeerHome, name: str, stream: Any, axes: Mapping[str, int]
) -> Callable[[LaunchArguments, Mapping[str, Any]], None]:
    """Make what enqueues one of the reference file's `neighbours`.

    Besides the arrays it takes tensors that the operator returned in the place of some of them.

    One whose first parameter is called `arrays` gets CuPy arrays, any other PyTorch's tensors.
    Raises `KernelError` for one that there isn't.
    """
    functions = load_functions(home.reference, "neighbours")
    if name not in functions:
        names = ", ".join(functions) or "none"
        message = f"has no neighbour named {name!r}"
        raise KernelError(message, path=home.reference, remedy=f"its `neighbours`: {names}")
    function = functions[name]
    if next(iter(signature(function).parameters), "") == "arrays":
        return lambda arguments, returned: _call_on_arrays(
            home, function, arguments, returned, stream, axes
        )
    torch: Any = import_module("torch")
    blamed = partial(_blamed_on_peer, home.reference)
    side = torch.cuda.ExternalStream(int(stream))
    return PeerLauncher(torch, side, home, function, axes, blamed).issue


def _call_on_arrays(
    home: PeerHome,
    function: PeerFunction,
    arguments: LaunchArguments,
    returned: Mapping[str, Any],
    stream: Any,
    axes: Mapping[str, int],
) -> None:
    cupy: Any = import_module("cupy")
    arrays = {}
    for slot in arguments.layout.slots:
        address = arguments.base + slot.offset
        if slot.name in returned:
            address = returned[slot.name].data_ptr()
        memory = cupy.cuda.UnownedMemory(address, slot.size_bytes, None)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        arrays[slot.name] = cupy.ndarray(slot.shape, STORAGE.get(slot.dtype, slot.dtype), pointer)
    with _blamed_on_peer(home.reference), cupy.cuda.ExternalStream(int(stream)):
        function(arrays, dict(axes), **home.operators)


def _tensor(torch: Any, slot: Slot, base: int, stream: Any) -> Any:
    """Make a tensor over an array: no view of another tensor, which torch.compile treats apart."""
    place = {"shape": (slot.size_bytes,), "data": (base + slot.offset, False), "strides": None}
    interface = {**place, "typestr": "|u1", "version": 3}
    array = SimpleNamespace(__cuda_array_interface__=interface)
    raw = torch.as_tensor(array, device=stream.device)
    return _over(torch, raw.untyped_storage(), slot, stream)


def _over(torch: Any, storage: Any, slot: Slot, stream: Any) -> Any:
    dtype = getattr(torch, torch_name(slot.dtype))
    tensor = torch.empty(0, dtype=dtype, device=stream.device)
    strides = tuple(prod(slot.shape[n + 1 :]) for n in range(len(slot.shape)))
    return tensor.set_(storage, 0, slot.shape, strides)


def _warm_up(launcher: PeerLauncher, arena: MappedArena, stream: Any) -> None:
    size_bytes = arena.layout.total_bytes
    try:
        base = allocate(size_bytes)
    except MemoryError as error:
        if launcher.is_call:
            raise
        raise PeerError(f"not enough memory to warm it up: {error}") from error
    arguments = LaunchArguments(arena.layout, base)
    try:
        for _ in range(WARM_UP_CALLS):
            # Each on fresh inputs: what is written in place may have no sense a second time.
            call(driver.cuMemcpyDtoDAsync, base, arena.base, size_bytes, stream)
            launcher.issue(arguments)
        call(driver.cuStreamSynchronize, stream)
    finally:
        launcher.forget(arguments)
        with suppress(CudaError):  # which would only hide the one that led here
            call(driver.cuMemFree, base)


def _blamed_on_peer(reference: Path) -> AbstractContextManager[None]:
    return blamed_on_peer(reference, f"{reference}:")
