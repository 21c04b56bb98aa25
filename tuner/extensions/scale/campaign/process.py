"""The process of a job: its log, its progress, and its end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tuner.app.progress_lines import VARIABLE, read_line
from tuner.model.progress import RunProgress
from tuner.process.files import open_log

# Of a log's end: an error message is a few lines.
_TAIL_BYTES = 8192
_READ_BYTES = 1 << 16
_ENDING_S = 0.05


class JobProcess:
    """A command whose words go to a log and whose progress is read from a pipe.

    It has a session of its own: Ctrl-C in a terminal reaches it only where it is stopped.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.progress: RunProgress | None = None
        self.silent = False
        self._unread = b""
        self._log = log
        self.pipe, theirs = os.pipe()
        os.set_blocking(self.pipe, False)
        try:
            with open_log(log) as words:
                self._said_before = words.tell()
                self._process = subprocess.Popen(  # noqa: S603 - this Python
                    command,
                    env={**os.environ, **environment, VARIABLE: str(theirs)},
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=words,
                    pass_fds=(theirs,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self.pipe)
            raise
        finally:
            os.close(theirs)

    def read(self) -> None:
        """Read the progress that the process has written since."""
        while not self.silent:
            try:
                content = os.read(self.pipe, _READ_BYTES)
            except BlockingIOError:
                return
            *lines, self._unread = (self._unread + content).split(b"\n")
            for told in map(read_line, lines):
                self.progress = told or self.progress
            self.silent = not content

    def ended(self) -> int | None:
        """Return the exit code, a signal's as a negative number; None while it runs."""
        if not self.silent:
            return self._process.poll()
        # It has closed its pipe, and so most likely ends.
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_ENDING_S)
        return None

    def stop(self) -> None:
        """Ask it to end as Ctrl-C does."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Read the last progress of a process that has ended, and close its pipe."""
        self.read()
        os.close(self.pipe)

    def error(self) -> str:
        """Return the error that it ended with, in one line; "" for none."""
        errors = [line for line in self._last_lines() if line.startswith("Error: ")]
        return errors[-1].removeprefix("Error: ") if errors else ""

    def last_words(self) -> str:
        """Return the error that it ended with, or else its last line; "" for none."""
        return self.error() or (self._last_lines() or [""])[-1].strip()

    def _last_lines(self) -> list[str]:
        with suppress(OSError), self._log.open("rb") as file:  # somebody may have deleted it
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._said_before, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").rstrip().splitlines()
        return []


def wait_for_any(processes: Sequence[JobProcess], timeout_s: float) -> None:
    """Wait until one of them tells something or closes its pipe, or for the time; read them all."""
    telling = [one.pipe for one in processes if not one.silent]
    select.select(telling, (), (), timeout_s)
    for one in processes:
        one.read()


def how_it_ended(code: int) -> str:
    """Say what an exit code means, for a job without words of its own."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
