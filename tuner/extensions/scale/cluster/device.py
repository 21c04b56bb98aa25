"""A device on some host of a cluster: one slot at a time, another one when that is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.device.base import ComparisonRounds, DeviceInfo, Outcome, Program, RankedRounds
from tuner.extensions.scale.cluster.coordinator import MOST_LOSSES, Cluster, LostTooOftenError
from tuner.extensions.scale.cluster.files import kernel_bundle, retold
from tuner.extensions.scale.cluster.membership import Slot, Wanted
from tuner.extensions.scale.cluster.messages import CallDevice, Leave, OpenKernel
from tuner.model.errors import ClusterLost, DeviceError, DeviceLost, WorkerError
from tuner.model.kernel import KernelSpec
from tuner.model.trial import Status


class RemoteDevice:
    """Verify and time programs on one slot of a cluster; as `Device`, `CanRank`, `ComparesBits`.

    A call whose slot is lost is made again on another one of the same model, for which it waits.
    Where `wanted` names a slot, only that one will do, once it is back; it is waited for only where
    the run has no other: they take over what a `DeviceLost` tells them of. `say` is told which host
    works for whom. `wait_s` is how long to wait for the first one, otherwise as long.
    """

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
        rejoin_s = cluster.settings.patience.rejoin_s
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

    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        full_verification: bool = False,
    ) -> Outcome:
        """Verify and time; a program that is lost with every worker is blamed for it."""
        call = CallDevice(
            "run",
            (program,),
            {"incumbent_us": incumbent_us, "full_verification": full_verification},
        )
        return self._outcome(call)

    def verify(self, program: Program) -> Outcome:
        return self._outcome(CallDevice("verify", (program,)))

    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        compared: ComparisonRounds = self.call(
            CallDevice("compare", (tuple(programs),), {"rounds": rounds}),
            self._cluster.settings.patience.compare_s,
        )
        return compared

    def rank(self, programs: Sequence[Program], *, rounds: int) -> RankedRounds:
        times_us: RankedRounds = self.call(
            CallDevice("rank", (tuple(programs),), {"rounds": rounds}),
            self._cluster.settings.patience.compare_s,
        )
        return times_us

    def same_bits(self, program: Program, like: Program) -> Outcome:
        return self._outcome(CallDevice("same_bits", (program, like)))

    def close(self) -> None:
        """Give the slot back; its worker closes the device."""
        if not self._closed:
            self._closed = True
            self._cluster.release(self._slot, Leave())

    def _outcome(self, call: CallDevice) -> Outcome:
        try:
            outcome: Outcome = self.call(call, self._cluster.settings.patience.run_s)
        except LostTooOftenError as error:
            return Outcome(Status.LAUNCH, error.message)
        return outcome

    def call(self, call: CallDevice, deadline_s: float) -> Any:
        """Call the device, on another slot where this one is lost."""
        lost: list[str] = []
        while True:
            try:
                with self._bundle.errors_at_home():
                    answer = self._cluster.call(self._slot, call, deadline_s)
                return retold(answer, self._bundle.at_home)
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
        wait_s = 0.0 if others else self._cluster.settings.patience.rejoin_s
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

    def _taken(self, wait_s: float) -> tuple[Slot, DeviceInfo]:
        with self._bundle.errors_at_home():
            slot, info = self._cluster.take(self._wanted, self._kernel, self._bundle, wait_s=wait_s)
        return slot, replace(info, environment={**info.environment, "host": slot.info.host})
