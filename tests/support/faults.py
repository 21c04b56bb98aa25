"""A small kernel to tune on the CPU, the processes of a run, and what a run leaves behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from kept import build

from tuner.model.trial import Trial
from tuner.session.records import Record, from_row

T = TypeVar("T")

PR_SET_CHILD_SUBREAPER = 36
PROJECT = Path(__file__).with_name("faulty")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
# Runs the project where it lies, and proves nothing of how strong its check is.
ON_HOST = ("--space", "scale.yaml", "--device", "host", "--no-mutants")
SOURCE = (PROJECT / "scale.cu").read_text(encoding="utf-8")


def started(
    *words: object,
    folder: Path,
    program: Sequence[str] = ("-m", "tuner"),
    environment: Mapping[str, str] = os.environ,
    output: IO[str] | None = None,
    gpus: bool = False,
) -> subprocess.Popen[str]:
    """Start `tune`, or another program of this Python, apart from Ctrl-C here.

    It sees no GPU unless it is told to, and says what it says to pipes unless there is an `output`.
    """
    to = subprocess.PIPE if output is None else output
    return subprocess.Popen(
        [sys.executable, *program, *map(str, words)],
        cwd=folder,
        env={**environment, **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""})},
        stdout=to,
        stderr=to,
        text=True,
        start_new_session=True,
    )


class WaitedTooLongError(AssertionError):
    """What a test waited for did not come."""


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


def left_in_shared_memory(before: set[Path]) -> list[Path]:
    """List the new files in shared memory that no process maps, so that nobody removes them.

    What is mapped may be another test's on this machine. PostgreSQL, which others start, maps its
    own now and then only.
    """
    found = (one for one in SHARED_MEMORY.iterdir() if not one.name.startswith("PostgreSQL."))
    new = {*found} - before
    living = [one for one in map(_process, _pids()) if one] if new else []
    return [path for path in new if not any(one.maps(str(path)) for one in living)]


def wait_until_none(
    remaining: Callable[[], Sequence[object]], what: str, timeout_s: float = 60.0
) -> None:
    """Wait until nothing remains; say what does where the time is over."""
    with suppress(WaitedTooLongError):
        wait_until(lambda: not remaining(), what, timeout_s)
    assert not (last := remaining()), f"{what} after {timeout_s:g} s: {last}"


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Wait for a condition, looking often, but for a quarter of the time at most.

    The rest of it is the run's that is waited for: the tests share two cores with it.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.thread_time()
        if condition():
            return
        if time.monotonic() >= deadline:
            raise WaitedTooLongError(f"waited {timeout_s:g} s for {what}")
        time.sleep(max(0.002, 3 * (time.thread_time() - began)))


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
    return Path(shutil.copytree(PROJECT, root, ignore=shutil.ignore_patterns("__pycache__")))


def put_back(kept: Path, place: Path) -> Path:
    """Copy a project with a session over what a test left of it, for a session names its files."""
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(kept, place))


def build_disk_full(folder: Path, compiler: str) -> Path:
    """Compile the library that makes a folder's disk full."""
    library, source = Path("disk_full.so"), Path("disk_full.c")
    shutil.copy(Path(__file__).with_name(source.name), folder)
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    build(command, folder)
    return folder / library


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
