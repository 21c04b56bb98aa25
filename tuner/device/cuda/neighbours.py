"""What runs before and after an operator while it is timed: products, stand-ins, functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from cuda.bindings import driver

from tuner.device.cuda.driver import (
    THREADS,
    CudaError,
    Issuer,
    LaunchArguments,
    allocate,
    call,
)
from tuner.device.cuda.neighbour_memory import (
    ARRAY_FIRST,
    POOL_BYTES,
    ROWS,
    TRIGGER,
    WAIT,
    WRITE,
    CublasError,
    NeighbourMemory,
)
from tuner.device.cuda.peers import PeerHome, make_neighbour
from tuner.device.layout import Layout
from tuner.device.reference import PeerError
from tuner.model.errors import KernelError
from tuner.model.surroundings import Link, Neighbour, Surroundings

_ONE = 0x3F80  # in bf16
# Bytes of the sums of a split product for each byte of bf16: four parts in float32.
_PARTS = 8


class Neighbours:
    """One workload's surroundings, ready to be enqueued around calls of its operator.

    Each call has weights of its own, which are in no cache. What runs before leaves every bit of
    the arrays as it was: a product's first factor is the identity, and the second holds its result.
    Where there is no operator, what runs after reads what the launch before has left in the L2.
    `places` is how many calls a chain has at most.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        layout: Layout,
        memory: NeighbourMemory,
        home: PeerHome | None,
        places: int,
    ) -> None:
        self.surroundings, self._layout, self._stream = surroundings, layout, memory.stream
        self._home, self._memory = home, memory
        self._slots = {slot.name: slot for slot in layout.slots}
        self._numbers: dict[int, int] = {}
        everything = surroundings.neighbours
        products = [neighbour for neighbour in everything if neighbour.kind == "gemm"]
        planted = [n for link in surroundings.links for n in link.before if n in products]
        streamed = [_align_size(_weight_bytes(n)) for n in everything if n not in planted]
        self._pool_bytes = POOL_BYTES + max(streamed, default=0)
        per_link = -(-places // len(surroundings.links))
        sizes = [per_link * _align_size(_weight_bytes(neighbour)) for neighbour in planted]
        with self._room(max(everything, key=_weight_bytes, default=None)):
            self._pool = memory.of("weights", self._pool_bytes)
            sink_bytes = max(
                (2 * prod(n.sizes[:2] if n.kind == "gemm" else (2,)) for n in everything),
                default=4,
            )
            self._sink = memory.of("results", sink_bytes)
            base = memory.of("planted", sum(sizes)) if planted else 0
            self._identity = {neighbour: _identity_of(neighbour) for neighbour in planted}
        ends = [base, *(base + end for end in accumulate(sizes))]
        self._planted = dict(zip(planted, ends, strict=False))
        with self._blame(products[0] if products else None):
            self._cublas = memory.cublas() if products else None
        self._functions = {n: self._function(n) for n in everything if n.kind == "function"}

    def before(self, arguments: LaunchArguments) -> None:
        """Enqueue what runs before the operator's call on these arrays."""
        for neighbour in self._link(self._number(arguments)).before:
            self._run_before(neighbour, arguments)

    def after(self, arguments: LaunchArguments, operator: Issuer | None) -> None:
        """Enqueue what runs after it; without an `operator` it reads what is in the L2.

        What the operator returned is read where it lies: the outputs that a peer did not write are
        in no cache, and it would be charged for that.
        """
        returned = operator.results(arguments) if operator else None
        for neighbour in self._link(self._number(arguments)).after:
            self._run_after(neighbour, arguments, returned)

    def plant(self, everywhere: Sequence[LaunchArguments]) -> None:
        """Enqueue writing what the arrays hold into the weights that products make them of."""
        for index, link in enumerate(self.surroundings.links):
            of_link = everywhere[index :: len(self.surroundings.links)]
            for neighbour in link.before if of_link else ():
                if neighbour.kind == "gemm":
                    self._plant(neighbour, of_link)

    def check(self, everywhere: Sequence[LaunchArguments], content: int) -> None:
        """Run all once at the places of a chain; raise `KernelError` for what changes there.

        `content` is what the arrays hold. Nothing may change an array or what lies between them:
        that would be the operator's fault.
        """
        self._numbers |= {arguments.base: number for number, arguments in enumerate(everywhere)}
        for arguments in everywhere[: len(self.surroundings.links)]:
            size_bytes = self._layout.total_bytes
            call(driver.cuMemcpyDtoDAsync, arguments.base, content, size_bytes, self._stream)
        self.plant(everywhere[: len(self.surroundings.links)])
        for arguments, link in zip(everywhere, self.surroundings.links, strict=False):
            for neighbour in link.before:
                with self._blame(neighbour):
                    self._run_before(neighbour, arguments)
                    self._require_same(arguments, content, neighbour)
            for neighbour in link.after:
                with self._blame(neighbour):
                    self._run_after(neighbour, arguments, {})
                    self._require_same(arguments, content, neighbour)

    def blame_capture(self) -> AbstractContextManager[None]:
        """Blame them for what fails while the chain without an operator becomes a graph.

        A function that reads something back to the host runs once, and fails only there.
        """
        everything = self.surroundings.neighbours
        functions = [neighbour for neighbour in everything if neighbour.kind == "function"]
        suspect = next(iter((*functions, *everything)), None)
        return self._blame(suspect, "fails in a CUDA graph")

    def close(self) -> None:
        """Free what is this workload's own."""
        for base in self._identity.values():
            call(driver.cuMemFree, base)

    def _run_before(self, neighbour: Neighbour, arguments: LaunchArguments) -> None:
        number = self._number(arguments)
        if neighbour.kind == "gemm":
            slot = self._slots[neighbour.array]
            weights, address = self._weights(neighbour, number), arguments.base + slot.offset
            places = self._identity[neighbour], weights, address
            assert self._cublas is not None
            self._cublas.product(neighbour.sizes, places)
        elif neighbour.kind == "stream":
            self._stream_before(neighbour, arguments, number)
        else:
            self._functions[neighbour](arguments, {})

    def _run_after(
        self, neighbour: Neighbour, arguments: LaunchArguments, returned: Mapping[str, Any] | None
    ) -> None:
        """Enqueue it on what the operator returned or wrote; None where there is no operator."""
        number, address = self._number(arguments), 0
        if neighbour.array:
            slot = self._slots[neighbour.array]
            address = arguments.base + slot.offset
            if returned is None:
                address = self._in_l2(arguments, number, _read_bytes(neighbour, slot.size_bytes))
            elif neighbour.array in returned:
                address = returned[neighbour.array].data_ptr()
        if neighbour.kind == "gemm":
            places = address, self._weights(neighbour, number), self._sink
            assert self._cublas is not None
            self._cublas.product(neighbour.sizes, places)
        elif neighbour.kind == "stream":
            size_bytes = self._slots[neighbour.array].size_bytes if neighbour.array else 0
            weights, weight_bytes = self._weights(neighbour, number), neighbour.sizes[0]
            programmatic = neighbour.pdl and returned is not None
            mode = ARRAY_FIRST | (WAIT if programmatic else 0)
            values = (address, size_bytes, weights, weight_bytes, 0, 0)
            self._issue(self._memory.blocks, mode, *values, programmatic=programmatic)
        else:
            self._functions[neighbour](arguments, returned or {})

    def _number(self, arguments: LaunchArguments) -> int:
        return self._numbers[arguments.base]

    def _link(self, number: int) -> Link:
        return self.surroundings.links[number % len(self.surroundings.links)]

    def _stream_before(self, neighbour: Neighbour, arguments: LaunchArguments, number: int) -> None:
        weights, weight_bytes = self._weights(neighbour, number), neighbour.sizes[0]
        array, array_bytes = 0, 0
        if neighbour.array:
            slot = self._slots[neighbour.array]
            array, array_bytes = arguments.base + slot.offset, slot.size_bytes
        readers = [reader for reader in self._link(number).after if reader.array]
        reads_bytes = (_read_bytes(n, self._slots[n.array].size_bytes) for n in readers)
        wanted = max(reads_bytes, default=0)
        hot_bytes = min(wanted, weight_bytes) if wanted > array_bytes else 0
        if not neighbour.pdl:
            numbers = (array, array_bytes, weights, weight_bytes, weights, hot_bytes)
            self._issue(self._memory.blocks, WRITE, *numbers)
            return
        # As a split product does it: a launch of its own adds the parts, which are in the L2.
        part_bytes = min(_PARTS * array_bytes, weight_bytes)
        self._issue(self._memory.blocks, 0, 0, 0, weights, weight_bytes, weights, part_bytes)
        blocks = max(1, min(self._memory.blocks, part_bytes // (16 * THREADS)))
        numbers = (array, array_bytes, weights, part_bytes, weights, hot_bytes)
        self._issue(blocks, WRITE | TRIGGER | WAIT, *numbers, programmatic=True)

    def _issue(self, blocks: int, mode: int, *numbers: int, programmatic: bool = False) -> None:
        values = (*map(ctypes.c_uint64, (*numbers, self._sink)), ctypes.c_uint32(mode))
        self._memory.stand_in.issue(self._stream, blocks, *values, programmatic=programmatic)

    def _plant(self, neighbour: Neighbour, everywhere: Sequence[LaunchArguments]) -> None:
        m, n, k = neighbour.sizes
        first = everywhere[0].base
        stride = everywhere[1].base - first if len(everywhere) > 1 else 0
        addresses = (first + self._slots[neighbour.array].offset, stride, self._planted[neighbour])
        groups = -(-m // ROWS)
        numbers = (m, n, k, groups, len(everywhere) * n * groups)
        self._memory.planter.issue(
            self._stream,
            self._memory.blocks,
            *map(ctypes.c_uint64, (*addresses, _align_size(_weight_bytes(neighbour)))),
            *map(ctypes.c_uint32, numbers),
        )

    def _in_l2(self, arguments: LaunchArguments, number: int, size_bytes: int) -> int:
        """Return where the launch before has left so many bytes in the L2."""
        last = self._link(number).before[-1]
        if last.array and self._slots[last.array].size_bytes >= size_bytes:
            return arguments.base + self._slots[last.array].offset
        return self._weights(last, number)

    def _weights(self, neighbour: Neighbour, number: int) -> int:
        size_bytes = _align_size(_weight_bytes(neighbour))
        if neighbour in self._planted:
            return self._planted[neighbour] + number // len(self.surroundings.links) * size_bytes
        # One after the other, so that none is what another has just left in the L2.
        everything = [n for n in self.surroundings.neighbours if n not in self._planted]
        sizes = [_align_size(_weight_bytes(other)) for other in everything]
        offset = number * sum(sizes) + sum(sizes[: everything.index(neighbour)])
        return self._pool + offset % (self._pool_bytes - size_bytes + 256)

    def _function(
        self, neighbour: Neighbour
    ) -> Callable[[LaunchArguments, Mapping[str, Any]], None]:
        assert self._home is not None
        axes = dict(self.surroundings.axes)
        with self._blame(neighbour):
            return make_neighbour(self._home, neighbour.function, self._stream, axes)

    def _require_same(self, arguments: LaunchArguments, content: int, neighbour: Neighbour) -> None:
        size_bytes = self._layout.total_bytes
        if self._memory.differ(arguments.base, content, size_bytes):
            there, wanted = (_bytes_at(base, size_bytes) for base in (arguments.base, content))
            first = int(np.flatnonzero(there != wanted)[0])
            raise self._error(neighbour, f"changes {self._what(first)}")

    def _what(self, offset: int) -> str:
        for slot in self._layout.slots:
            if slot.offset <= offset < slot.offset + slot.size_bytes:
                return f"`{slot.name}` at byte {offset - slot.offset}: it may only read it"
        return "memory beside the arrays: it writes out of bounds"

    def _error(self, neighbour: Neighbour | None, what: str) -> KernelError:
        assert self._home is not None
        return KernelError(
            f"the neighbour {neighbour} {what}",
            path=self._home.space,
            line=None if neighbour is None else neighbour.line,
            remedy="mend it, or measure without it: --surroundings alone",
        )

    @contextmanager
    def _room(self, largest: Neighbour | None) -> Iterator[None]:
        """Turn a want of memory into one error at the line of the largest neighbour.

        Not beside a kernel in Python: what PyTorch keeps for others comes back in a new process.
        """
        try:
            yield
        except MemoryError as failure:
            if self._home is None or self._home.source is not None:
                raise
            raise self._error(largest, f"needs more memory than there is: {failure}") from failure

    @contextmanager
    def _blame(self, neighbour: Neighbour | None, what: str = "fails") -> Iterator[None]:
        """Turn a failure of a neighbour into one error at its line."""
        try:
            yield
        except (CudaError, CublasError, PeerError) as failure:
            raise self._error(neighbour, f"{what}: {failure.message}") from failure


class Surrounded:
    """A launcher whose calls stand between the operator's neighbours; None for them alone."""

    def __init__(self, neighbours: Neighbours, launcher: Issuer | None) -> None:
        self._neighbours, self._launcher = neighbours, launcher
        self.relaxed, self.repeats = True, False

    def issue(self, arguments: LaunchArguments) -> None:
        """Enqueue the neighbours, with the operator's call between them."""
        self._neighbours.before(arguments)
        if self._launcher is not None:
            self._launcher.issue(arguments)
        self._neighbours.after(arguments, self._launcher)

    def collect(self, arguments: LaunchArguments) -> None:
        """Put the operator's results into its outputs."""
        if self._launcher is not None:
            self._launcher.collect(arguments)

    def results(self, arguments: LaunchArguments) -> Mapping[str, Any]:
        """Give what the operator returned."""
        return self._launcher.results(arguments) if self._launcher is not None else {}


def _weight_bytes(neighbour: Neighbour) -> int:
    if neighbour.kind == "gemm":
        return 2 * prod(neighbour.sizes[1:])
    return neighbour.sizes[0] if neighbour.sizes else 0


def _identity_of(neighbour: Neighbour) -> int:
    m, _, k = neighbour.sizes
    rows = np.zeros((m, k), np.uint16)
    np.fill_diagonal(rows, _ONE)
    base = allocate(rows.nbytes)
    call(driver.cuMemcpyHtoD, base, rows.ctypes.data, rows.nbytes)
    return base


def _read_bytes(neighbour: Neighbour, array_bytes: int) -> int:
    return 2 * neighbour.sizes[0] * neighbour.sizes[2] if neighbour.kind == "gemm" else array_bytes


def _align_size(size_bytes: int) -> int:
    return -(-size_bytes // 256) * 256


def _bytes_at(address: int, size_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    content = np.empty(size_bytes, np.uint8)
    call(driver.cuMemcpyDtoH, content.ctypes.data, address, size_bytes)
    return content
