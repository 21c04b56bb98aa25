"""The user's program, started once for each request: JSON to its input, JSON from its output."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from tuner.model.errors import DeviceError
from tuner.process.tally import note_start

# An answer is a few kilobytes; of what goes on and on no more is read than this.
MOST_ANSWER_BYTES = 4 << 20
# Of its standard error so much is kept, and so much of it stands in a reason.
LOG_BYTES, LOG_LETTERS = 4096, 400
# How long a program that is told to end may take, to withdraw what it has queued elsewhere.
GRACE_S = 2.0
# How often it is looked whether a program has ended whose output somebody else holds open.
POLL_S = 0.2

EXAMPLE = "docs/evaluators.md has an example that can be copied"


class CommandFailed(Exception):  # noqa: N818 - what befell it
    """The program gave no answer: it died, took too long (`late`) or said too much."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


class EvaluatorCommand:
    """Start one program for one request, several at once where several threads ask.

    It runs as it was given, without a shell, in the working folder, and in a process group of its
    own, which ends with it when it is too late.
    """

    def __init__(self, text: str) -> None:
        if not text.isprintable():
            raise DeviceError(
                f"the evaluator {text!r} cannot be printed, and so not be kept with a session",
                remedy="write it in one line; a script of yours may do the rest",
            )
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise DeviceError(
                f"the evaluator {text!r} cannot be read: {str(error).lower()}",
                remedy="write it as a shell would take it, --device 'command:./measure.sh \"a b\"'",
            ) from error
        if not self._words:
            raise DeviceError(
                "--device command: names no program",
                remedy=f"name one, as in --device command:./measure.sh; {EXAMPLE}",
            )
        self._lock, self._closed = threading.Lock(), False
        self._running: set[subprocess.Popen[bytes]] = set()

    def ask(self, request: str, timeout_s: float) -> str:
        """Return what the program writes; raise `CommandFailed`, or `DeviceError` without it."""
        with tempfile.TemporaryFile() as question:
            question.write(request.encode())
            question.seek(0)
            process = self._start(question)
            try:
                return self._answer(process, timeout_s)
            finally:
                with self._lock:
                    self._running.discard(process)

    def close(self) -> None:
        """End what is running."""
        with self._lock:
            self._closed, running = True, tuple(self._running)
        _end(*running)

    def _start(self, question: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise CommandFailed("was ended")
            try:
                process = subprocess.Popen(  # noqa: S603 - the user's own program
                    self._words,
                    stdin=question,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                raise DeviceError(
                    f"the evaluator {self._words[0]!r} cannot be started: {error.strerror}",
                    remedy="give its path (./measure.sh), make it executable (chmod +x), and begin "
                    f"it with a line such as #!/bin/sh; {EXAMPLE}",
                ) from error
            self._running.add(process)
        note_start(Path(self._words[0]).name)
        return process

    def _answer(self, process: subprocess.Popen[bytes], timeout_s: float) -> str:
        assert process.stdout is not None
        assert process.stderr is not None
        said, log = bytearray(), bytearray()

        def keep(data: bytes) -> None:
            said.extend(data)
            if len(said) > MOST_ANSWER_BYTES:
                raise CommandFailed(f"wrote over {MOST_ANSWER_BYTES >> 20} MiB")

        def keep_end(data: bytes) -> None:
            log.extend(data)
            del log[:-LOG_BYTES]

        with process.stdout, process.stderr:
            try:
                readers = {process.stdout: keep, process.stderr: keep_end}
                deadline_s = time.monotonic() + timeout_s
                _read(process, readers, deadline_s)
                # It may close its output first, and then take its time to leave a queue.
                status = process.wait(max(0.0, deadline_s - time.monotonic()))
            except (TimeoutError, subprocess.TimeoutExpired):
                _end(process)
                message = f"gave no answer within {timeout_s:g} s and was ended"
                raise CommandFailed(message + _wrote(log), late=True) from None
            except BaseException:
                _end(process)
                raise
        if status:
            raise CommandFailed(_ending(status) + _wrote(log))
        return said.decode(errors="replace")


def _read(
    process: subprocess.Popen[bytes],
    readers: Mapping[IO[bytes], Callable[[bytes], None]],
    deadline_s: float,
) -> None:
    """Read until all ends; raise `TimeoutError` at the deadline."""
    with selectors.DefaultSelector() as ready:
        for stream, keep in readers.items():
            ready.register(stream, selectors.EVENT_READ, keep)
        while ready.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            ended = process.poll() is not None
            found = ready.select(min(left_s, POLL_S))
            for key, _ in found:
                data = os.read(key.fd, 1 << 16)
                if data:
                    key.data(data)
                else:
                    ready.unregister(key.fileobj)
            if ended and not found:
                return  # what it left behind in the background holds its output open


def _end(*processes: subprocess.Popen[bytes]) -> None:
    """Ask them to end, and all that they have started; then make them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        until_s = time.monotonic() + GRACE_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))


def _ending(status: int) -> str:
    if status > 0:
        return f"ended with exit code {status}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


def _wrote(log: bytearray) -> str:
    text = " ".join(log.decode(errors="replace").split())
    text = "".join(letter for letter in text if letter.isprintable())
    return f"; it wrote last: {text[-LOG_LETTERS:]}" if text else ""
