"""The coordinator's side of a cluster: its slots, and calls to them that may be lost."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from random import sample
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.device.base import DeviceInfo
from tuner.extensions.scale.cluster.files import Bundle
from tuner.extensions.scale.cluster.membership import (
    Connections,
    MemberSlot,
    UnreachableError,
    Wanted,
    other_version,
)
from tuner.extensions.scale.cluster.messages import (
    COMPILE_RESOURCE,
    TOPIC,
    CallDevice,
    Compile,
    Held,
    Keep,
    LacksFiles,
    Leave,
    OpenKernel,
    SlotInfo,
    StoreFiles,
    Work,
    WorkAnswer,
    WorkRequest,
    pool_of,
    read_info,
)
from tuner.extensions.scale.cluster.network import (
    allow_connections,
    refused_connection,
    require_address,
    require_dask,
    require_scheduler,
    security_of,
)
from tuner.extensions.scale.cluster.signing import SHARE_ONE, ForgedError, MessageSigner, read_token
from tuner.extensions.scale.cluster.task import answer
from tuner.model.cluster import ClusterSettings
from tuner.model.errors import ClusterLost, DeviceError, DeviceLost, WorkerError

if TYPE_CHECKING:
    from distributed import Client

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
        self._signer = MessageSigner(read_token(settings.token_file))
        security = security_of(settings.tls, "client")
        self._tls = security.get_connection_args("client")
        timeouts = settings.timeouts
        require_scheduler(self.address, security, "client", timeouts.connect_s)
        self._holder, self._number = secrets.token_hex(16), 0
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
        from distributed import Client

        with refused_connection(self.address):
            self._client: Client = Client(
                self.address, security=security, timeout=timeouts.connect_s, set_as_default=False
            )
        self._loop: asyncio.AbstractEventLoop = self._client.loop.asyncio_loop
        try:
            self._run(self._look())
        except BaseException:
            self._client.close(timeout=CLOSING_S)
            raise
        self._watching = asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def close(self) -> None:
        """End the connection; what is under way is given up."""
        self._watching.cancel()
        with suppress(Exception):  # Dask's own trouble while it closes is nobody's any more
            self.start(self._hang_up()).result(CLOSING_S)
            self._client.close(timeout=CLOSING_S)

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

    def call(self, slot: MemberSlot, work: CallDevice, deadline_s: float) -> Any:
        """Call the device of a slot that was taken; raise what it raises, or `SlotLostError`."""
        return self._run(self.ask(slot, work, deadline_s))

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
        """Send work to a slot, with the files that it lacks, and wait for what comes of it."""
        value = await self._ask_slot(slot, work, deadline_s)
        if isinstance(value, LacksFiles):
            assert bundle is not None
            contents = StoreFiles(bundle.contents(value.digests))
            await self._ask_slot(slot, contents, self.settings.timeouts.file_s)
            value = await self._ask_slot(slot, work, deadline_s)
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
                if able := [one for one in some if one.compiles(on_cpu=on_cpu)]:
                    return min(able, key=lambda one: one.under_way / one.info.compilers)
            await asyncio.sleep(TAKE_AGAIN_S)
        raise DeviceLost("no worker of the cluster is left that can compile", remedy=NO_SLOT)

    async def _ask_slot(self, slot: MemberSlot, work: Work, deadline_s: float) -> Any:
        self._number += 1
        request = WorkRequest(slot.info.slot, self._holder, self._number, work)
        holds = isinstance(work, CallDevice | OpenKernel)
        slot.under_way += 1
        slot.working += holds
        try:
            sealed = await self._send(slot, request, deadline_s)
        finally:
            slot.under_way -= 1
            slot.working -= holds
        if holds:
            slot.kept_s = time.monotonic()
        try:
            said: WorkAnswer = self._signer.open("answer", sealed)
        except ForgedError as error:
            # A host with another token: others go on without it.
            slot.refused = f"{slot.info}: {error.message}"
            self._lose(slot, slot.refused, silent=True)
            self._left_out[slot.info.name] = (slot.refused, SHARE_ONE)
            if self._used:
                self._tell_of_left_out()
            raise SlotLostError(slot.refused) from error
        asked = (request.slot, request.holder, request.number)
        if (said.slot, said.holder, said.number) not in (asked, (request.slot, "", 0)):
            raise SlotLostError(f"{slot.info} answered another question")
        if said.raised is not None:
            raise said.raised
        return said.value

    async def _send(self, slot: MemberSlot, request: WorkRequest, deadline_s: float) -> bytes:
        if self._down is not None:
            raise self._down
        if slot.gone.done():
            raise SlotLostError(f"{slot.info} {slot.gone.result()}")
        result = asyncio.ensure_future(self._request_answer(slot, request))
        try:
            ends: set[asyncio.Future[Any]] = {result, slot.gone}
            await asyncio.wait(ends, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                if not result.cancelled() and result.exception() is None:
                    return result.result()
                await self._look_why(slot)
            raise self._why(slot, request.work, result, deadline_s)
        finally:
            result.cancel()

    async def _request_answer(self, slot: MemberSlot, request: WorkRequest) -> bytes:
        """Send a request straight to its worker, or by the scheduler where that cannot be."""
        sealed = self._signer.close("request", request)
        if not slot.relayed:
            try:
                return await slot.connections.call(pool_of(request.work), sealed)
            except UnreachableError:
                slot.relayed = True
        return await self._relay(slot, request, sealed)

    async def _relay(self, slot: MemberSlot, request: WorkRequest, sealed: bytes) -> bytes:
        """Have the scheduler pass a request on, as a task that this worker alone can run.

        It costs the scheduler several times what a connection costs us.
        """
        named = {"device": slot.info.model, "compile": COMPILE_RESOURCE}.get(pool_of(request.work))
        future = self._client.submit(
            answer,
            sealed,
            key=f"tune-{self._holder}-{request.number}",
            pure=False,
            # Dask would send it again where its worker is lost. Nobody else can answer it, and the
            # worker itself takes it once.
            retries=0,
            workers=[slot.address],
            allow_other_workers=False,
            resources={named: 1} if named else {},
        )
        try:
            said: bytes = await future
        finally:
            # Without a future that waits for it the scheduler drops the task.
            future.release()
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
        self, slot: MemberSlot, work: Work, result: asyncio.Future[bytes], deadline_s: float
    ) -> DeviceError:
        """Say why there is no answer: whom it was lost with."""
        if self._down is not None or self._client.status != "running":
            return self._lost_scheduler()
        if slot.gone.done():
            return SlotLostError(f"{slot.info} {slot.gone.result()}")
        if result.done():
            failure = "cancelled" if result.cancelled() else result.exception()
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
        slot.connections.close()
        if slot.info.slot in self._taken and not silent:
            self._say(f"{slot.info} {why}")

    async def _fitting(self, wanted: Wanted, wait_s: float) -> list[SlotInfo]:
        ends_s = time.monotonic() + wait_s
        told = False
        while True:
            await self._look()
            found = [slot.info for slot in wanted.among(self._living())]
            if found or self._left_out or time.monotonic() > ends_s:
                return found
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
        said: DeviceInfo | Held | None = None
        try:
            said = await self.ask(slot, kernel, self.settings.timeouts.open_s, bundle)
        finally:
            if not isinstance(said, DeviceInfo):
                self._taken.pop(slot.info.slot, None)
        return None if isinstance(said, Held) else said

    def _living(self) -> list[MemberSlot]:
        found = (slot for slot in self._slots.values() if not slot.gone.done())
        return sorted(found, key=lambda slot: slot.info.name)

    def _tell_of_left_out(self) -> None:
        for name, (why, _) in self._left_out.items():
            if name not in self._told:
                self._told.add(name)
                self._say(f"Warning: {why}")

    async def _hang_up(self) -> None:
        for slot in self._slots.values():
            slot.connections.close()

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
            asked = self._client.scheduler.identity(n_workers=-1)
            told = await asyncio.wait_for(asked, self.settings.timeouts.silent_s)
        # The last two are what a client of Dask raises that has given up, and closed itself.
        except (OSError, TimeoutError, AttributeError, RuntimeError) as error:
            raise self._lost_scheduler() from error
        if self._client.status != "running":
            raise self._lost_scheduler()
        self._looked_s = time.monotonic()
        alive = set()
        self._left_out = {}
        for address, worker in told["workers"].items():
            if (info := read_info(worker.get(TOPIC))) is not None:
                alive.add(info.slot)
                self._note_worker(info, address, float(worker["last_seen"]))
        for name in self._slots.keys() - alive:
            self._lose(self._slots.pop(name), "has left the cluster")

    def _note_worker(self, info: SlotInfo, address: str, last_seen: float) -> None:
        known = self._slots.get(info.slot)
        if known is not None and known.refused:
            self._left_out[info.name] = (known.refused, SHARE_ONE)
            return
        if known is not None and known.hangs:
            return
        if known is None or known.gone.done():
            if wrong := other_version(info):
                self._left_out[info.name] = (wrong, SAME_VERSION)
                return
            if known is not None and known.last_seen == last_seen:
                return  # as silent as when it was lost
            connections = Connections(address, self._tls, self.settings.timeouts.connect_s)
            known = MemberSlot(info, address, connections, self._loop.create_future())
            self._slots[info.slot] = known
        now_s = time.monotonic()
        if last_seen != known.last_seen:
            known.last_seen, known.heard_s = last_seen, now_s
        elif now_s - known.heard_s > self.settings.timeouts.silent_s:
            self._lose(known, f"was silent for {self.settings.timeouts.silent_s:g} s")

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
