"""The system's g++: found, asked about itself, and run with limits and an empty environment."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from functools import cached_property
from pathlib import Path

from tuner.errors import DeviceError

MAX_MEMORY_BYTES = 4 << 30
MAX_FILE_BYTES = 256 << 20

# SIGKILL may come from outside, from a system that is short of memory say: a command that was
# killed is run again, up to this many times in all.
MOST_RUNS = 4

_SEARCHED = re.compile(r"search starts here:\n(.*?)End of search list", re.DOTALL)
# A shell sets the limits: between fork and exec no code of ours may run in a threaded process.
_LIMITED = 'ulimit -v "$1" && ulimit -f "$2" && ulimit -t "$3" && shift 3 && exec "$@"'


# What g++ says when SIGKILL ended one of the programs that it starts.
_KILLED = re.compile(
    r"^(?:g\+\+|collect2): (?:fatal )?error: "
    r"(?:Killed signal terminated program \w|\w+ terminated with signal 9\b)",
    re.MULTILINE,
)


class ToolError(Exception):
    """Report that g++ failed; `log` is what it said.

    `lasting`: it would fail again. `killed`: SIGKILL ended it, or what it started.
    """

    def __init__(
        self, log: str, *, timed_out: bool = False, lasting: bool = False, killed: bool = False
    ) -> None:
        super().__init__(log)
        self.log, self.timed_out, self.lasting, self.killed = log, timed_out, lasting, killed


class Gxx:
    """Run g++; raises `DeviceError` where there is none."""

    def __init__(self) -> None:
        found = shutil.which("g++")
        if found is None:
            raise DeviceError(
                "the `host` device needs g++, which is not installed",
                remedy="install it (Debian and Ubuntu: apt install g++)",
            )
        self._path = found
        self._environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    @cached_property
    def version(self) -> str:
        """Name and version, `g++ 12.2.0`."""
        return f"g++ {self._ask('-dumpfullversion').strip()}"

    @cached_property
    def include_dirs(self) -> tuple[Path, ...]:
        """The folders of its own and the system's headers."""
        told = self._ask("-E", "-v", "-x", "c++", "/dev/null")
        return tuple(
            Path(line.strip()).resolve()
            for part in _SEARCHED.findall(told)
            for line in part.splitlines()
            if line.startswith(" ")
        )

    def library(self, name: str) -> str | None:
        """Return the path of a library that comes with it, or None."""
        path = self._ask(f"-print-file-name={name}").strip()
        return path if Path(path).is_absolute() else None

    def run(self, options: list[str], folder: Path, deadline: float) -> bytes:
        """Run it in `folder` until `deadline` of `time.perf_counter`; return its output.

        It is run again when it was killed, which neither it nor the source may be to blame for.
        """
        for _ in range(MOST_RUNS - 1):
            try:
                return self._run(options, folder, deadline)
            except ToolError as error:
                if not error.killed:
                    raise
        return self._run(options, folder, deadline)

    def _run(self, options: list[str], folder: Path, deadline: float) -> bytes:
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
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._environment, "TMPDIR": str(folder)},
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, log = process.communicate(timeout=left)
        except subprocess.TimeoutExpired as error:
            _kill(process)
            process.communicate()
            raise ToolError("", timed_out=True) from error
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode != 0:
            text = log.decode(errors="replace")
            if process.returncode == -signal.SIGKILL or _KILLED.search(text):
                raise ToolError(text, killed=True)
            raise ToolError(text, lasting=": error: " in text)
        return output

    def close(self) -> None:
        """Kill what runs; nothing can be run afterwards."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _kill(process)

    def _ask(self, *options: str) -> str:
        command = [self._path, *options]
        answer = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=30, env=self._environment, check=False
        )
        return answer.stdout + (answer.stderr if "-v" in options else "")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
