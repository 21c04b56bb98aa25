"""The workers of a cluster as a coordinator knows them, and which of them a run may use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.extensions.scale.cluster.messages import SlotInfo, code_version, cuda_version
from tuner.model.errors import InputError


@dataclass(eq=False, slots=True)
class MemberSlot:
    """A slot of the cluster as the scheduler last told of it; `gone` is set once it is lost.

    `relayed` is set where its host takes no connection from here. `refused` says why it is not
    asked again though it lives, and what to do. `under_way` counts all calls, `working` those that
    hold the slot while they last.
    """

    info: SlotInfo
    address: str
    gone: asyncio.Future[str]
    relayed: bool = False
    has_answered: bool = False
    last_seen: float = 0.0
    heard_s: float = field(default_factory=time.monotonic)
    under_way: int = 0
    working: int = 0
    kept_s: float = 0.0
    hangs: bool = False
    refused: tuple[str, str] | None = None

    def compiles(self, *, on_cpu: bool) -> bool:
        """Say whether it can compile; on a CPU's host, also for that CPU."""
        return not self.gone.done() and (self.info.on_cpu or not on_cpu)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The slots that a run may use: the CPU, GPUs of one model, or one by name."""

    on_cpu: bool
    model: str = ""
    name: str = ""

    def among(self, slots: Sequence[MemberSlot]) -> list[MemberSlot]:
        """Choose; raise `InputError` where GPUs of several models would be used."""
        member_slots = [slot for slot in slots if self._fits(slot.info)]
        models = sorted({slot.info.model for slot in member_slots})
        if len(models) > 1:
            raise InputError(
                f"the cluster has GPUs of {len(models)} models: {', '.join(models)}",
                remedy=f"choose one with --gpu-model, such as --gpu-model '{models[0]}'",
            )
        return member_slots

    def refusal(self, slots: Sequence[MemberSlot]) -> str:
        """Say why there is no slot, and what there is."""
        what = "CPU" if self.on_cpu else f"GPU {self.model!r}" if self.model else "GPU"
        what = self.name or what
        fitting = [slot for slot in slots if self._fits(slot.info)]
        if fitting:
            names = ", ".join(slot.info.name for slot in fitting)
            return f"every {what} of the cluster is held by another run: {names}"
        models = ", ".join(sorted({slot.info.model for slot in slots})) or "no worker at all"
        return f"the cluster has no {what} to measure on; it has {models}"

    def _fits(self, info: SlotInfo) -> bool:
        if self.name not in ("", info.name) or info.on_cpu != self.on_cpu:
            return False
        return self.model.casefold() in info.model.casefold()


def other_version(info: SlotInfo) -> str:
    """Say what of a worker's versions is not ours, "" where all of it is."""
    if info.version != code_version():
        return f"{info.name} has tune {info.version}, and this is {code_version()}"
    if info.cuda != cuda_version():
        return f"{info.name} compiles with NVRTC {info.cuda}, and here it is {cuda_version()}"
    return ""
