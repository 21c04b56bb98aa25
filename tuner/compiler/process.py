"""The parent's side of one worker process: start, send, receive without blocking, kill."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.compiler.wire import READ_BYTES, Message, Unpacker, packed

# The package's folder goes last: where tuner is installed it is found as usual.
_START = (
    "import sys; sys.path.append(sys.argv.pop()); from tuner.compiler.worker import main; main()"
)
# Beside a driver NVRTC keeps results of its own, and on a hit the log lacks ptxas's report.
_WITHOUT_OWN_CACHE = {"CUDA_CACHE_DISABLE": "1"}
# Where Python and CUDA are; the rest of the environment may hold keys.
_VARIABLES = re.compile(
    r"PATH|HOME|LANG|LC_\w+|LD_LIBRARY_PATH|PYTHON\w+|CUDA_\w+|CONDA_PREFIX|TMPDIR"
)
MAX_LAST_WORDS = 65_536
_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[2])


class WorkerProcess:
    """A compiling process with its own scratch folder; ready once its first message came."""

    def __init__(self, cache_dir: Path, deadline: float) -> None:
        self.ready = False
        self.job: Any = None
        self.deadline: float | None = deadline
        self._scratch = Path(tempfile.mkdtemp(prefix="tuner-compiler-"))
        (self._scratch / "empty").mkdir()
        self._unpacker = Unpacker()
        self._outgoing = bytearray()
        self._diagnosis = tempfile.TemporaryFile()  # noqa: SIM115
        self.socket, theirs = socket.socketpair()
        arguments = (cache_dir, self._scratch, _PACKAGE_FOLDER)
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-P", "-c", _START, *map(str, arguments)],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._diagnosis,
                    env=_environment(),
                    start_new_session=True,
                )
        except OSError:
            self._clean_up()
            raise
        self.socket.setblocking(False)

    @property
    def has_outgoing(self) -> bool:
        """Whether `flush` has more to write."""
        return bool(self._outgoing)

    def send(self, content: dict[str, Any], job: Any, deadline: float) -> None:
        """Queue the request of `job`, to be answered by `deadline`; `flush` does the writing."""
        self.job = job
        self.deadline = deadline
        self._outgoing += packed(content)

    def flush(self) -> None:
        """Write as much as the process takes now."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._outgoing:
                del self._outgoing[: self.socket.send(self._outgoing)]

    def receive(self) -> Iterator[Message] | None:
        """Read what came and yield complete messages; None when the process has ended."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return iter(())
        except ConnectionResetError:
            return None
        try:
            return iter([*self._unpacker.feed(data)]) if data else None
        except ValueError:
            return None  # no message of a worker: it is ended like one that died

    def last_words(self) -> str:
        """Return the last line that the process wrote to its standard error."""
        size = self._diagnosis.seek(0, os.SEEK_END)
        self._diagnosis.seek(max(size - MAX_LAST_WORDS, 0))
        text = self._diagnosis.read().decode(errors="replace")
        return text.strip().rpartition("\n")[2]

    def stop(self) -> int:
        """Kill the process with all it started; return its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._clean_up()
        return status

    def _clean_up(self) -> None:
        self.socket.close()
        self._diagnosis.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    return {**kept, **_WITHOUT_OWN_CACHE}
