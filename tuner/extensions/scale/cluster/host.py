"""What `tune worker` runs: one process for each GPU of this host, started again when it ends."""

from __future__ import annotations

import os
import pickle
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event, Thread

from tuner.compiler.cache import user_cache_dir
from tuner.compiler.command import remove_left_behind, scratch_folder
from tuner.device.select import HOST, gpu_count
from tuner.extensions.scale.cluster.files import FileStore
from tuner.extensions.scale.cluster.messages import CPU_MODEL, SlotInfo
from tuner.extensions.scale.cluster.network import (
    require_address,
    require_dask,
    require_scheduler,
    security_of,
)
from tuner.extensions.scale.cluster.slot import SlotOptions
from tuner.model.cluster import Timeouts, TlsFiles
from tuner.model.errors import DeviceError, InputError
from tuner.process.child import ChildDiedError, ChildProcess, ChildTimeoutError

# A scheduler that was started again finds its workers; without one they end, and free their GPUs.
SCHEDULER_RETURNS_S = 600.0
BETWEEN_TRIES_S = 2.0
# A process that ends so soon after it joined will do so again.
SOON_S = 5.0
START_S = 120.0
_HOST_NAME = re.compile(r"[!-~]{1,100}")


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What a host offers, and to whom; `compilers` is how many run for each GPU."""

    address: str
    device: str = "auto"
    name: str = ""
    compilers: int | None = None
    tls: TlsFiles | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)


class SlotProcess(ChildProcess):
    """The process of one slot: it tells when it has joined, and ends with its scheduler.

    Raises `DeviceError` where it does not start.
    """

    def __init__(self, options: SlotOptions) -> None:
        with _starting():
            super().__init__("tune-slot", "tuner.extensions.scale.cluster.slot")
            self.write({}, pickle.dumps(options))

    def wait_until_joined(self) -> str:
        """Wait until it has joined; raise `DeviceError` where it cannot."""
        with _starting():
            said = self.read(START_S).header
        if "failed" in said:
            raise DeviceError(said["failed"])
        return str(said["joined"])

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait()


@contextmanager
def _starting() -> Iterator[None]:
    try:
        yield
    except (ChildDiedError, ChildTimeoutError, OSError) as error:
        raise DeviceError(f"a worker's process did not start: {error}") from error


def serve_host(options: HostOptions, say: Callable[[str], None]) -> None:
    """Offer this host's GPUs, or its CPU, until the scheduler is gone for good or Ctrl-C.

    Raises `InputError` and `DeviceError` for what keeps it from beginning.
    """
    require_dask()
    options = replace(options, address=require_address(options.address))
    security = security_of(options.tls, "worker")
    require_scheduler(options.address, security, "worker", options.timeouts.connect_s)
    infos = slot_infos(options)
    files = user_cache_dir() / "cluster"
    FileStore(files).prune()
    remove_left_behind()
    with scratch_folder() as scratch:
        keepers = [
            _Keeper(
                SlotOptions(
                    address=options.address,
                    info=info,
                    tls=options.tls,
                    scratch=scratch,
                    files=files,
                    lease_s=options.timeouts.lease_s,
                ),
                say,
            )
            for info in infos
        ]
        try:
            _keep_all(keepers, say)
        finally:
            for keeper in keepers:
                keeper.stop()


def _keep_all(keepers: Sequence[_Keeper], say: Callable[[str], None]) -> None:
    """Keep them until the last has ended; one that ends before the others is told of at once."""

    def keep(keeper: _Keeper) -> None:
        keeper.run()
        if keeper.failure is not None and len(keepers) > 1:
            say(f"{keeper.name} is left out: {keeper.failure.message}")

    threads = [Thread(target=keep, args=(keeper,), daemon=True) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for keeper in keepers:
        if keeper.failure is not None:
            raise keeper.failure


class _Keeper:
    """Start a slot's process, and another one when it ends, until the scheduler stays away."""

    def __init__(self, options: SlotOptions, say: Callable[[str], None]) -> None:
        self._options, self._say = options, say
        self._process: SlotProcess | None = None
        self._stopped = Event()
        self.failure: DeviceError | None = None

    @property
    def name(self) -> str:
        return self._options.info.name

    def run(self) -> None:
        """Keep a process until `stop`, or until none can join; `failure` says why."""
        ended_s: float | None = None
        while not self._stopped.is_set():
            try:
                # Each process has a name of its own: what was meant for another one is refused.
                info = replace(self._options.info, slot=secrets.token_hex(16))
                if self._process is not None:
                    self._process.kill()
                self._process = SlotProcess(replace(self._options, info=info))
                self._process.wait_until_joined()
                self._say(f"{info} works for {self._options.address}")
            except DeviceError as error:
                # What never worked is no scheduler that was away.
                if ended_s is None or time.monotonic() - ended_s > SCHEDULER_RETURNS_S:
                    self.failure = error
                    return
                self._stopped.wait(BETWEEN_TRIES_S)
                continue
            started_s = time.monotonic()
            assert self._process is not None
            self._process.wait()
            ended_s = time.monotonic()
            if not self._stopped.is_set():
                self._say(f"{self.name}: its connection or its process has ended")
                self._stopped.wait(SOON_S if ended_s - started_s < SOON_S else 0.0)

    def stop(self) -> None:
        """End the process at once, with all that it runs."""
        self._stopped.set()
        if self._process is not None:
            self._process.kill()


def slot_infos(options: HostOptions) -> list[SlotInfo]:
    """List what this host offers.

    Raises `DeviceError` for a device that it hasn't, `InputError` for a name that coordinators
    would not read.
    """
    devices = _devices(options.device)
    host = options.name or socket.gethostname()
    if not _HOST_NAME.fullmatch(host):
        raise InputError(
            f"{host!r} is no name for a host",
            remedy="name it with --name: up to 100 ASCII characters without spaces",
        )
    cores = len(os.sched_getaffinity(0))
    compilers = options.compilers or max(1, cores // len(devices))
    return [
        SlotInfo(
            slot="",
            name=f"{host}/{device}",
            host=host,
            device=device,
            model=_model(device),
            version="",
            cuda="",
            compilers=compilers,
        )
        for device in devices
    ]


def _devices(asked: str) -> list[str]:
    if asked == HOST:
        return [HOST]
    kind, _, number = asked.partition(":")
    count = gpu_count()
    if asked in ("auto", "cuda"):
        if not count:
            raise DeviceError(
                "no NVIDIA GPU was found on this host",
                remedy="--device host offers its CPU, whose times say nothing of a GPU's",
            )
        return [f"cuda:{ordinal}" for ordinal in range(count)]
    if kind != "cuda" or not number.isdecimal():
        raise DeviceError(f"unknown device {asked!r}", remedy="use auto, cuda, cuda:N or host")
    if int(number) >= count:
        raise DeviceError(f"there is no GPU {number} on this host, which has {count}")
    return [asked]


def _model(device: str) -> str:
    if device == HOST:
        return CPU_MODEL
    from tuner.device.cuda.driver import gpu_name

    return gpu_name(int(device.partition(":")[2]))
