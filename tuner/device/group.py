"""Several devices of one kind as one: each workload has a home, the member that times it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

from tuner.compiler.base import Compiler, CompileResult
from tuner.device.base import (
    CanCount,
    CanPrepare,
    CanRank,
    CanWatch,
    ComparesBits,
    ComparisonRounds,
    Counters,
    Device,
    EnergyMeter,
    FromRecording,
    Outcome,
    Program,
    RankedRounds,
    VerifiesTogether,
    Watchers,
)
from tuner.model.config import Config
from tuner.model.errors import DeviceError, DeviceLost, WorkerError
from tuner.model.kernel import Workload
from tuner.model.trial import EnergyWindow, Measurement

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Home:
    """The member that times a workload, and what its times are multiplied by.

    The factor is not 1 where another member began with the workload and was lost: its times over
    this one's on the reference kernel.
    """

    member: str
    factor: float = 1.0


@dataclass(slots=True)
class Member:
    """One device of a group; `lost` says why it is no longer asked, "" while it is."""

    name: str
    device: Device
    lost: str = ""
    # One call at a time: a member that takes over another's work gets calls from two threads.
    lock: threading.Lock = field(default_factory=threading.Lock)


class Turns:
    """Let one of several threads go on at a time, all but while they wait for a device."""

    def __init__(self) -> None:
        self._lock, self._own = threading.Lock(), threading.local()
        self._ended = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Run a block in turn with the other threads; raise `CancelledError` after the end."""
        self._take()
        try:
            yield
        finally:
            self._give()

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Let others go on during a block, where this thread has the turn."""
        if not getattr(self._own, "held", False):
            yield
            return
        self._give()
        try:
            yield
        finally:
            self._take()

    def end(self) -> None:
        """Let no other thread have a turn again; wait for the one that has it."""
        if getattr(self._own, "held", False):
            self._ended = True
            return
        with self._lock:
            self._ended = True

    def _take(self) -> None:
        self._lock.acquire()
        self._own.held = True
        if self._ended:
            self._give()
            raise CancelledError("whoever waited for this thread has given up")

    def _give(self) -> None:
        if getattr(self._own, "held", False):
            self._own.held = False
            self._lock.release()


class DeviceGroup:
    """Time each workload on its home; see `Device` for the contract. Make one by `group_of`.

    What is only verified runs on the member that the calling thread serves. A member that is lost
    is asked no more: its workloads move to another, and their times then are in the lost one's
    terms, by what both took for the reference kernel: `reference_us`, by name. `moved` is set when
    homes change. The loss of the last member is a `DeviceLost`.
    """

    def __init__(self, members: Mapping[str, Device]) -> None:
        self.members = tuple(Member(name, device) for name, device in members.items())
        self.info = replace(self.members[0].device.info, members=len(self.members))
        self.turns = Turns()
        self.reference_us: Mapping[str, float] = {}
        self.moved = False
        self._homes: dict[str, Home] = {}
        self._serving = threading.local()
        self._changing = threading.RLock()
        self._closed = False

    @property
    def homes(self) -> Mapping[str, Home]:
        """The home of every workload that has one, by its key."""
        with self._changing:
            return dict(self._homes)

    def settle(self, homes: Mapping[str, Home]) -> None:
        """Give workloads their homes; a home that is not in this group, or lost, is moved."""
        with self._changing:
            self._homes, self.moved = dict(homes), True
            self._move_out()

    def home(self, workload: Workload) -> int:
        """Return the number of the member that times a workload; raise `DeviceLost` for none."""
        with self._changing:
            known = self._homes.get(workload.key)
            if known is None:
                return self._served()
            number = [member.name for member in self.members].index(known.member)
            if self.members[number].lost:
                self._left()  # raises: what is lost with the last one stays where it was
            return number

    def serve(self, number: int) -> None:
        """Have this thread verify on the member of this number."""
        self._serving.number = number

    def drop(self, number: int, reason: str) -> None:
        """Ask a member no more and move its workloads; raise `DeviceLost` where it was the last."""
        with self._changing:
            self.members[number].lost = reason
            self._move_out()

    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        full_verification: bool = False,
    ) -> Outcome:
        def run(device: Device, factor: float) -> Outcome:
            incumbent = None if incumbent_us is None else incumbent_us / factor
            outcome = device.run(
                program, incumbent_us=incumbent, full_verification=full_verification
            )
            return replace(outcome, measurement=_scaled(outcome.measurement, factor))

        return self._at_home(program.workload, run)

    def verify(self, program: Program) -> Outcome:
        return self._on(self._served, lambda device: device.verify(program))

    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        def compare(device: Device, factor: float) -> ComparisonRounds:
            return _rounds_scaled(device.compare(programs, rounds=rounds), factor)

        return self._at_home(programs[0].workload, compare)

    def close(self) -> None:
        self._closed = True
        with ExitStack() as stack:  # each of them, whatever another one's end raises
            for member in self.members:
                stack.callback(member.device.close)

    def first(self) -> Device:
        """Return the member that opens what is not timed: compilers, tools, counters."""
        return self.members[0].device

    def _at_home(self, workload: Workload, call: Callable[[Device, float], _T]) -> _T:
        def scaled(device: Device) -> _T:
            home = self._homes.get(workload.key)
            return call(device, 1.0 if home is None else home.factor)

        return self._on(lambda: self.home(workload), scaled)

    def _on(self, number_of: Callable[[], int], call: Callable[[Device], _T]) -> _T:
        """Call the device of a member, and, where it is lost meanwhile, of the one after it.

        What breaks two of them is not theirs: the second `WorkerError` is raised.
        """
        broken = False
        with self.turns.given_up():
            while True:
                number = number_of()
                member = self.members[number]
                try:
                    with member.lock:
                        if not member.lost:
                            return call(member.device)
                except (DeviceLost, WorkerError) as error:
                    if self._closed or (broken and isinstance(error, WorkerError)):
                        raise
                    broken = isinstance(error, WorkerError)
                    self.drop(number, error.message)

    def _served(self) -> int:
        number: int = getattr(self._serving, "number", 0)
        return self._left()[0] if self.members[number].lost else number

    def _left(self) -> list[int]:
        left = [number for number, member in enumerate(self.members) if not member.lost]
        if not left:
            raise DeviceLost(
                "all of them are gone: "
                + "; ".join(f"{member.name}: {member.lost}" for member in self.members)
            )
        return left

    def _move_out(self) -> None:
        """Move every workload whose home is lost to the member that has the fewest."""
        left = [self.members[number].name for number in self._left()]
        counts = dict.fromkeys(left, 0)
        for home in self._homes.values():
            if home.member in counts:
                counts[home.member] += 1
        for key, home in self._homes.items():
            if home.member not in counts:
                to = min(left, key=counts.__getitem__)
                counts[to] += 1
                self._homes[key] = Home(to, home.factor * self._ratio(home.member, to))
                self.moved = True

    def _ratio(self, before: str, after: str) -> float:
        """Tell how much longer the one takes than the other; 1 where they were not compared."""
        times_us = self.reference_us
        known = before in times_us and after in times_us
        return times_us[before] / times_us[after] if known else 1.0


def group_of(members: Mapping[str, Device]) -> DeviceGroup:
    """Make one device of several, by their names, that can do what all of them can.

    Raises `DeviceError` where they differ in kind.
    """
    first, *others = members.items()
    for name, device in others:
        if _kind(device) != _kind(first[1]):
            raise DeviceError(
                f"{first[0]} is {_kind(first[1])} and {name} is {_kind(device)}: their times must "
                "not mix",
                remedy="name GPUs of one kind with --gpus, and tune for the others in another run",
            )
    can = [
        made
        for protocol, made in _CAPABILITIES.items()
        if all(isinstance(device, protocol) for device in members.values())
    ]
    # `isinstance` with a protocol looks for methods: a group may only have those of its members.
    made = type(DeviceGroup.__name__, (*can, DeviceGroup), {})
    return cast("DeviceGroup", made(members))


def _kind(device: Device) -> str:
    return f"{device.info.name} ({device.info.architecture})"


class _Ranking(DeviceGroup):
    def rank(self, programs: Sequence[Program], *, rounds: int) -> RankedRounds:
        def rank(device: Device, factor: float) -> RankedRounds:
            rows = cast("CanRank", device).rank(programs, rounds=rounds)
            return [tuple(None if us is None else us * factor for us in row) for row in rows]

        return self._at_home(programs[0].workload, rank)


class _VerifyingTogether(DeviceGroup):
    def verify_together(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        return self._on(
            self._served,
            lambda device: cast("VerifiesTogether", device).verify_together(programs),
        )


class _ComparingBits(DeviceGroup):
    def same_bits(self, program: Program, like: Program) -> Outcome:
        return self._on(
            self._served, lambda device: cast("ComparesBits", device).same_bits(program, like)
        )


class _Recorded(DeviceGroup):
    @property
    def _recording(self) -> FromRecording:
        return cast("FromRecording", self.first())

    @property
    def path(self) -> Path:
        return self._recording.path

    @property
    def created(self) -> str:
        return self._recording.created

    def holds(self, workload: Workload) -> bool:
        return self._recording.holds(workload)

    def configs_of(self, workload: Workload) -> Sequence[Config] | None:
        return self._recording.configs_of(workload)

    def compiled(self) -> Mapping[str, CompileResult]:
        return self._recording.compiled()


class _Preparing(DeviceGroup):
    def call_compiler(self, jobs: int | None) -> Compiler:
        return cast("CanPrepare", self.first()).call_compiler(jobs)

    def import_ahead(self, program: Program) -> None:
        for member in self.members:
            cast("CanPrepare", member.device).import_ahead(program)


class _Watching(DeviceGroup):
    def watchers(self) -> Watchers:
        return cast("CanWatch", self.first()).watchers()


class _Counting(DeviceGroup):
    def counters(self) -> Counters:
        return cast("CanCount", self.first()).counters()


class _Metering(DeviceGroup):
    def require_energy(self) -> None:
        for member in self.members:
            cast("EnergyMeter", member.device).require_energy()

    def idle_energy(self, *, seconds: float) -> EnergyWindow:
        """Read it on the member that the calling thread serves."""
        return self._on(
            self._served, lambda device: cast("EnergyMeter", device).idle_energy(seconds=seconds)
        )

    def energy(self, program: Program, *, seconds: float) -> EnergyWindow | Outcome:
        return self._at_home(
            program.workload,
            lambda device, _: cast("EnergyMeter", device).energy(program, seconds=seconds),
        )


_CAPABILITIES: Mapping[type, type[DeviceGroup]] = {
    CanRank: _Ranking,
    VerifiesTogether: _VerifyingTogether,
    ComparesBits: _ComparingBits,
    FromRecording: _Recorded,
    CanPrepare: _Preparing,
    CanWatch: _Watching,
    CanCount: _Counting,
    EnergyMeter: _Metering,
}


def _scaled(measurement: Measurement | None, factor: float) -> Measurement | None:
    if measurement is None or factor == 1.0:
        return measurement
    return replace(measurement, times_us=tuple(us * factor for us in measurement.times_us))


def _rounds_scaled(rounds: ComparisonRounds, factor: float) -> ComparisonRounds:
    if factor == 1.0:
        return rounds
    isolated = (None if us is None else us * factor for us in rounds.isolated_us)
    return replace(
        rounds,
        times_us=tuple(tuple(us * factor for us in row) for row in rounds.times_us),
        isolated_us=tuple(isolated),
        alone_us=tuple(us * factor for us in rounds.alone_us),
        noise_us=rounds.noise_us * factor,
    )
