"""What many workers cost the coordinator of a cluster: processor time and memory.

    python benchmarks/cluster_load.py [--workers 1000] [--trials 10] [--out FILE]

The workers are simulated: a few processes hold all of them, each a Dask worker of its own that
joins, sends heartbeats and has a slot as `tune worker` makes it. Its answers are written as that
slot's, but in the event loop instead of threads, and a trial there is a second's wait. All
trials are run once as they are, and once more with a compilation before each, on whatever worker
has the least to do, by a compiler that answers at once.

What a coordinator consists of is real: Dask's scheduler, and a process with as many remote devices
as there are workers, each with a thread that runs its trials one after the other. Messages go
through the loopback, without TLS. Search, session and rendering are not in it.

The processor's time of both is taken while the workers are idle, and then over the trials alone;
on a busy machine it says more than the clock's. The workers share this machine: where it has too
little for them, trials take longer than they sleep. So what 1,000 trials a second need is reckoned:
the time of an idle second, and for each trial what it took beyond that.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask
from environment import ROOT, environment, versions, write_result

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.device.base import DeviceInfo, Outcome, Program
from tuner.extensions.scale.cluster import slot as slots
from tuner.extensions.scale.cluster.compiler import RemoteCompiler
from tuner.extensions.scale.cluster.coordinator import Cluster
from tuner.extensions.scale.cluster.device import RemoteDevice
from tuner.extensions.scale.cluster.files import FileStore
from tuner.extensions.scale.cluster.membership import Wanted
from tuner.extensions.scale.cluster.messages import TOPIC, SlotInfo, code_version, cuda_version
from tuner.extensions.scale.cluster.network import require_dask
from tuner.extensions.scale.cluster.slot import SlotOptions, WorkerSlot, slot_worker
from tuner.model.cluster import ClusterSettings, Timeouts
from tuner.model.trial import Measurement, Status
from tuner.space.load import load_definition

PROCESSES = 4
LONG_S = 900.0
PATIENT = {f"distributed.comm.timeouts.{name}": "15m" for name in ("connect", "tcp")}
TRIAL_S, IDLE_S = 1.0, 30.0
# Of 1,000 workers.
ASKED_PER_S = 1000
GPU = "simulated GPU"
SPACE = ROOT / "search_spaces/sglang/silu_and_mul.yaml"
SOURCE = ROOT / "kernels/sglang/silu_and_mul.cu"
# Of a cubin, as a program brings it, and of the times that come back.
CUBIN_BYTES, TIMES = 30_000, 60
TICKS = os.sysconf("SC_CLK_TCK")


class InstantDevice:
    """A device whose trials are made up."""

    def __init__(self) -> None:
        self.info = DeviceInfo(GPU, "sm_90a", (9, 0), 132, 50 << 20, 4000.0, recorded=False)

    def run(self, program: Program, **_: object) -> Outcome:
        return Outcome(Status.CORRECT, "", Measurement((10.0,) * TIMES, 1, 1))

    def close(self) -> None:
        """Nothing is open."""


class InstantCompiler:
    """A compiler whose machine code is there at once."""

    version = "simulated"

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        done: Future[CompileResult] = Future()
        done.set_result(CompileResult(os.urandom(CUBIN_BYTES)))
        return done

    def close(self) -> None:
        """Nothing is open."""


class SimulatedSlot(WorkerSlot):
    def _compiler(self, on_cpu: bool, architecture: str = "") -> InstantCompiler:
        return InstantCompiler()


async def simulate(address: str, count: int, folder: Path) -> None:
    """Hold so many workers in this process."""
    # Each would ask the system for its load twice a second: hosts of their own could.
    dask.config.set({"distributed.admin.system-monitor.interval": "10m", **PATIENT})
    files = FileStore(folder / "files")
    host = f"{socket.gethostname()}-{os.getpid()}"
    workers, simulated = [], []
    for number in range(count):
        name = f"{host}/{number}"
        said = (secrets.token_hex(8), name, host, "cuda:0", GPU, code_version(), cuda_version())
        info = SlotInfo(*said, compilers=1)
        slot = SimulatedSlot(info, files, 600.0, opened=lambda *_: InstantDevice())
        options = SlotOptions(address, info, None, folder, folder, 600.0)
        simulated.append(slot)
        workers.append(slot_worker(options, slot, silence_logs=50))
    for some in range(0, count, 25):
        await asyncio.gather(*workers[some : some + 25])
        for worker, slot in list(zip(workers, simulated, strict=True))[some : some + 25]:
            worker.handlers[TOPIC] = in_loop(slot)
    await asyncio.gather(*(worker.finished() for worker in workers))


def in_loop(slot: WorkerSlot) -> Callable[..., Coroutine[Any, Any, bytes]]:
    """Answer as a worker does, without its threads: thousands of them would be what is measured."""

    async def call(comm: object, pool: str, holder: str, work: bytes) -> bytes:
        if pool == "device":
            await asyncio.sleep(TRIAL_S)
        return slot.answer(holder, work)

    return call


def processor_s(pid: int) -> float:
    """Read the processor's time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid: int) -> float:
    """Read the most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


@dataclass
class Meter:
    """Take the time of the processor and of the clock that processes spend."""

    pids: Mapping[str, int]

    def __post_init__(self) -> None:
        self._spent_s, self._began_s = self._now(), time.monotonic()

    def read(self) -> tuple[dict[str, float], float]:
        """Return what each has spent since this was made, and the clock's seconds."""
        now = self._now()
        spent = {name: now[name] - before for name, before in self._spent_s.items()}
        return spent, time.monotonic() - self._began_s

    def _now(self) -> dict[str, float]:
        return {name: processor_s(pid) for name, pid in self.pids.items()}


def measure(
    settings: ClusterSettings, pids: Mapping[str, int], workers: int, trials: int
) -> dict[str, Any]:
    """Open a device on every worker, be idle for a while, and run their trials."""
    spec = load_definition(SPACE).spec
    program = Program("key", spec.workloads[0], (), os.urandom(CUBIN_BYTES))
    request = CompileRequest(SOURCE.read_text(), ("kernel",), "sm_90a")
    # Workers that share a busy machine take long to join, and to say that they live.
    long = Timeouts(connect_s=LONG_S, silent_s=LONG_S, rejoin_s=LONG_S)
    patient = replace(settings, timeouts=long)
    cluster = Cluster(patient, lambda text: print(text, file=sys.stderr))
    compiler = RemoteCompiler(cluster, on_cpu=False)
    began_s = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        opening = [
            pool.submit(RemoteDevice, cluster, Wanted(False), spec, {}, lambda text: None)
            for _ in range(workers)
        ]
        devices = [one.result() for one in opening]
        opened_s = time.monotonic() - began_s
        print(f"{len(devices)} devices after {opened_s:.0f} s", file=sys.stderr)
        meter = Meter(pids)
        time.sleep(IDLE_S)
        spent, took_s = meter.read()
        idle_cores = {name: spent_s / took_s for name, spent_s in spent.items()}

        def run(device: RemoteDevice) -> int:
            found = (device.run(program) for _ in range(trials))
            return sum(one.status is Status.CORRECT for one in found)

        def compile_and_run(device: RemoteDevice) -> int:
            compiled = (compiler.submit(request).result().cubin for _ in range(trials))
            return sum(device.run(program).status is Status.CORRECT for one in compiled if one)

        phases = {"run": run, "compile_and_run": compile_and_run}
        found = {}
        for name, work in phases.items():
            meter = Meter(pids)
            done = sum(pool.map(work, devices))
            found[name] = reckoned(idle_cores, *meter.read(), done)
            print(name, found[name], file=sys.stderr)
    return {
        "opening_s": round(opened_s, 1),
        "idle_cores": {name: round(value, 3) for name, value in idle_cores.items()},
        "asked_trials_per_s": ASKED_PER_S,
        **found,
        "peak_mib": {name: round(peak_mib(pid)) for name, pid in pids.items()},
    }


def reckoned(
    idle_cores: Mapping[str, float], spent_s: Mapping[str, float], took_s: float, trials: int
) -> dict[str, Any]:
    """Say what the rate that was asked for needs, of what an idle second and a trial took."""
    extra_s = {name: max(s - idle_cores[name] * took_s, 0.0) for name, s in spent_s.items()}
    each_ms = {name: 1e3 * s / trials for name, s in extra_s.items()}
    cores = {name: idle_cores[name] + ms * ASKED_PER_S / 1e3 for name, ms in each_ms.items()}
    return {
        "trials": trials,
        "wall_s": round(took_s, 1),
        "trials_per_s": round(trials / took_s, 1),
        "processor_s": {name: round(s, 2) for name, s in spent_s.items()},
        "processor_ms_per_trial": {name: round(ms, 3) for name, ms in each_ms.items()},
        "cores_for_asked": {
            **{name: round(value, 2) for name, value in cores.items()},
            "together": round(sum(cores.values()), 2),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=10, help="of each worker, twice")
    parser.add_argument("--out", type=Path, default=Path("cluster_load"))
    parser.add_argument("--simulate", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    require_dask()
    slots.JOIN_S = LONG_S
    threading.stack_size(1 << 20)
    # Each connection is a file.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if asked.simulate:
        address, count, folder = asked.simulate
        asyncio.run(simulate(address, int(count), Path(folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        address = f"tcp://127.0.0.1:{port}"
        words = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *words]
        log = Path(folder, "log").open("wb")  # noqa: SIM115
        started = [subprocess.Popen(command, stdout=log, stderr=log)]
        time.sleep(5.0)
        share = asked.workers // PROCESSES
        for _ in range(PROCESSES):
            given = ["--simulate", address, str(share), folder]
            words = [sys.executable, __file__, *given]
            started.append(subprocess.Popen(words, stderr=log))
        try:
            pids = {"scheduler": started[0].pid, "coordinator": os.getpid()}
            count, settings = share * PROCESSES, ClusterSettings(address)
            found = measure(settings, pids, count, asked.trials)
        finally:
            for process in started:
                process.kill()
                process.wait()
    content = {
        "environment": {**environment(), "packages": versions(("dask", "distributed"))},
        "workers": count,
        "processes_of_workers": PROCESSES,
        "trial_s": TRIAL_S,
        **found,
    }
    print(content)
    write_result(asked.out if asked.out.suffix else str(asked.out), content)
    # Thousands of threads and sockets that nobody needs any more.
    os._exit(0)


if __name__ == "__main__":
    main()
