"""Several devices of one kind as one: each workload has a home, the member that times it."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar, cast

from tuner.device.base import ComparisonRounds, Device, Outcome, Program, Recorded
from tuner.model.errors import DeviceError, DeviceLost, WorkerError
from tuner.model.kernel import Workload

# Whom a call goes to: the home of its workload, whose times are scaled; the first member, for what
# is not timed; all of them. Any other goes to the member that the calling thread serves.
AT_HOME = frozenset({"run", "compare", "rank", "energy"})
BY_THE_FIRST = frozenset({"call_compiler", "watchers", "counters"})
BY_EACH = frozenset({"require_energy", "import_ahead"})
_T = TypeVar("_T")
_P = ParamSpec("_P")


def make_forwarder(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a method of the same signature that calls `forward` of its device with its name."""
    name = method.__name__

    def call(*arguments: _P.args, **options: _P.kwargs) -> _T:
        device, *others = arguments
        return cast("_T", cast("ForwardingDevice", device).forward(name, tuple(others), options))

    return call


class ForwardingDevice(Device):
    """Forward what devices do; subclasses say to whom, and forward more by `forwarded`."""

    @abstractmethod
    def forward(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Call the method of that name on the device that does the work."""

    run = make_forwarder(Device.run)
    verify = make_forwarder(Device.verify)
    compare = make_forwarder(Device.compare)
    rank = make_forwarder(Device.rank)
    bits = make_forwarder(Device.bits)
    require_energy = make_forwarder(Device.require_energy)
    idle_energy = make_forwarder(Device.idle_energy)
    energy = make_forwarder(Device.energy)


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


class DeviceGroup(ForwardingDevice):
    """Time each workload on its home. Make one by `group_of`.

    What is only verified runs on the member that the calling thread serves. A member that is lost
    is asked no more: its workloads move to another, and their times then are in the lost one's
    terms, by what both took for the reference kernel: `reference_us`, by name. `moved` is set when
    homes change. The loss of the last member is a `DeviceLost`.
    """

    def __init__(self, members: Mapping[str, Device]) -> None:
        self.members = tuple(Member(name, device) for name, device in members.items())
        self.info = replace(self.members[0].device.info, members=len(members))
        shared = frozenset.intersection(*(member.capabilities for member in members.values()))
        self.capabilities = shared - {"compiler"} | {"members"}
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
            home = self._homes.get(workload.key)
            if home is None:
                return self._choose_member()
            number = [member.name for member in self.members].index(home.member)
            if self.members[number].lost:
                self._list_members_left()  # raises: what the last one loses stays where it was
            return number

    def serve(self, number: int) -> None:
        """Have this thread verify on the member of this number."""
        self._serving.number = number

    def drop(self, number: int, reason: str) -> None:
        """Ask a member no more and move its workloads; raise `DeviceLost` where it was the last."""
        with self._changing:
            self.members[number].lost = reason
            self._move_out()

    verify_together = make_forwarder(Device.verify_together)
    call_compiler = make_forwarder(Device.call_compiler)
    import_ahead = make_forwarder(Device.import_ahead)
    watchers = make_forwarder(Device.watchers)
    counters = make_forwarder(Device.counters)

    @property
    def recording(self) -> Recorded:
        return self.members[0].device.recording

    def forward(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if name in BY_THE_FIRST:
            return getattr(self.members[0].device, name)(*arguments, **options)
        if name in BY_EACH:
            for member in self.members:
                getattr(member.device, name)(*arguments, **options)
            return None
        if name not in AT_HOME:
            return self._on(
                self._choose_member, lambda device: getattr(device, name)(*arguments, **options)
            )
        timed = arguments[0]
        workload = (timed if isinstance(timed, Program) else timed[0]).workload

        def call(device: Device) -> Any:
            home, asked = self._homes.get(workload.key), dict(options)
            factor = 1.0 if home is None else home.factor
            if asked.get("incumbent_us") is not None:
                asked["incumbent_us"] /= factor
            return scale_times(getattr(device, name)(*arguments, **asked), factor)

        return self._on(lambda: self.home(workload), call)

    def close(self) -> None:
        self._closed = True
        with ExitStack() as stack:  # each of them, whatever another one's end raises
            for member in self.members:
                stack.callback(member.device.close)

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

    def _choose_member(self) -> int:
        number: int = getattr(self._serving, "number", 0)
        return self._list_members_left()[0] if self.members[number].lost else number

    def _list_members_left(self) -> list[int]:
        left = [number for number, member in enumerate(self.members) if not member.lost]
        if not left:
            raise DeviceLost(
                "all of them are gone: "
                + "; ".join(f"{member.name}: {member.lost}" for member in self.members)
            )
        return left

    def _move_out(self) -> None:
        """Move every workload whose home is lost to the member that has the fewest.

        Its times go on in the lost one's terms, where both were timed on the reference kernel.
        """
        left = [self.members[number].name for number in self._list_members_left()]
        counts = dict.fromkeys(left, 0)
        for home in self._homes.values():
            if home.member in counts:
                counts[home.member] += 1
        for key, home in self._homes.items():
            if home.member not in counts:
                to = min(left, key=counts.__getitem__)
                counts[to] += 1
                both_timed = {home.member, to} <= self.reference_us.keys()
                ratio = (
                    self.reference_us[home.member] / self.reference_us[to] if both_timed else 1.0
                )
                self._homes[key] = Home(to, home.factor * ratio)
                self.moved = True


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
    return DeviceGroup(members)


def as_group(device: Device) -> DeviceGroup | None:
    """Return the group that a device is; None for a single one."""
    return cast("DeviceGroup", device) if "members" in device.capabilities else None


def _kind(device: Device) -> str:
    return f"{device.info.name} ({device.info.architecture})"


def scale_times(answer: Any, factor: float) -> Any:
    """Multiply the times in what a device answers; energies stay what they are."""

    def scale(row: Iterable[float | None]) -> tuple[Any, ...]:
        return tuple(None if us is None else us * factor for us in row)

    match answer:
        case Outcome(measurement=timed) if timed is not None:
            return replace(answer, measurement=replace(timed, times_us=scale(timed.times_us)))
        case ComparisonRounds():
            return replace(
                answer,
                times_us=tuple(map(scale, answer.times_us)),
                isolated_us=scale(answer.isolated_us),
                alone_us=scale(answer.alone_us),
                noise_us=answer.noise_us * factor,
            )
        case [*rows]:
            return list(map(scale, rows))
    return answer
