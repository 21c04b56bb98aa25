"""The coordinator's side of a cluster: its slots, and calls to them that may be lost."""

from __future__ import annotations

import asyncio
import pickle
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from random import sample
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.device.base import DeviceInfo
from tuner.extensions.scale.cluster.files import Bundle
from tuner.extensions.scale.cluster.membership import MemberSlot, Wanted, other_version
from tuner.extensions.scale.cluster.messages import (
    TOPIC,
    CallDevice,
    Compile,
    Keep,
    LacksFiles,
    Leave,
    OpenKernel,
    SlotInfo,
    StoreFiles,
    Work,
    pool_of,
    read_answer,
    read_members,
)
from tuner.extensions.scale.cluster.network import (
    allow_connections,
    make_connections,
    require_address,
    require_dask,
    require_scheduler,
    run_without_pickles,
    security_of,
)
from tuner.model.cluster import ClusterSettings
from tuner.model.errors import ClusterLost, DeviceError, DeviceLost, WorkerError

if TYPE_CHECKING:
    from distributed.security import Security

_T = TypeVar("_T")

# How often the scheduler is asked which workers live: a thousandth of its time for each of 200.
LOOK_S, LOOK_S_PER_WORKER = 1.0, 0.005
# Between two looks for a slot that is free.
TAKE_AGAIN_S = 1.0
# Among so many slots the least busy one is sought, wherever there are more.
ASKED_SLOTS = 16
# How often the scheduler is asked why a connection broke: it hears of a dead worker in a moment.
WHY_LOOKS = 2
CLOSING_S = 5.0
# What was lost with so many workers one after the other may be what ended them.
MOST_LOSSES = 3
NO_WAY = "the scheduler has to reach its workers: docs/clusters.md, The network"
STRANGE = "end that worker, and give the cluster a new certificate if it is not yours"
SAME_VERSION = "install the same version of tune, and of nvidia-cuda-nvrtc, on all hosts"
NO_SLOT = "`tune worker ADDRESS` on a host adds its GPUs, and --device host its CPU"


class SlotLostError(DeviceLost):
    """Report that a slot gave no answer: its work may be done by another."""


class LeftOutError(DeviceError):
    """Report workers that are not asked, and why; the cluster itself warns of them, once."""


class LostTooOftenError(DeviceError):
    """Report work that no worker survived."""

    def __init__(self, what: str, lost: Sequence[str]) -> None:
        workers = f"{len(lost)} workers, one after the other"
        super().__init__(f"{what} with {workers}: {'; '.join(lost)}")


class Cluster:
    """Ask the workers of a Dask scheduler; close it when done.

    Calls may come from any thread. One that is lost raises `SlotLostError`, and what it was doing
    counts for nothing: a late answer is ignored. Without the scheduler every call raises
    `ClusterLost`. `say` is told what a user should know of workers that are left out or lost.
    Raises `InputError` and `DeviceError` where the cluster cannot be used.
    """

    def __init__(self, settings: ClusterSettings, say: Callable[[str], None]) -> None:
        require_dask()
        self.settings, self._say = settings, say
        self.address = require_address(settings.address)
        security = security_of(settings.tls, "client")
        require_scheduler(self.address, security, "client", settings.timeouts.connect_s)
        self._holder = secrets.token_hex(16)
        self._slots: dict[str, MemberSlot] = {}
        # Why a worker of this name is not asked, and what to do.
        self._left_out: dict[str, tuple[str, str]] = {}
        self._told: set[str] = set()
        self._used = False
        self._keeping: set[asyncio.Future[None]] = set()
        self._taken: dict[str, MemberSlot] = {}
        self._down: ClusterLost | None = None
        self._looked_s, self._looking = 0.0, asyncio.Lock()
        allow_connections()
        began: Future[None] = Future()
        self._thread = Thread(
            target=lambda: run_without_pickles(self._live(security, began)),
            name="tune-cluster",
            daemon=True,
        )
        self._thread.start()
        began.result()
        try:
            self._run(self._look())
        except BaseException:
            self.close()
            raise
        self._watching = self.start(self._watch())

    async def _live(self, security: Security, began: Future[None]) -> None:
        """Let calls be made until `close`."""
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        connect_s = self.settings.timeouts.connect_s
        async with make_connections(security, "client", connect_s) as self._pool:
            began.set_result(None)
            await self._ends.wait()

    def close(self) -> None:
        """End the connections; what is under way is given up."""
        with suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(CLOSING_S)

    def start(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine in the cluster's loop and return at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def take(
        self, wanted: Wanted, kernel: OpenKernel, bundle: Bundle, *, wait_s: float
    ) -> tuple[MemberSlot, DeviceInfo]:
        """Hold a free slot and open a kernel there; wait so long for one.

        Raises `DeviceLost` where there is none in time, `DeviceError` for one that cannot open it.
        """
        return self._run(self._take(wanted, kernel, bundle, wait_s))

    def fitting(self, wanted: Wanted, *, wait_s: float) -> list[SlotInfo]:
        """List the slots that a run may use, held or free; wait `wait_s` seconds for the first."""
        return self._run(self._fitting(wanted, wait_s))

    def call(self, slot: MemberSlot, work: CallDevice, deadline_s: float, bundle: Bundle) -> Any:
        """Call the device of a slot that was taken; raise what it raises, or `SlotLostError`."""
        return self._run(self.ask(slot, work, deadline_s, bundle))

    def release(self, slot: MemberSlot, work: Work | None) -> None:
        """Give a slot back, with a last word for it if it lives."""
        self._taken.pop(slot.info.slot, None)
        if work is not None and not slot.gone.done():
            # Nobody waits for what comes of it: a run may be complete, and its scheduler gone.
            with suppress(DeviceError, WorkerError, TimeoutError):
                self.start(self.ask(slot, work, CLOSING_S)).result(2 * CLOSING_S)

    @property
    def taken(self) -> int:
        """How many slots this run holds."""
        return len(self._taken)

    def left_out(self) -> LeftOutError | None:
        """Say what is wrong with the workers that are not asked; None where all are."""

        async def said() -> LeftOutError | None:
            return self._refusal()

        return self._run(said())

    async def ask(
        self, slot: MemberSlot, work: Work, deadline_s: float, bundle: Bundle | None = None
    ) -> Any:
        """Send work to a slot, with the files that it lacks, and wait for what comes of it.

        What is said of the files of `bundle` is said of those of this machine.
        """
        value = await self._ask_slot(slot, work, deadline_s, bundle)
        if bundle is not None and isinstance(value, LacksFiles):
            if not bundle.places.keys() >= {*value.digests}:
                raise self._refuse(slot, "asks for files that are no part of its work", STRANGE)
            contents = StoreFiles(bundle.contents(value.digests))
            await self._ask_slot(slot, contents, self.settings.timeouts.file_s)
            value = await self._ask_slot(slot, work, deadline_s, bundle)
        if isinstance(value, LacksFiles):
            raise SlotLostError(f"{slot.info} does not keep the files that it is sent")
        return value

    async def compiling_slot(self, *, on_cpu: bool) -> MemberSlot:
        """Choose who compiles next: the one with the least to do; wait where there is none.

        Raises `DeviceLost` where none comes.
        """
        ends_s = time.monotonic() + self.settings.timeouts.rejoin_s
        while time.monotonic() < ends_s:
            if self._down is not None:
                raise self._down
            slots = list(self._slots.values())
            for some in (sample(slots, min(len(slots), ASKED_SLOTS)), slots):
                if able := [slot for slot in some if slot.compiles(on_cpu=on_cpu)]:
                    return min(able, key=lambda slot: slot.under_way / slot.info.compilers)
            await asyncio.sleep(TAKE_AGAIN_S)
        raise DeviceLost("no worker of the cluster is left that can compile", remedy=NO_SLOT)

    async def _ask_slot(
        self, slot: MemberSlot, work: Work, deadline_s: float, bundle: Bundle | None = None
    ) -> Any:
        holds = isinstance(work, CallDevice | OpenKernel)
        slot.under_way += 1
        slot.working += holds
        try:
            answer = await self._send(slot, work, deadline_s)
        finally:
            slot.under_way -= 1
            slot.working -= holds
        slot.has_answered = True
        if holds:
            slot.kept_s = time.monotonic()
        try:
            return read_answer(work, bundle.at_home(answer) if bundle else answer)
        except ValueError as error:
            raise self._refuse(slot, "gave no answer that can be read", STRANGE) from error

    def _refuse(self, slot: MemberSlot, why: str, remedy: str) -> SlotLostError:
        """Leave a worker out that lives: others go on without it."""
        slot.refused = (f"{slot.info} {why}", remedy)
        self._lose(slot, why, silent=True)
        self._left_out[slot.info.name] = slot.refused
        if self._used:
            self._tell_of_left_out()
        return SlotLostError(slot.refused[0])

    async def _send(self, slot: MemberSlot, work: Work, deadline_s: float) -> str:
        if self._down is not None:
            raise self._down
        if slot.gone.done():
            raise SlotLostError(f"{slot.info} {slot.gone.result()}")
        result = asyncio.ensure_future(self._request_answer(slot, work))
        try:
            ends: set[asyncio.Future[Any]] = {result, slot.gone}
            await asyncio.wait(ends, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                if not result.cancelled() and result.exception() is None:
                    return result.result()
                await self._look_why(slot)
            raise self._why(slot, work, result, deadline_s)
        finally:
            result.cancel()

    async def _request_answer(self, slot: MemberSlot, work: Work) -> str:
        """Send work straight to its worker, or by the scheduler where that cannot be."""
        from distributed.core import send_recv

        message = {
            "op": TOPIC,
            "pool": pool_of(work),
            "holder": self._holder,
            "work": pickle.dumps(work),
        }
        if not slot.relayed:
            try:
                comm = await self._pool.connect(slot.address)
            except (OSError, TimeoutError):
                slot.relayed = True
        if slot.relayed:
            said = await self._pool(self.address).proxy(worker=slot.address, msg=message)
        else:
            try:
                said = await send_recv(comm, **message)
            except BaseException:
                comm.abort()  # whose answer comes next is not known
                raise
            finally:
                self._pool.reuse(slot.address, comm)
        if not isinstance(said, str):
            raise ValueError("what came back is no answer")
        return said

    async def _look_why(self, slot: MemberSlot) -> None:
        """Give the scheduler a moment to learn of a lost worker what its connection tells at once.

        The scheduler itself may be what is gone: then so are all workers.
        """
        with suppress(ClusterLost):
            for _ in range(WHY_LOOKS):
                await self._look_since(time.monotonic())
                await asyncio.wait([slot.gone], timeout=LOOK_S)
                if slot.gone.done():
                    return

    def _why(
        self, slot: MemberSlot, work: Work, result: asyncio.Future[str], deadline_s: float
    ) -> DeviceError:
        """Say why there is no answer: whom it was lost with."""
        if self._down is not None:
            return self._down
        if slot.gone.done():
            return SlotLostError(f"{slot.info} {slot.gone.result()}")
        if result.done():
            failure = "cancelled" if result.cancelled() else result.exception()
            if slot.relayed and not slot.has_answered:
                why = f"is reached neither from here nor by the scheduler: {failure}"
                return self._refuse(slot, why, NO_WAY)
            self._lose(slot, f"gave no answer: {failure}")
        elif isinstance(work, Keep | Leave):
            return SlotLostError(f"{slot.info} is late")  # it may come yet, and nothing is lost
        elif isinstance(work, Compile | OpenKernel):
            # Behind what others have it do, most likely: somebody else may be sooner.
            return SlotLostError(f"{slot.info} did not come to it within {deadline_s:g} s")
        else:
            # Its process is at work on this still, and would not come to anything else.
            slot.hangs = True
            self._lose(slot, f"gave no answer within {deadline_s:g} s")
        return SlotLostError(f"{slot.info} {slot.gone.result()}")

    def _lost_scheduler(self) -> ClusterLost:
        if self._down is None:
            self._down = ClusterLost(
                f"the Dask scheduler at {self.address} is gone or cannot be reached",
                remedy="`dask scheduler` starts it again; workers come back by themselves",
            )
            for slot in self._slots.values():
                self._lose(slot, "is gone with its scheduler", silent=True)
        return self._down

    def _lose(self, slot: MemberSlot, why: str, *, silent: bool = False) -> None:
        if slot.gone.done():
            return
        slot.gone.set_result(why)
        self._pool.remove(slot.address)
        if slot.info.slot in self._taken and not silent:
            self._say(f"{slot.info} {why}")

    async def _fitting(self, wanted: Wanted, wait_s: float) -> list[SlotInfo]:
        ends_s = time.monotonic() + wait_s
        told = False
        while True:
            await self._look()
            infos = [slot.info for slot in wanted.among(self._living())]
            if infos or self._left_out or time.monotonic() > ends_s:
                return infos
            if not told:
                self._say_what_is_waited_for(wanted, wait_s)
                told = True
            await asyncio.sleep(TAKE_AGAIN_S)

    async def _take(
        self, wanted: Wanted, kernel: OpenKernel, bundle: Bundle, wait_s: float
    ) -> tuple[MemberSlot, DeviceInfo]:
        ends_s, refused = time.monotonic() + wait_s, set[MemberSlot]()
        failure: DeviceError | None = None
        told = False
        while True:
            fitting = wanted.among(self._living())
            if not fitting or time.monotonic() - self._looked_s > LOOK_S:
                await self._look_since(time.monotonic())
                fitting = wanted.among(self._living())
            for slot in fitting:
                if slot.info.slot in self._taken or slot in refused:
                    continue
                try:
                    said = await self._open_on(slot, kernel, bundle)
                except ClusterLost:
                    raise
                except DeviceLost:
                    continue  # it may come back
                except (DeviceError, WorkerError) as error:
                    failure = DeviceError(f"{slot.info}: {error.message}", remedy=error.remedy)
                    refused.add(slot)
                    continue
                if said is not None:
                    self._used = True
                    self._tell_of_left_out()
                    return slot, said
            fitting = wanted.among(self._living())  # less those that were just refused or lost
            if failure is not None and fitting and refused.issuperset(fitting):
                raise failure
            late = time.monotonic() > ends_s
            left_out = self._refusal(wanted.name)
            if left_out and not fitting and ((late and wanted.name) or not self._used):
                raise left_out
            if late:
                raise DeviceLost(wanted.refusal(self._living()), remedy=NO_SLOT)
            if not told:
                self._say_what_is_waited_for(wanted, wait_s)
                told = True
            await asyncio.sleep(TAKE_AGAIN_S)

    def _say_what_is_waited_for(self, wanted: Wanted, wait_s: float) -> None:
        why = wanted.refusal(self._living())
        self._say(f"{why}; waiting up to {wait_s:g} s for one")

    def _refusal(self, name: str = "") -> LeftOutError | None:
        """Say why the worker of this name is left out, or all that are."""
        found = [why for one, why in self._left_out.items() if name in ("", one)]
        if not found:
            return None
        reasons, remedies = zip(*found, strict=True)
        return LeftOutError("; ".join(reasons), remedy="; ".join(dict.fromkeys(remedies)))

    async def _open_on(
        self, slot: MemberSlot, kernel: OpenKernel, bundle: Bundle
    ) -> DeviceInfo | None:
        """Hold a slot and open a kernel there; None where another run holds it."""
        self._taken[slot.info.slot] = slot
        said: DeviceInfo | None = None
        try:
            said = await self.ask(slot, kernel, self.settings.timeouts.open_s, bundle)
        finally:
            if said is None:
                self._taken.pop(slot.info.slot, None)
        return said

    def _living(self) -> list[MemberSlot]:
        slots = (slot for slot in self._slots.values() if not slot.gone.done())
        return sorted(slots, key=lambda slot: slot.info.name)

    def _tell_of_left_out(self) -> None:
        for name, (why, _) in self._left_out.items():
            if name not in self._told:
                self._told.add(name)
                self._say(f"Warning: {why}")

    async def _look_since(self, moment_s: float) -> None:
        """Look, unless another call did so since; many slots may be lost at once."""
        async with self._looking:
            if self._looked_s < moment_s:
                await self._look()

    async def _look(self) -> None:
        """Ask the scheduler which workers live, and when it heard of each."""
        if self._down is not None:
            raise self._down
        try:
            asked = self._pool(self.address).identity(n_workers=-1)
            said = await asyncio.wait_for(asked, self.settings.timeouts.silent_s)
            members = read_members(said)
        # What is no message of Dask's ends in errors of many kinds.
        except Exception as error:
            raise self._lost_scheduler() from error
        self._looked_s = time.monotonic()
        alive = set()
        self._left_out = {}
        for address, info, last_seen in members:
            alive.add(info.slot)
            self._note_worker(info, address, last_seen)
        for name in self._slots.keys() - alive:
            self._lose(self._slots.pop(name), "has left the cluster")

    def _note_worker(self, info: SlotInfo, address: str, last_seen: float) -> None:
        slot = self._slots.get(info.slot)
        if slot is not None and slot.refused:
            self._left_out[info.name] = slot.refused
            return
        if slot is not None and slot.hangs:
            return
        if slot is None or slot.gone.done():
            if wrong := other_version(info):
                self._left_out[info.name] = (wrong, SAME_VERSION)
                return
            if slot is not None and slot.last_seen == last_seen:
                return  # as silent as when it was lost
            slot = MemberSlot(info, address, self._loop.create_future())
            self._slots[info.slot] = slot
        now_s = time.monotonic()
        if last_seen != slot.last_seen:
            slot.last_seen, slot.heard_s = last_seen, now_s
        elif now_s - slot.heard_s > self.settings.timeouts.silent_s:
            self._lose(slot, f"was silent for {self.settings.timeouts.silent_s:g} s")

    async def _watch(self) -> None:
        """Find out who is lost, and hold what this run has taken."""
        with suppress(ClusterLost):
            while True:
                await asyncio.sleep(max(LOOK_S, LOOK_S_PER_WORKER * len(self._slots)))
                await self._look()
                now_s = time.monotonic()
                # Other threads take slots and give them back meanwhile.
                for slot in list(self._taken.values()):
                    # A call holds the slot while it lasts, and then as long as a `Keep`.
                    if not slot.working and now_s - slot.kept_s > self.settings.timeouts.keep_s:
                        slot.kept_s = now_s
                        self._keeping.add(task := asyncio.ensure_future(self._keep(slot)))
                        task.add_done_callback(self._keeping.discard)

    async def _keep(self, slot: MemberSlot) -> None:
        with suppress(DeviceError, WorkerError):  # the next call tells
            await self.ask(slot, Keep(), self.settings.timeouts.silent_s)

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return self.start(coroutine).result()
