"""The process of one GPU on a host: a Dask worker that runs the work of one coordinator."""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.compiler.base import Compiler, CompileResult
from tuner.device.base import Counters, Device, Watcher
from tuner.device.select import open_compiler, open_device
from tuner.extensions.scale.cluster.files import (
    FileStore,
    names_at_home,
    place_spec,
)
from tuner.extensions.scale.cluster.messages import (
    COUNTERS,
    TOPIC,
    WATCHERS,
    CallDevice,
    Compile,
    Keep,
    Leave,
    NameCompiler,
    OpenKernel,
    Pool,
    SlotInfo,
    StoreFiles,
    ToldWatchers,
    Work,
    code_version,
    cuda_version,
    write_error,
    write_value,
)
from tuner.extensions.scale.cluster.network import (
    LOOPBACK,
    refused_connection,
    require_dask,
    security_of,
)
from tuner.model.cluster import TlsFiles
from tuner.model.errors import TunerError, WorkerError
from tuner.model.hardware import is_amd
from tuner.process.child import connect_to_parent
from tuner.process.protocol import receive, send

if TYPE_CHECKING:
    from distributed import Worker

logger = logging.getLogger("tuner.extensions.scale.cluster")

# A worker that finds no scheduler in so long tells `tune worker`, which tries again.
JOIN_S = 20.0
# Opening a kernel takes long, and who asks for a slot that is held shall not wait for it.
OTHERS = 4


@dataclass(frozen=True, slots=True)
class SlotOptions:
    """What `tune worker` starts a slot's process with; `files` holds what runs need."""

    address: str
    info: SlotInfo
    tls: TlsFiles | None
    scratch: Path
    files: Path
    lease_s: float


class WorkerSlot:
    """Open kernels, run their programs and compile, for one run at a time.

    A run holds the slot from `OpenKernel` on, until it leaves or is silent for `lease_s`.
    """

    def __init__(
        self,
        info: SlotInfo,
        files: FileStore,
        lease_s: float,
        *,
        opened: Callable[..., Device] = open_device,
    ) -> None:
        self._info, self._files, self._lease_s = info, files, lease_s
        self._opened = opened
        self._lock = threading.Lock()
        self._holder, self._ends_s = "", 0.0
        self._working = False
        self._device: Device | None = None
        self._folder: Path | None = None
        self._parts = ExitStack()
        self._tools: _Tools | None = None
        self._compilers: dict[tuple[bool, str], Compiler] = {}

    def answer(self, holder: str, pickled: bytes) -> str:
        """Do a piece of work for a run, and write what came of it."""
        try:
            # Whoever can connect may run code here: a kernel and its reference are code.
            answer = write_value(self._do(holder, pickle.loads(pickled)))  # noqa: S301
        except (TunerError, MemoryError) as error:
            answer = write_error(error)
        except Exception:  # noqa: BLE001 - the traceback must reach the coordinator, whatever it is
            answer = write_error(WorkerError(f"on {self._info.host}:\n{traceback.format_exc()}"))
        return answer if self._folder is None else names_at_home(answer, self._folder)

    def close(self) -> None:
        """Close device and compilers."""
        self._close_device()
        for compiler in self._compilers.values():
            compiler.close()

    def _do(self, holder: str, work: Work) -> Any:
        if isinstance(work, StoreFiles):
            return self._files.put(work.contents)
        if isinstance(work, NameCompiler):
            return self._compiler(work.on_cpu).version
        if isinstance(work, Compile):
            return self._compile(work)
        if isinstance(work, Keep):
            with self._lock:
                if held := holder == self._holder:
                    self._ends_s = time.monotonic() + self._lease_s
                return held
        if isinstance(work, Leave):
            return self._leave(holder)
        if isinstance(work, OpenKernel):
            if lacking := self._files.lacking(work.files):
                return lacking
            if not self._take(holder):
                return None
            with self._at_work():
                try:
                    self._close_device()
                    self._folder = self._files.folder(work.files)
                    spec = place_spec(work.spec, self._folder)
                    logger.warning("%s: opens %s", self._info.name, spec.name)
                    self._device = self._opened(self._info.device, spec, work.operators)
                    return self._device.info
                except BaseException:
                    self._leave(holder)
                    raise
        if holder != self._holder or self._device is None:
            raise WorkerError(f"{self._info.name} is no longer held by this run")
        with self._at_work():
            if work.part:
                return self._of_part(self._device, work)
            return getattr(self._device, work.method)(*work.arguments, **work.options)

    def _of_part(self, device: Device, work: CallDevice) -> Any:
        """Call one of the tools that belong to the device; they are opened when first asked for."""
        if self._tools is None:
            self._tools = _Tools(device)
            self._parts.callback(self._tools.close)
        if work.part == WATCHERS:
            return self._tools.told
        return getattr(self._tools.parts[work.part], work.method)(*work.arguments)

    def _compile(self, work: Compile) -> Any:
        if lacking := self._files.lacking(work.files):
            return lacking
        request = work.request
        folder = self._files.folder(work.files, *request.include_dirs)
        include_dirs = tuple(str(folder / name) for name in request.include_dirs)
        compiler = self._compiler(work.on_cpu, request.architecture)
        result = compiler.submit(replace(request, include_dirs=include_dirs)).result()
        assert isinstance(result, CompileResult)
        return replace(result, error=names_at_home(result.error, folder))

    def _compiler(self, on_cpu: bool, architecture: str = "") -> Compiler:
        which = on_cpu, architecture if is_amd(architecture) else ""
        with self._lock:
            if which not in self._compilers:
                self._compilers[which] = open_compiler(
                    self._info.compilers, on_cpu=on_cpu, architecture=architecture
                )
            return self._compilers[which]

    def _take(self, holder: str) -> bool:
        with self._lock:
            if self._working:  # on what its holder may have given up: two would spoil the times
                return False
            free = not self._holder or time.monotonic() > self._ends_s
            if holder != self._holder and not free:
                return False
            self._holder, self._ends_s = holder, time.monotonic() + self._lease_s
            return True

    def _leave(self, holder: str) -> None:
        if holder == self._holder:
            self._close_device()
            with self._lock:
                self._holder = ""

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Hold the slot while its device works, however long; then the holder's silence counts."""
        with self._lock:
            self._working = True
        try:
            yield
        finally:
            with self._lock:
                self._working, self._ends_s = False, time.monotonic() + self._lease_s

    def _close_device(self) -> None:
        with suppress(TunerError):  # what cannot be closed is replaced
            self._parts.close()
        self._tools = None
        if self._device is not None:
            self._device.close()
        self._device = None


class _Tools:
    """A device's watching tools, by their kind, and its counters; `told` is what to say of them."""

    def __init__(self, device: Device) -> None:
        self.parts: dict[str, Watcher | Counters] = {}
        self.told = ToldWatchers((), (), 0)
        if "sanitizer" in device.capabilities:
            watchers = device.watchers()
            self.parts = {tool.kind: tool for tool in watchers.tools}
            self.told = ToldWatchers(
                tuple(self.parts), watchers.compile_options, watchers.largest_bytes
            )
        if "counters" in device.capabilities:
            self.parts[COUNTERS] = device.counters()

    def close(self) -> None:
        for part in self.parts.values():
            part.close()


class SlotServer:
    """Answers for a slot beside what a Dask worker does, in a pool of threads for each kind."""

    def __init__(self, slot: WorkerSlot, compilers: int) -> None:
        from distributed.threadpoolexecutor import ThreadPoolExecutor

        self._slot = slot
        # Dask's threads don't keep a process from ending, as a call that hangs would.
        self.executors = {
            pool: ThreadPoolExecutor(size, thread_name_prefix=f"tune-{pool}")
            for pool, size in {"device": 1, "compile": compilers, "other": OTHERS}.items()
        }

    async def call(self, comm: Any, pool: Pool, holder: str, work: bytes) -> str:
        """Answer once a thread is free, if anybody still waits for the answer."""

        def answer() -> str:
            return "" if comm.closed() else self._slot.answer(holder, work)

        return await asyncio.get_running_loop().run_in_executor(self.executors[pool], answer)


def slot_worker(options: SlotOptions, slot: WorkerSlot, **settings: Any) -> Worker:
    """Make the Dask worker of a slot; `settings` go to Dask as they are."""
    from distributed import Worker

    info, server = options.info, SlotServer(slot, options.info.compilers)
    worker = Worker(
        options.address,
        # Without TLS nobody else is to reach it.
        host=None if options.address.startswith("tls:") else LOOPBACK,
        # Dask refuses a name that it knows, and one that has died may still be known.
        name=f"{info.name}#{info.slot[:6]}",
        nthreads=1,
        security=security_of(options.tls, "worker"),
        startup_information={TOPIC: lambda worker: asdict(info)},
        # Its pages are of no use to anybody here.
        dashboard=False,
        dashboard_address=f"{LOOPBACK}:0",
        # Dask would pause or kill a worker by memory that is not its own.
        memory_limit=0,
        death_timeout=JOIN_S,
        local_directory=str(options.scratch),
        **settings,
    )
    worker.handlers[TOPIC] = server.call
    # Dask ends them with the worker.
    worker.executors |= {f"tune-{pool}": one for pool, one in server.executors.items()}
    return worker


async def _work(options: SlotOptions, slot: WorkerSlot, connection: socket.socket) -> None:
    with refused_connection(options.address):
        worker = await slot_worker(options, slot)
    send(connection, {"joined": worker.address})
    await worker.finished()


def serve(descriptor: str) -> None:
    """Work for a scheduler until it is gone; said to `tune worker` is whether it was found."""
    connection = connect_to_parent(descriptor)
    logging.basicConfig(format="%(asctime)s %(message)s")
    options: SlotOptions = pickle.loads(receive(connection).payload)  # noqa: S301 - our parent's
    require_dask()
    # Of the code that runs here, which may be newer than that of `tune worker`.
    info = replace(options.info, version=code_version(), cuda=cuda_version())
    options = replace(options, info=info)
    slot = WorkerSlot(options.info, FileStore(options.files), options.lease_s)
    try:
        asyncio.run(_work(options, slot, connection))
    except TunerError as error:
        send(connection, {"failed": str(error)})
    finally:
        slot.close()
