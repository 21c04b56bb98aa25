"""Run programs on a device that has memory of its own: the verifier's is copied in and out.

`CopyingWorker` runs in a process that may crash or hang, and is killed then; `CopyingRunner` starts
it. Both serve every runtime that has the calls of `Runtime`.
"""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import ceil
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tuner.device.base import Program
from tuner.device.layout import UNCHANGED, Arena, Layout, Patch, fill_byte
from tuner.device.timing import FINALS, JUDGED, SampledCalls, TimingPolicy, hopeless, should_stop
from tuner.device.verify.restarting_worker import (
    ChildRunner,
    Judge,
    Rows,
    RunFailedError,
    raise_worker_errors,
)
from tuner.model.errors import WorkerError
from tuner.model.kernel import Launch
from tuner.model.trial import Measurement, Status
from tuner.process.child import Child

LOADED_PROGRAMS = 16
# Copies of a workload's arrays, each for one call of a replay: as many as fit, at least two.
COPIES_BYTES, LEAST_COPIES = 64 << 20, 2
# Of more bytes that are others all of an array is sent again: each takes a call of the runtime.
MOST_FILLS = 256
# What stands for timed calls is replayed up to so many times.
RERUN_REPLAYS = 4
# Clocks may come out alike for what took less than their resolution.
LEAST_US = 1e-3
TIMING_TIMEOUT_S = 60.0
ATTACH_TIMEOUT_S = 30.0
# Of a comparison, a round of a program: its copies are made and read again.
ROUND_TIMEOUT_S = 10.0

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
# What a call left, where it lies.
Pieces = dict[tuple[int, int], Bytes]
_Place = TypeVar("_Place")
_Code = TypeVar("_Code")
_Arguments = TypeVar("_Arguments")


class CallFailedError(WorkerError):
    """Report a failed call of a runtime; after a `sticky` one nothing works in its process."""

    def __init__(self, message: str, *, sticky: bool = False, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.sticky = sticky


class Runtime(Protocol[_Place, _Code, _Arguments]):
    """What a worker needs of a device; calls raise `CallFailedError`, `allocate` `MemoryError`.

    `most_copies` of a workload's arrays are made at most, and `warm_up_calls` come before timed
    ones.
    """

    most_copies: int
    warm_up_calls: int

    def allocate(self, size_bytes: int) -> _Place: ...

    def free(self, place: _Place) -> None: ...

    def upload(self, place: _Place, source: Bytes) -> None:
        """Copy from this process's memory, behind all that was enqueued, and wait."""

    def download(self, target: Bytes, place: _Place) -> None:
        """Copy to this process's memory, behind all that was enqueued, and wait."""

    def copy(self, target: _Place, source: _Place, offset: int, size_bytes: int) -> None:
        """Enqueue a copy between two places of the device's, at the same offset in both."""

    def fill(self, place: _Place, byte: int, offset: int, size_bytes: int) -> None: ...

    def load(self, program: Program) -> _Code: ...

    def unload(self, code: _Code) -> None: ...

    def bind(self, layout: Layout, place: _Place) -> _Arguments:
        """Make what launches on the arrays at a place are given."""

    def launch(self, code: _Code, launch: Launch, arguments: _Arguments) -> None: ...

    def spoil(self) -> None:
        """Enqueue what replaces all that kernels have left in caches and local memory."""

    def wait(self) -> None: ...

    def start(self) -> None:
        """Start the clock of the device, which is idle."""

    def stop_us(self) -> float:
        """Wait, and tell what was launched since the start took, in microseconds."""


class _Copy(Generic[_Place, _Arguments]):
    """One copy of a workload's arrays on the device, with the guards between them.

    `variant` is the number of its inputs' in the patch, None where they are unknown.
    """

    def __init__(self, place: _Place, arguments: _Arguments) -> None:
        self.place, self.arguments = place, arguments
        self.variant: int | None = None


class CopyingWorker(Generic[_Place, _Code, _Arguments]):
    """Load, launch and time programs on one device.

    `deterministic` names the outputs whose bits may not differ between timed calls.
    """

    def __init__(
        self, runtime: Runtime[_Place, _Code, _Arguments], deterministic: frozenset[str]
    ) -> None:
        self._runtime, self._deterministic = runtime, deterministic
        self._loaded: OrderedDict[tuple[bytes, tuple[str, ...]], _Code] = OrderedDict()
        self._memory: Bytes | None = None
        self._layout: Layout | None = None
        self._copies: list[_Copy[_Place, _Arguments]] = []
        # The arena as it is between timed calls, there and here.
        self._image: _Place | None = None
        self._given = np.empty(0, np.uint8)
        self._patch = UNCHANGED
        # By program, what some calls left, where each piece lies.
        self._sampled: dict[int, SampledCalls[Pieces]] = {}
        self._differing: set[int] = set()

    def ask_runtime(self, method: str) -> Any:
        """Call a method of the runtime that no program is run for."""
        return getattr(self._runtime, method)()

    def attach(self, arena: Arena) -> None:
        """Map the verifier's memory for one workload."""
        self.detach()
        assert arena.host_name is not None
        descriptor = os.open(arena.host_name, os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(descriptor, arena.layout.total_bytes)
        finally:
            os.close(descriptor)
        self._memory = np.frombuffer(mapped, np.uint8)
        self.fit(arena.layout)

    def fit(self, layout: Layout) -> None:
        """Make copies of what is mapped, in this layout."""
        self._free()
        self._layout, runtime = layout, self._runtime
        count = max(LEAST_COPIES, COPIES_BYTES // layout.total_bytes)
        try:
            for _ in range(min(count, runtime.most_copies)):
                place = runtime.allocate(layout.total_bytes)
                self._copies.append(_Copy(place, runtime.bind(layout, place)))
            self._image = runtime.allocate(layout.total_bytes)
        except MemoryError as error:
            self._free()
            wanted = f"{count + 1} copies of {layout.total_bytes} bytes"
            raise MemoryError(f"{wanted}: {error}") from error

    def detach(self) -> None:
        self._free()
        self._memory = self._layout = None

    def run_once(self, program: Program) -> None:
        """Run it once on what the arena holds, and copy all of that back."""
        copy, runtime = secrets.choice(self._copies), self._runtime
        copy.variant = None
        runtime.upload(copy.place, self._mapped)
        runtime.spoil()
        code = self._load(program)
        for launch in program.launches:
            runtime.launch(code, launch, copy.arguments)
        runtime.wait()
        runtime.download(self._mapped, copy.place)

    def time(
        self, program: Program, policy: TimingPolicy, incumbent_us: float | None, patch: Patch
    ) -> Measurement:
        """Time replays of a few calls, each on a copy of its own; `show` gives what they left."""
        self._renew(patch)
        calls, times = self._calls(program, policy), list[float]()
        started = time.perf_counter()
        while not should_stop(policy, times, time.perf_counter() - started, incumbent_us):
            times.append(self._replay(0, program, calls))
        return Measurement(tuple(times), calls, 1, hopeless(policy, times, incumbent_us))

    def compare(
        self, programs: Sequence[Program], policy: TimingPolicy, rounds: int, patch: Patch
    ) -> list[tuple[float, ...]]:
        """Time programs interleaved, in an order drawn for each round: rows in us."""
        self._renew(patch)
        calls = max(self._calls(program, policy) for program in programs)
        turns, rows = list(range(len(programs))), []
        for _ in range(rounds):
            secrets.SystemRandom().shuffle(turns)
            row = [0.0] * len(programs)
            for index in turns:
                row[index] = self._replay(index, programs[index], calls)
            rows.append(tuple(row))
        return rows

    def rerun(self, program: Program) -> None:
        """Run it as when it was timed, on what the arena holds now; leave one result there."""
        self._renew(UNCHANGED)
        for _ in range(1 + secrets.randbelow(RERUN_REPLAYS)):
            self._replay(0, program, 1 + secrets.randbelow(len(self._copies)))
        self.show(0, 0)

    def show(self, index: int, place: int) -> tuple[int, bool] | None:
        """Put one of a program's kept results into the arena; tell its variant, and if bits repeat.

        Return None where there is none.
        """
        kept = self._sampled[index].kept if index in self._sampled else {}
        if place not in kept:
            return None
        number, pieces = kept[place]
        self._mapped[...] = self._inputs_of(number)
        for (start, end), piece in pieces.items():
            self._mapped[start:end] = piece
        return number, index not in self._differing

    @property
    def _mapped(self) -> Bytes:
        assert self._memory is not None
        return self._memory

    @property
    def _placed(self) -> Layout:
        assert self._layout is not None
        return self._layout

    def _free(self) -> None:
        images = [] if self._image is None else [self._image]
        places = [*(copy.place for copy in self._copies), *images]
        self._copies, self._image, self._sampled = [], None, {}
        for place in places:
            self._runtime.free(place)

    def _renew(self, patch: Patch) -> None:
        """Take what the arena holds as the inputs of calls to come, and forget all results."""
        self._sampled.clear()
        self._differing.clear()
        self._patch, self._given = patch, self._mapped.copy()
        assert self._image is not None
        self._runtime.upload(self._image, self._given)
        for copy in self._copies:
            copy.variant = None

    def _inputs_of(self, number: int) -> Bytes:
        change, inputs = self._patch.of(number), self._given.copy()
        inputs[list(change.offsets)] = np.frombuffer(change.after, np.uint8)
        return inputs

    def _calls(self, program: Program, policy: TimingPolicy) -> int:
        """Warm up, and choose how many calls make a replay long enough to time."""
        for _ in range(self._runtime.warm_up_calls):
            expected_us = self._replay(None, program, 1)
        return max(1, min(ceil(policy.min_replay_us / expected_us), len(self._copies)))

    def _replay(self, index: int | None, program: Program, calls: int) -> float:
        """Run so many calls back to back; microseconds a call.

        The result of one of them is kept, as the program's of that index. Each call has a copy of
        its own, of a variant and a fill that nobody can foresee.
        """
        runtime, code = self._runtime, self._load(program)
        chosen = secrets.SystemRandom().sample(self._copies, calls)
        sampled_calls = self._sampled.setdefault(
            -1 if index is None else index, SampledCalls(self._patch)
        )
        planned, fill = sampled_calls.plan() if index is not None else None, fill_byte()
        judged = secrets.choice(chosen) if planned else None
        for copy in chosen:
            variant = planned.variant if planned and copy is judged else sampled_calls.draw()
            self._prepare(copy, variant, fill)
        runtime.spoil()
        runtime.wait()
        runtime.start()
        for copy in chosen:
            for launch in program.launches:
                runtime.launch(code, launch, copy.arguments)
        elapsed_us = runtime.stop_us()
        if index is not None and planned and judged:
            self._keep(index, judged, planned.place)
        return max(elapsed_us / calls, LEAST_US)

    def _prepare(self, copy: _Copy[_Place, _Arguments], variant: int, fill: int) -> None:
        runtime, layout, image = self._runtime, self._placed, self._image
        assert image is not None
        before, change = self._patch.of(copy.variant or 0), self._patch.of(variant)
        if max(len(before.offsets), len(change.offsets)) > MOST_FILLS:
            runtime.upload(copy.place, self._inputs_of(variant))
        else:
            if copy.variant is None:
                runtime.copy(copy.place, image, 0, layout.total_bytes)
            for slot in layout.with_role("inout"):
                runtime.copy(copy.place, image, slot.offset, slot.size_bytes)
            for input_change, values in ((before, before.before), (change, change.after)):
                for offset, byte in zip(input_change.offsets, values, strict=True):
                    runtime.fill(copy.place, byte, offset, 1)
        for slots, byte in ((layout.spoiled, fill), (layout.zeroed, 0)):
            for slot in slots:
                runtime.fill(copy.place, byte, slot.offset, slot.size_bytes)
        copy.variant = variant

    def _keep(self, index: int, copy: _Copy[_Place, _Arguments], place: int | None) -> None:
        """Compare what a call has left with what is kept of its variant, or keep it at a place.

        But for inputs that it was given so: they may be large.
        """
        assert copy.variant is not None
        found, given = np.empty_like(self._mapped), self._inputs_of(copy.variant)
        self._runtime.download(found, copy.place)
        _, before = self._sampled[index].known(copy.variant) or (None, {})
        pieces = {guard: found[slice(*guard)].copy() for guard in self._placed.guards}
        for slot in self._placed.slots:
            where = slot.offset, slot.offset + slot.size_bytes
            left = found[slice(*where)]
            if slot.role == "input" and np.array_equal(left, given[slice(*where)]):
                continue
            pieces[where] = left.copy()
            repeats = slot.role in ("output", "inout") and slot.name in self._deterministic
            if before and repeats and not np.array_equal(left, before[where]):
                self._differing.add(index)
        if place is not None:
            self._sampled[index].kept[place] = copy.variant, pieces

    def _load(self, program: Program) -> _Code:
        names = tuple(dict.fromkeys(launch.kernel for launch in program.launches))
        key = (program.cubin, names)
        if key not in self._loaded:
            while len(self._loaded) >= LOADED_PROGRAMS:
                self._runtime.unload(self._loaded.popitem(last=False)[1])
            self._loaded[key] = self._runtime.load(program)
        self._loaded.move_to_end(key)
        return self._loaded[key]


class CopyingRunner(ChildRunner):
    """The worker process of one device, replaced when a kernel hangs or breaks it.

    `make` makes its `CopyingWorker` of `opened`; a reason calls the process `called` and the
    device `device`. `policy` takes the place of the one that a search asks for.
    """

    judged = JUDGED

    def __init__(
        self,
        make: Callable[..., CopyingWorker[Any, Any, Any]],
        opened: tuple[Any, ...],
        *,
        called: str,
        device: str,
        run_timeout_s: float,
    ) -> None:
        super().__init__()
        self._make, self._opened = make, opened
        self._called, self._device = called, device
        self.run_timeout_s = run_timeout_s
        self.policy: TimingPolicy | None = None
        # A compiler beside it would take a CPU's cores from what is timed on them.
        self.pauses: Callable[[], AbstractContextManager[None]] = nullcontext

    def ask_runtime(self, method: str) -> Any:
        """Ask for what the device is, before any program runs."""
        return self._live_worker().call("ask_runtime", method, timeout_s=TIMING_TIMEOUT_S)

    def describe(self) -> Mapping[str, Any]:
        """Tell what the device is and measure its memory: nobody else may be using it."""
        facts: Mapping[str, Any] = self.ask_runtime("describe")
        return facts

    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        """Run it once; in which order blocks run is the device's to choose."""
        self.ask("run_once", program, timeout_s=self.run_timeout_s)
        return ""

    def time(
        self,
        program: Program,
        policy: TimingPolicy,
        incumbent_us: float | None,
        patch: Patch,
        judge: Judge,
    ) -> Measurement:
        with self.pauses():
            measurement: Measurement = self.ask_and_judge(
                *(judge, 1, "time", program, self.policy or policy, incumbent_us, patch),
                timeout_s=TIMING_TIMEOUT_S,
            )
        return measurement

    def rerun(self, program: Program) -> None:
        with self.pauses():
            self.ask("rerun", program, timeout_s=self.run_timeout_s)

    def compare(
        self, programs: Sequence[Program], rounds: int, patch: Patch, judge: Judge | None
    ) -> Rows:
        with self.pauses():
            rows: Rows = self.ask_and_judge(
                *(judge, len(programs), "compare", programs, FINALS, rounds, patch),
                timeout_s=TIMING_TIMEOUT_S + ROUND_TIMEOUT_S * rounds * len(programs),
            )
        return rows

    def _start(self) -> Child:
        with raise_worker_errors(f"no process can be started on {self._device}"):
            return Child(self._make, self._opened, "tune-worker")

    def _map(self, worker: Child, arena: Arena) -> None:
        with raise_worker_errors("the verifier's memory cannot be copied", CallFailedError):
            worker.call("attach", arena, timeout_s=ATTACH_TIMEOUT_S)

    @contextmanager
    def _blame_own_failures(self) -> Iterator[None]:
        try:
            yield
        except CallFailedError as error:
            if error.sticky:
                self._drop_worker()
            raise RunFailedError(Status.LAUNCH, error.message) from error
