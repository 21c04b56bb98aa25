"""A device on some host of a cluster: one slot at a time, another one when that is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.device.base import Counted, DeviceInfo, Outcome, Program, Watchers
from tuner.device.group import ForwardingDevice
from tuner.extensions.scale.cluster.coordinator import MOST_LOSSES, Cluster, LostTooOftenError
from tuner.extensions.scale.cluster.files import kernel_bundle
from tuner.extensions.scale.cluster.membership import MemberSlot, Wanted
from tuner.extensions.scale.cluster.messages import (
    COUNTERS,
    WATCHERS,
    CallDevice,
    Leave,
    OpenKernel,
    ToldWatchers,
)
from tuner.model.errors import ClusterLost, DeviceError, DeviceLost, WorkerError
from tuner.model.kernel import KernelSpec
from tuner.model.trial import Status

# What becomes of one program, and is soon known.
_OF_PROGRAMS = frozenset({"run", "verify", "bits"})


class RemoteDevice(ForwardingDevice):
    """Verify and time programs on one slot of a cluster.

    A call whose slot is lost is made again on another one of the same model, for which it waits.
    Where `wanted` names a slot, only that one will do, once it is back; it is waited for only where
    the run has no other: they take over what a `DeviceLost` tells them of. `say` is told which host
    works for whom. `wait_s` is how long to wait for the first one, otherwise as long.
    """

    capabilities = frozenset({"verify", "bits", "rank"})

    def __init__(
        self,
        cluster: Cluster,
        wanted: Wanted,
        spec: KernelSpec,
        operators: Mapping[str, str],
        say: Callable[[str], None],
        *,
        wait_s: float | None = None,
    ) -> None:
        moved, self._bundle = kernel_bundle(spec)
        self._cluster, self._wanted, self._say = cluster, wanted, say
        self._kernel = OpenKernel(moved, dict(operators), self._bundle.files)
        rejoin_s = cluster.settings.timeouts.rejoin_s
        self._slot, self.info = self._taken(rejoin_s if wait_s is None else wait_s)
        self._closed = False

    @property
    def name(self) -> str:
        """The slot that works for this device now, `node1/cuda:0`."""
        return self._slot.info.name

    @property
    def host(self) -> str:
        """The host that works for this device now."""
        return self._slot.info.host

    def forward(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Have the slot do it; a program that is lost with every worker is blamed for it."""
        call, timeouts = CallDevice(name, arguments, options), self._cluster.settings.timeouts
        if name not in _OF_PROGRAMS:
            return self.call(call, timeouts.compare_s + options.get("seconds", 0.0))
        try:
            return self.call(call, timeouts.run_s)
        except LostTooOftenError as error:
            return Outcome(Status.LAUNCH, error.message)

    def close(self) -> None:
        """Give the slot back; its worker closes the device."""
        if not self._closed:
            self._closed = True
            self._cluster.release(self._slot, Leave())

    def call_part(self, part: str, method: str, *arguments: Any) -> Any:
        """Call a watching tool, by its kind, or the counters."""
        call = CallDevice(method, arguments, part=part)
        return self.call(call, self._cluster.settings.timeouts.compare_s)

    def call(self, call: CallDevice, deadline_s: float) -> Any:
        """Call the device, on another slot where this one is lost."""
        lost: list[str] = []
        while True:
            try:
                return self._cluster.call(self._slot, call, deadline_s, self._bundle)
            except (DeviceLost, WorkerError) as error:
                lost.append(f"{self._slot.info.name}: {error.message}")
            if len(lost) == MOST_LOSSES:
                self._move(lost[-1])
                raise LostTooOftenError("lost", lost)
            self._move(lost[-1])

    def _move(self, why: str) -> None:
        """Go on with another slot, or with the same one once it is back."""
        before = self._slot
        self._cluster.release(before, Leave())
        others = self._wanted.name and self._cluster.taken
        wait_s = 0.0 if others else self._cluster.settings.timeouts.rejoin_s
        try:
            self._slot, info = self._taken(wait_s)
        except ClusterLost:
            self._closed = True
            raise
        except DeviceError as error:
            self._closed = True
            raise DeviceLost(f"{why}; {error.message}", remedy=error.remedy) from error
        if info.name != self.info.name:
            self.close()
            raise DeviceLost(f"{why}; {self._slot.info} is another device: {info.name}")
        self._say(f"the work of {before.info.name} goes on with {self._slot.info.name}")

    def _taken(self, wait_s: float) -> tuple[MemberSlot, DeviceInfo]:
        slot, info = self._cluster.take(self._wanted, self._kernel, self._bundle, wait_s=wait_s)
        return slot, replace(info, environment={**info.environment, "host": slot.info.host})


class RemoteGpu(RemoteDevice):
    """A GPU of a cluster; its tools run on the worker's host: where that has none, none is here."""

    capabilities = RemoteDevice.capabilities | {"machine_code", "sanitizer", "counters", "energy"}

    def watchers(self) -> Watchers:
        told_watchers: ToldWatchers = self.call_part(WATCHERS, "")
        tools = tuple(RemotePart(self, kind) for kind in told_watchers.kinds)
        return Watchers(tools, told_watchers.compile_options, told_watchers.largest_bytes)

    def counters(self) -> RemotePart:
        return RemotePart(self, COUNTERS)


class RemotePart:
    """A watching tool beside a GPU of the cluster, or its counters: a `Watcher` or `Counters`."""

    def __init__(self, device: RemoteGpu, kind: str) -> None:
        self._device, self.kind = device, kind

    def watch(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        outcomes: Sequence[Outcome] = self._device.call_part(self.kind, "watch", tuple(programs))
        return outcomes

    def refusal(self) -> str:
        return str(self._device.call_part(self.kind, "refusal"))

    def count(self, program: Program, names: Sequence[str]) -> Counted:
        counted: Counted = self._device.call_part(self.kind, "count", program, tuple(names))
        return counted

    def close(self) -> None:
        """The worker closes it with the device."""
