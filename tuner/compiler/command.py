"""Programs that compile or measure: where NVIDIA's are, and a run of one with limits."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tuner.process.tally import note_start

MAX_MEMORY_BYTES = 4 << 30
MAX_FILE_BYTES = 256 << 20
_MOST_LOG_BYTES = 16 << 20

# SIGKILL may come from outside, from a system that is short of memory say: a command that was
# killed is run again, up to this many times in all.
MOST_RUNS = 4

# A shell sets the limits: between fork and exec no code of ours may run in a threaded process.
_LIMITED = 'ulimit -v "$1" && ulimit -f "$2" && ulimit -t "$3" && shift 3 && exec "$@"'
# Nsight Compute installs itself there, apart from CUDA.
NSIGHT_FOLDER = Path("/opt/nvidia/nsight-compute")


@dataclass(eq=False)
class ToolError(Exception):
    """The compiler failed; `lasting`: it would again. `killed`: by SIGKILL, or a child was."""

    log: str
    timed_out: bool = False
    lasting: bool = False
    killed: bool = False


class CompilerCommand:
    """Run one program; `killed` matches what it says when SIGKILL ended what it had started."""

    def __init__(self, path: str, killed: re.Pattern[str]) -> None:
        self._path, self._says_killed = path, killed
        self._environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(self, options: list[str], folder: Path, deadline: float) -> bytes:
        """Run it in `folder` until `deadline` of `time.perf_counter`; return its output."""
        for _ in range(MOST_RUNS - 1):
            try:
                return self._run(options, folder, deadline)
            except ToolError as error:
                if not error.killed:
                    raise
        return self._run(options, folder, deadline)

    def _run(self, options: list[str], folder: Path, deadline: float) -> bytes:
        # Files, which are limited: of a pipe all would be kept here, however much it brings.
        with TemporaryFile(dir=folder) as output, TemporaryFile(dir=folder) as log:
            status = self._wait(options, folder, deadline, output, log)
            output.seek(0)
            log.seek(0)
            if status == 0:
                return output.read()
            text = log.read(_MOST_LOG_BYTES).decode(errors="replace")
        if status == -signal.SIGKILL or self._says_killed.search(text):
            raise ToolError(text, killed=True)
        raise ToolError(text, lasting=": error: " in text)

    def _wait(
        self,
        options: list[str],
        folder: Path,
        deadline: float,
        output: IO[bytes],
        log: IO[bytes],
    ) -> int:
        left = max(0.0, deadline - time.perf_counter())
        # In KiB, blocks of 512 bytes, and seconds.
        limits = [MAX_MEMORY_BYTES >> 10, MAX_FILE_BYTES >> 9, int(left) + 2]
        command = ["/bin/sh", "-c", _LIMITED, "sh", *map(str, limits), self._path, *options]
        with self._lock:
            if self._closed:
                raise ToolError("the compiler was closed")
            process = subprocess.Popen(  # noqa: S603
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env={**self._environment, "TMPDIR": str(folder)},
                start_new_session=True,
            )
            self._running.add(process)
        note_start(Path(self._path).name)
        try:
            return process.wait(timeout=left)
        except subprocess.TimeoutExpired as error:
            _kill(process)
            process.wait()
            raise ToolError("", timed_out=True) from error
        finally:
            with self._lock:
                self._running.discard(process)

    def close(self) -> None:
        """Kill what runs; nothing can be run afterwards."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _kill(process)

    def ask(self, *options: str, log: bool = False) -> str:
        """Return what it writes to its standard output, with its `log` if that is wanted."""
        command = [self._path, *options]
        answer = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=30, env=self._environment, check=False
        )
        return answer.stdout + (answer.stderr if log else "")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


PREFIX = "tuner-host-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder and remove it; should this process be killed, `remove_left_behind` does."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):
            lock = _open_folder(folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Between the two it may have been taken for one that was left behind.
            if folder.exists():
                break
            os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_behind() -> None:
    """Remove the folders of processes of this user that were killed: those that nobody locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, in use, or gone meanwhile
            lock = _open_folder(folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def candidates(name: str) -> Iterator[Path]:
    """List where a tool may be: on PATH, in the CUDA that the environment or /usr/local names.

    Then in pip's packages and in Nsight Compute's own folder. Only on PATH is it known to exist.
    """
    if on_path := shutil.which(name):
        yield Path(on_path)
    named = (os.environ.get(variable) for variable in ("CUDA_HOME", "CUDA_PATH"))
    folders = [Path(folder) for folder in named if folder]
    folders += sorted(Path("/usr/local").glob("cuda*"), key=version_of, reverse=True)
    for folder in [*folders, *_from_pip()]:
        yield folder / "bin" / name
        yield folder / name / name
    for folder in sorted(NSIGHT_FOLDER.glob("[0-9]*"), key=version_of, reverse=True):
        yield folder / name


def list_pip_paths(name: str) -> Iterator[Path]:
    """List where a tool of pip's packages may be, the newest first."""
    for folder in _from_pip():
        yield folder / "bin" / name


def executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def version_of(folder: Path) -> tuple[int, ...]:
    """`cuda-13.0` before `cuda-12.9`; `cuda` alone is the system's choice and comes first."""
    if folder.name == "cuda":
        return (1 << 30,)
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def _from_pip() -> list[Path]:
    installed = importlib.util.find_spec("nvidia")
    places = (installed.submodule_search_locations if installed else None) or ()
    folders = [folder for place in places for folder in Path(place).glob("cu[0-9]*")]
    return sorted(folders, key=version_of, reverse=True)
