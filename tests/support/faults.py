"""A small kernel to tune on the CPU, the processes of a run, and what a run leaves behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tuner.model.trial import Trial
from tuner.session.records import Record, from_row

T = TypeVar("T")

PR_SET_CHILD_SUBREAPER = 36
SOURCE = """\
extern "C" __global__ void scale(float* out, const float* in, int R, int N) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < static_cast<long long>(R) * N) out[i] = 2.0f * in[i];
}
"""

TEMPLATE = """\
#include <signal.h>
#include <stdlib.h>

constexpr int kBlockSize = @{ block_size }@;
constexpr int kPerThread = @{ per_thread }@;
constexpr int kFault = @{ fault }@;

extern "C" __global__ void __launch_bounds__(kBlockSize)
    scale(float* out, const float* in, int R, int N) {
  const int first = (blockIdx.x * kBlockSize + threadIdx.x) * kPerThread;
  if (first == 0 && kFault == 1) out[1LL << 40] = 1.0f;
  if (first == 0 && kFault == 2) exit(3);
  while (first == 0 && kFault == 3) {
    volatile char* more = static_cast<char*>(malloc(64 << 20));
    *more = 1;
  }
  if (first == 0 && kFault == 4) raise(SIGKILL);
  while (first == 0 && kFault == 5) __syncwarp(1);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    if (first + k < R * N) out[first + k] = 2.0f * in[first + k];
  }
}
"""

REFERENCE = '''\
"""The reference of scale."""


def reference(xp, inputs, axes):
    return {"out": 2.0 * inputs["in"]}
'''

SPACE = """\
version: 1
kernel: scale
source: scale.cu
reference: scale.py
template: scale.cu.j2

axes: [R, N]
arguments:
  - {name: out, dtype: float32, shape: [R, N], role: output}
  - {name: in, dtype: float32, shape: [R, N], role: input}
  - {name: R, dtype: int32, value: R}
  - {name: N, dtype: int32, value: N}
workloads:
  tuned: [{R: 1, N: 2048}]
min_bytes: 8 * R * N

baseline:
  launch: [{kernel: scale, grid: ["ceil_div(R * N, 256)"], block: [256]}]

parameters:
  block_size: [32, 64, 128, 256]
  per_thread: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
  fault: [0]
default: {block_size: 256, per_thread: 1, fault: 0}
launch:
  - kernel: scale
    grid: ["ceil_div(R * N, block_size * per_thread)"]
    block: [block_size]
tolerance: {out: {relative: 1.0e-6}}
"""


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc showed it."""

    pid: int
    parent: int
    name: str
    command: str
    started: int

    @property
    def runs_kernels(self) -> bool:
        """Whether it is the server of the `host` device, or a child that it forked."""
        return "cpu.server" in self.command

    @property
    def compiles(self) -> bool:
        """Whether it is g++, what g++ started, or a process with NVRTC."""
        return self.name in ("g++", "cc1plus", "as", "ld") or "tune-compiler" in self.command

    @property
    def verifies(self) -> bool:
        return "tune-verifier" in self.command

    @property
    def folder(self) -> str:
        """The folder that it works in, "" once it has ended."""
        with suppress(OSError):
            return str(Path(f"/proc/{self.pid}/cwd").readlink())
        return ""

    def maps(self, word: str) -> bool:
        """Whether a file whose path has this word is mapped there."""
        with suppress(OSError):
            return word in Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8")
        return False

    def kill(self) -> bool:
        """Send SIGKILL; False where it has ended by itself."""
        if _process(self.pid) != self:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            return True
        return False


def descendants(pid: int) -> list[Process]:
    """List the processes below one, the eldest first."""
    found = {one.pid: one for one in map(_process, _pids()) if one is not None}
    known, below = {pid}, []
    for one in sorted(found.values(), key=lambda one: (one.started, one.pid)):
        if one.parent in known:
            known.add(one.pid)
            below.append(one)
    return below


@contextmanager
def orphans_adopted() -> Iterator[Callable[[], list[Process]]]:
    """Become the parent of what runs leave behind; the value lists those that still live."""
    before = {one.pid for one in descendants(os.getpid())}
    _adopt_orphans(True)

    def left() -> list[Process]:
        for one in descendants(os.getpid()):
            if one.parent == os.getpid() and one.pid not in before:
                with suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)
        return [one for one in descendants(os.getpid()) if one.pid not in before]

    try:
        yield left
    finally:
        for one in left():
            one.kill()
        left()
        _adopt_orphans(False)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Wait for a condition, looking often."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.002)


def rows(session: Path, table: str) -> list[sqlite3.Row]:
    """Read a table of a session that may be in use, or not be there yet."""
    address = f"{(session / 'session.db').absolute().as_uri()}?mode=ro"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(address, uri=True)) as opened:
        opened.row_factory = sqlite3.Row
        return opened.execute(f"select * from {table} order by rowid").fetchall()  # noqa: S608
    return []


def records(session: Path, kind: type[T]) -> list[T]:
    """Read the records of a kind, in a session that may be in use, or not be there yet."""
    found = (from_row(row["kind"], row["content"]) for row in rows(session, "records"))
    return [record for record in found if isinstance(record, kind)]


def trials(session: Path) -> list[Trial]:
    return [record.trial for record in records(session, Record)]


def searched(session: Path) -> list[Trial]:
    return [trial for trial in trials(session) if trial.stage == "search"]


def in_finals(session: Path) -> list[Trial]:
    return [trial for trial in trials(session) if trial.stage == "finals"]


def configs(session: Path) -> set[str]:
    """The configs that the search tried."""
    return {trial.config.key for trial in searched(session)}


def written(root: Path) -> Path:
    """Write the kernel's four files to a new folder."""
    root.mkdir(parents=True)
    texts = {"cu": SOURCE, "cu.j2": TEMPLATE, "py": REFERENCE, "yaml": SPACE}
    for suffix, text in texts.items():
        (root / f"scale.{suffix}").write_text(text, encoding="utf-8")
    return root


def build_disk_full(folder: Path, compiler: str) -> Path:
    """Compile the library that makes a folder's disk full."""
    library = folder / "disk_full.so"
    source = Path(__file__).with_name("disk_full.c")
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return library


def _adopt_orphans(adopt: bool) -> None:
    zeros = [ctypes.c_ulong(0)] * 3
    status = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(adopt), *zeros)
    assert status == 0


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _process(pid: int) -> Process | None:
    """Read one process; None where there is none, or a zombie."""
    folder = Path(f"/proc/{pid}")
    try:
        line = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    name, _, rest = line.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in ("Z", "X"):
        return None
    return Process(pid, int(fields[1]), name, command, int(fields[19]))
