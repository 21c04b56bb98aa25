"""What many workers cost the coordinator of a cluster: processor time and memory.

    python benchmarks/cluster_load.py [--workers 1000] [--trials 20] [--out FILE]

The workers are simulated: a few processes hold all of them, each a Dask worker of its own with a
slot as `tune worker` makes it, and a device that sleeps a second for each trial. What a coordinator
consists of is real: Dask's scheduler, and a process with as many remote devices as there are
workers, each with a thread that runs its trials one after the other. Messages are signed, pickled
and sent through the loopback. The processor's time of both is taken over the trials alone; on a
busy machine it says more than the clock's.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
from environment import ROOT, environment, versions, write_result

from tuner.cluster.coordinator import Cluster, Wanted
from tuner.cluster.device import RemoteDevice
from tuner.cluster.files import FileStore
from tuner.cluster.messages import SlotInfo, code_version, cuda_version
from tuner.cluster.network import require_dask
from tuner.cluster.settings import ClusterSettings
from tuner.cluster.signing import Seal
from tuner.cluster.slot import Slot, SlotOptions, slot_worker
from tuner.device.base import DeviceInfo, Outcome, Program
from tuner.model.trial import Measurement, Status
from tuner.space.load import load_definition

PROCESSES = 4
TRIAL_S = 1.0
GPU = "simulated GPU"
SPACE = ROOT / "search_spaces/sglang/silu_and_mul.yaml"
# Of a cubin, as a program brings it, and of the times that come back.
CUBIN_BYTES, TIMES = 30_000, 60
TICKS = os.sysconf("SC_CLK_TCK")


class SleepingDevice:
    """A device whose trials take a second and no work."""

    def __init__(self) -> None:
        self.info = DeviceInfo(GPU, "sm_90a", (9, 0), 132, 50 << 20, 4000.0, recorded=False)

    def run(self, program: Program, **_: object) -> Outcome:
        time.sleep(TRIAL_S)
        return Outcome(Status.CORRECT, "", Measurement((10.0,) * TIMES, 1, 1))

    def close(self) -> None:
        """Nothing is open."""


async def simulate(address: str, token: str, count: int, folder: Path) -> None:
    """Hold so many workers in this process."""
    # Each would ask the system for its load twice a second: hosts of their own could.
    dask.config.set({"distributed.admin.system-monitor.interval": "10m"})
    seal, files = Seal(token), FileStore(folder / "files")
    host = f"{socket.gethostname()}-{os.getpid()}"
    workers = []
    for number in range(count):
        name = f"{host}/{number}"
        said = (secrets.token_hex(8), name, host, "cuda:0", GPU, code_version(), cuda_version())
        info = SlotInfo(*said, compilers=1)
        slot = Slot(info, seal, files, 600.0, opened=lambda *_: SleepingDevice())
        options = SlotOptions(address, info, token, None, folder, folder, 600.0)
        workers.append(slot_worker(options, slot, dashboard=False, silence_logs=50))
    for some in range(0, count, 25):
        await asyncio.gather(*workers[some : some + 25])
    await asyncio.gather(*(worker.finished() for worker in workers))


def processor_s(pid: int) -> float:
    """Read the processor's time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid: int) -> float:
    """Read the most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def measure(address: str, token: Path, scheduler: int, workers: int, trials: int) -> dict[str, Any]:
    """Open a device on every worker, and run their trials."""
    # A device is waited for, however long the workers take to join.
    settings = ClusterSettings(address, token).patient(rejoin_s=600.0)
    spec = load_definition(SPACE).spec
    program = Program("key", spec.workloads[0], (), os.urandom(CUBIN_BYTES))
    cluster = Cluster(settings, lambda text: print(text, file=sys.stderr))
    before_s = time.monotonic()
    threading.stack_size(1 << 20)
    with ThreadPoolExecutor(workers) as pool:
        opened = [
            pool.submit(RemoteDevice, cluster, Wanted(False), spec, {}, lambda text: None)
            for _ in range(workers)
        ]
        devices = [one.result() for one in opened]
        opened_s = time.monotonic() - before_s
        print(f"{len(devices)} devices after {opened_s:.0f} s", file=sys.stderr)
        pids = {"scheduler": scheduler, "coordinator": os.getpid()}
        started = {name: processor_s(pid) for name, pid in pids.items()}
        started_s = time.monotonic()

        def work(device: RemoteDevice) -> int:
            found = (device.run(program) for _ in range(trials))
            return sum(one.status is Status.CORRECT for one in found)

        done = sum(pool.map(work, devices))
        took_s = time.monotonic() - started_s
        spent = {name: processor_s(pid) - started[name] for name, pid in pids.items()}
    return {
        "trials": done,
        "opening_s": round(opened_s, 1),
        "wall_s": round(took_s, 1),
        "trials_per_s": round(done / took_s, 1),
        "processor_s": {name: round(value, 1) for name, value in spent.items()},
        "cores": {name: round(value / took_s, 2) for name, value in spent.items()},
        "processor_ms_per_trial": {n: round(1e3 * v / done, 2) for n, v in spent.items()},
        "peak_mib": {name: round(peak_mib(pid)) for name, pid in pids.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=20, help="of each worker")
    parser.add_argument("--out", type=Path, default=Path("cluster_load"))
    parser.add_argument("--simulate", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    require_dask()
    # Each connection is a file.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if asked.simulate:
        address, token, count, folder = asked.simulate
        asyncio.run(simulate(address, Path(token).read_text(), int(count), Path(folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.write_text(secrets.token_hex(32))
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
            given = ["--simulate", address, str(token), str(share), folder]
            started.append(subprocess.Popen([sys.executable, __file__, *given], stderr=log))
        try:
            scheduler, count = started[0].pid, share * PROCESSES
            found = measure(address, token, scheduler, count, asked.trials)
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
