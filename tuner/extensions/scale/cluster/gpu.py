"""What a GPU on some host of a cluster can do besides timing: watch, count, measure energy."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.device.base import Counted, Outcome, Program, Watchers
from tuner.extensions.scale.cluster.device import RemoteDevice
from tuner.extensions.scale.cluster.messages import COUNTERS, WATCHERS, CallDevice, ToldWatchers
from tuner.model.trial import EnergyWindow


class RemoteGpu(RemoteDevice):
    """A `RemoteDevice` that is `CanWatch`, `CanCount` and an `EnergyMeter`, as a GPU here is.

    The tools run on the worker's host; where it has none, none is here.
    """

    def watchers(self) -> Watchers:
        told: ToldWatchers = self.call(CallDevice("", part=WATCHERS), self._long_s)
        tools = tuple(RemoteWatcher(self, kind, self._long_s) for kind in told.kinds)
        return Watchers(tools, told.compile_options, told.largest_bytes)

    def counters(self) -> RemoteCounters:
        return RemoteCounters(self, self._long_s)

    def require_energy(self) -> None:
        self.call(CallDevice("require_energy"), self._long_s)

    def idle_energy(self, *, seconds: float) -> EnergyWindow:
        call = CallDevice("idle_energy", (), {"seconds": seconds})
        window: EnergyWindow = self.call(call, self._long_s + seconds)
        return window

    def energy(self, program: Program, *, seconds: float) -> EnergyWindow | Outcome:
        call = CallDevice("energy", (program,), {"seconds": seconds})
        found: EnergyWindow | Outcome = self.call(call, self._long_s + seconds)
        return found

    @property
    def _long_s(self) -> float:
        return self._cluster.settings.patience.compare_s


class RemoteWatcher:
    """A watching tool beside a GPU of the cluster; implements `Watcher`."""

    def __init__(self, device: RemoteGpu, kind: str, deadline_s: float) -> None:
        self.kind, self._device, self._deadline_s = kind, device, deadline_s

    def watch(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        call = CallDevice("watch", (tuple(programs),), part=self.kind)
        found: Sequence[Outcome] = self._device.call(call, self._deadline_s)
        return found

    def close(self) -> None:
        """The worker closes it with the device."""


class RemoteCounters:
    """The counters of a GPU of the cluster; implements `Counters`."""

    def __init__(self, device: RemoteGpu, deadline_s: float) -> None:
        self._device, self._deadline_s = device, deadline_s

    def refusal(self) -> str:
        return str(self._device.call(CallDevice("refusal", part=COUNTERS), self._deadline_s))

    def count(self, program: Program, names: Sequence[str]) -> Counted:
        call = CallDevice("count", (program, tuple(names)), part=COUNTERS)
        counted: Counted = self._device.call(call, self._deadline_s)
        return counted

    def close(self) -> None:
        """The worker closes them with the device."""
