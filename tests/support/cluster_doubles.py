"""A cluster in threads of this process: a scheduler, and workers whose devices are made up."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from distributed import LocalCluster, Worker

from tuner.device.base import ComparisonRounds, Counted, DeviceInfo, Outcome, Program, Watchers
from tuner.extensions.scale.cluster.files import FileStore
from tuner.extensions.scale.cluster.messages import SlotInfo, code_version, cuda_version
from tuner.extensions.scale.cluster.network import require_dask
from tuner.extensions.scale.cluster.slot import SlotOptions, WorkerSlot, slot_worker
from tuner.model.cluster import ClusterSettings, Timeouts
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Correctness, EnergyWindow, Measurement, Status

H200 = "NVIDIA H200"
WORKLOAD = Workload.of({"N": 64})


def program(key: str = "one") -> Program:
    """A program that no device of these looks into."""
    return Program(key, WORKLOAD, ())


def info_of(model: str = H200) -> DeviceInfo:
    return DeviceInfo(model, "sm_90a", (9, 0), 132, 50 << 20, 4000.0, recorded=False)


@dataclass
class StandIn:
    """A device that notes what it ran and says so; it waits while `goes` is not set."""

    info: DeviceInfo
    spec: KernelSpec | None = None
    ran: list[str] = field(default_factory=list)
    goes: Event = field(default_factory=Event)
    began: Event = field(default_factory=Event)
    fails: list[Exception] = field(default_factory=list)
    closed: int = 0
    capabilities = frozenset({"sanitizer", "counters"})

    def __post_init__(self) -> None:
        self.goes.set()

    def run(self, program: Program, **_: object) -> Outcome:
        self.began.set()
        assert self.goes.wait(60)
        self.ran.append(program.source_key)
        if self.fails:
            raise self.fails.pop()
        return Outcome(Status.CORRECT, "", Measurement((10.0, 10.0, 10.0), 1, 1))

    def verify(self, program: Program) -> Outcome:
        return self.run(program)

    def compare(self, programs: tuple[Program, ...], *, rounds: int) -> ComparisonRounds:
        return ComparisonRounds(((10.0,) * len(programs),) * rounds, paired=True)

    def bits(self, program: Program, seed: int | None = None) -> Outcome:
        verdict = Correctness(True, ("normal",), bits=f"{program.source_key}-{seed}")
        return Outcome(Status.CORRECT, correctness=verdict)

    def rank(self, programs: tuple[Program, ...], *, rounds: int) -> list[list[float]]:
        return [[10.0] * len(programs)] * rounds

    def watchers(self) -> Watchers:
        return Watchers((StandInTool(self),), ("-lineinfo",), 1000)

    def counters(self) -> StandInTool:
        return StandInTool(self)

    def require_energy(self) -> None:
        """It can be read."""

    def idle_energy(self, *, seconds: float) -> EnergyWindow:
        return EnergyWindow(1.0, seconds)

    def close(self) -> None:
        self.closed += 1


class StandInTool:
    """What watches or counts beside a device; it is closed with it."""

    kind = "memcheck"

    def __init__(self, device: StandIn) -> None:
        self._device = device

    def watch(self, programs: tuple[Program, ...]) -> list[Outcome]:
        return [Outcome(Status.CORRECT) for _ in programs]

    def refusal(self) -> str:
        return "no permission"

    def count(self, program: Program, names: tuple[str, ...]) -> Counted:
        return Counted(reason=f"{', '.join(names)} of {program.source_key}")

    def close(self) -> None:
        self._device.closed += 1


class Garbled(WorkerSlot):
    """A slot whose answers nobody understands."""

    def answer(self, holder: str, pickled: bytes) -> str:
        return "{}"


@dataclass
class Host:
    """A worker of the cluster, with the device that it opens."""

    info: SlotInfo
    device: StandIn
    slot: WorkerSlot
    worker: Worker


class Hosts:
    """The hosts of a cluster, by their names."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._hosts: dict[str, Host] = {}
        # How many calls have gone through the scheduler.
        self.relayed = 0
        relay = cluster.scheduler.handlers["proxy"]

        async def counted(*arguments: Any, **options: Any) -> Any:
            self.relayed += 1
            return await relay(*arguments, **options)

        cluster.scheduler.handlers["proxy"] = counted

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    @property
    def address(self) -> str:
        return str(self._cluster.scheduler_address)

    def settings(self, **seconds: float) -> ClusterSettings:
        timeouts = {"rejoin_s": 20.0, "connect_s": 5.0, **seconds}
        return ClusterSettings(self.address, timeouts=Timeouts(**timeouts))

    def add(
        self,
        name: str,
        *,
        model: str = H200,
        device: str = "cuda:0",
        lease_s: float = 60.0,
        garbled: bool = False,
        **told: str,
    ) -> Host:
        """Start a worker; `told` takes the place of what it says of itself.

        Nobody understands the answers of one that is `garbled`.
        """
        said = {"version": code_version(), "cuda": cuda_version(), **told}
        info = SlotInfo(secrets.token_hex(8), name, name, device, model, compilers=1, **said)
        stand_in = StandIn(info_of(model))

        def opened(text: str, spec: KernelSpec, operators: Mapping[str, str]) -> StandIn:
            stand_in.spec = spec
            return stand_in

        slot = (Garbled if garbled else WorkerSlot)(
            info, FileStore(self._folder / name), lease_s, opened=opened
        )
        options = SlotOptions(
            address=self.address,
            info=info,
            tls=None,
            scratch=self._folder / "scratch",
            files=self._folder / name,
            lease_s=lease_s,
        )

        async def start() -> Worker:
            return await slot_worker(options, slot)

        host = Host(info, stand_in, slot, self._cluster.sync(start))
        self._hosts[name] = host
        return host

    def end(self, name: str) -> None:
        """End a worker as if its process had died."""
        worker = self._hosts[name].worker
        self._cluster.sync(worker.close, timeout=2, executor_wait=False, nanny=False)

    def cut_off(self, name: str) -> None:
        """End the connections that others have to a worker, which goes on and is heard of."""
        server = self._hosts[name].worker

        async def cut() -> None:
            for comm in list(server._comms):
                comm.abort()

        self._cluster.sync(cut)

    def end_scheduler(self) -> None:
        """End the scheduler as if its host had died."""
        self._cluster.sync(self._cluster.scheduler.close)
        self._cluster.shutdown_scheduler = False  # Dask would try for 10 s to reach it

    def close(self) -> None:
        for host in self._hosts.values():
            host.device.goes.set()
            with suppress(Exception):
                self._cluster.sync(host.worker.close, timeout=2, executor_wait=False)
            host.slot.close()


@contextmanager
def hosts_of(folder: Path) -> Iterator[Hosts]:
    """Start a scheduler on the loopback; everything ends with the block."""
    require_dask()
    with LocalCluster(
        n_workers=0,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address=None,
        silence_logs=False,
    ) as cluster:
        hosts = Hosts(cluster, folder)
        try:
            yield hosts
        finally:
            hosts.close()
