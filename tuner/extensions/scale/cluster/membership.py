"""The workers of a cluster as a coordinator knows them, and which of them a run may use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tuner.extensions.scale.cluster.messages import (
    TOPIC,
    Pool,
    SlotInfo,
    code_version,
    cuda_version,
)
from tuner.model.errors import InputError

if TYPE_CHECKING:
    from distributed.comm import Comm


class UnreachableError(Exception):
    """Report a worker that takes no connection from here: nothing was sent to it."""


class Connections:
    """Connections to one worker; each carries one call at a time.

    Used in one event loop. `arguments` are what Dask's `connect` needs for TLS.
    """

    def __init__(self, address: str, arguments: Mapping[str, Any], timeout_s: float) -> None:
        self._address, self._arguments, self._timeout_s = address, arguments, timeout_s
        self._idle: list[Comm] = []
        self._closed = False

    async def call(self, pool: Pool, sealed: bytes) -> bytes:
        """Send a sealed request for one of the worker's pools, and wait for the sealed answer.

        Raises `UnreachableError` where nothing was sent, `OSError` where no answer came of it.
        """
        comm = await self._connect()
        try:
            await comm.write({"op": TOPIC, "pool": pool, "sealed": sealed})
            said = await comm.read()
            if not isinstance(said, bytes):
                raise OSError("what came back is no answer")
        except BaseException:
            comm.abort()  # whose answer comes next is not known
            raise
        if self._closed:
            comm.abort()
        else:
            self._idle.append(comm)
        return said

    def close(self) -> None:
        """End what is idle now, and what is in use as soon as it is not."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    async def _connect(self) -> Comm:
        from distributed.comm import connect

        while self._idle:
            if not (comm := self._idle.pop()).closed():
                return comm
        try:
            return await connect(self._address, timeout=self._timeout_s, **self._arguments)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"{self._address}: {error}") from error


@dataclass(eq=False, slots=True)
class MemberSlot:
    """A slot of the cluster as the scheduler last told of it; `gone` is set once it is lost.

    `relayed` is set where its host takes no connection from here, `refused` says why it is not
    asked again though it lives. `under_way` counts all calls, `working` those that hold the slot
    while they last.
    """

    info: SlotInfo
    address: str
    connections: Connections
    gone: asyncio.Future[str]
    relayed: bool = False
    last_seen: float = 0.0
    heard_s: float = field(default_factory=time.monotonic)
    under_way: int = 0
    working: int = 0
    kept_s: float = 0.0
    hangs: bool = False
    refused: str = ""

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
        found = [slot for slot in slots if self._fits(slot.info)]
        models = sorted({slot.info.model for slot in found})
        if len(models) > 1:
            raise InputError(
                f"the cluster has GPUs of {len(models)} models: {', '.join(models)}",
                remedy=f"choose one with --gpu-model, such as --gpu-model '{models[0]}'",
            )
        return found

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
