"""A cluster of processes on the loopback: a scheduler and hosts that can be killed and paused."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkstemp

from faults import descendants, started, wait_until

Popen = subprocess.Popen[str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class ClusterProcesses:
    """A scheduler, hosts by their names, and runs; everything writes to files of `folder`."""

    folder: Path
    port: int = field(default_factory=free_port)
    security: tuple[str, ...] = ()
    scheduler_security: tuple[str, ...] = ()
    scheduler: Popen | None = None
    hosts: dict[str, Popen] = field(default_factory=dict)
    runs: dict[Popen, Path] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{'tls' if self.security else 'tcp'}://127.0.0.1:{self.port}"

    @property
    def words(self) -> tuple[str, ...]:
        """What a run needs to find the cluster."""
        return ("--cluster", self.address, *self.security)

    def start_scheduler(self) -> None:
        words = ("--host", self.address.removesuffix(f":{self.port}"), "--port", str(self.port))
        self.scheduler = self._start(
            "scheduler",
            *("-m", "distributed.cli.dask_scheduler", "--no-dashboard"),
            *words,
            *self.scheduler_security,
        )
        wait_until(self._listens, "the scheduler", 60)

    def start_host(self, name: str, device: str = "host") -> Popen:
        """Start `tune worker` with the CPU or a GPU; it joins when it can."""
        words = ("worker", self.address, "--device", device, "--name", name, "--jobs", "1")
        program = ("-m", "tuner", *words, *self.security)
        self.hosts[name] = self._start(name, *program, gpus=device != "host")
        return self.hosts[name]

    def wait_for(self, name: str) -> None:
        wait_until(lambda: ") works for" in self.said(name), name, 90)

    def run(self, folder: Path, *words: object) -> Popen:
        """Start `tune` in a folder; no GPU is seen there."""
        log, name = mkstemp(prefix="run-", suffix=".log", dir=self.folder)
        with os.fdopen(log, "w", encoding="utf-8") as output:
            process = started(*words, *self.words, folder=folder, output=output)
        self.runs[process] = Path(name)
        return process

    def said_by(self, run: Popen) -> str:
        """Read what a run has said so far."""
        return self.runs[run].read_text(encoding="utf-8")

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def kill_host(self, name: str) -> None:
        """End a host as if its power had failed."""
        self.signal_host(name, signal.SIGKILL)
        self.hosts.pop(name).wait()

    def signal_host(self, name: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a host, such as SIGSTOP."""
        host = self.hosts[name]
        for pid in (host.pid, *(one.pid for one in descendants(host.pid))):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_scheduler(self) -> None:
        assert self.scheduler is not None
        self.scheduler.kill()
        self.scheduler.wait()

    def close(self) -> None:
        for process in self.runs:
            process.kill()
            process.wait()
        for name in [*self.hosts]:
            self.kill_host(name)
        if self.scheduler is not None:
            self.kill_scheduler()

    def _start(self, name: str, *words: str, gpus: bool = False) -> Popen:
        with (self.folder / f"{name}.log").open("a", encoding="utf-8") as log:
            return started(folder=self.folder, program=words, output=log, gpus=gpus)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def cluster_processes(folder: Path, **options: tuple[str, ...]) -> Iterator[ClusterProcesses]:
    """Start nothing yet; end everything with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = ClusterProcesses(folder, **options)
    try:
        yield cluster
    finally:
        cluster.close()
