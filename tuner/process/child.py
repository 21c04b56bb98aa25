"""A child process that answers one request at a time and may be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tuner.model.errors import TunerError

_CONTEXT = multiprocessing.get_context("spawn")
START_TIMEOUT_S = 120.0
# Where there are cores to spare for it.
AWAKE_S = 2e-3 if len(os.sched_getaffinity(0)) >= 8 else 0.0


class ChildDiedError(Exception):
    """The process ended without an answer; the argument is its exit code."""

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it, which whoever is short of memory may have sent."""
        return self.args == (-signal.SIGKILL,)


class ChildTimeoutError(Exception):
    """The process gave no answer in time and was killed."""


class Child:
    """Run `factory(*arguments)` in a process of its own and call its methods from here.

    The process is spawned, not forked: a CUDA context does not survive a fork. Exceptions of the
    handler are raised here again when they are `TunerError`s or a `MemoryError`; anything else is
    a `TunerError` with the child's traceback.
    """

    def __init__(self, factory: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> None:
        self._busy = True
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_serve, args=(theirs, factory, arguments), name=name, daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            self.receive(START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    def call(self, method: str, *arguments: Any, timeout_s: float, **options: Any) -> Any:
        """Send a request and wait for its answer."""
        self.send(method, *arguments, **options)
        return self.receive(timeout_s)

    def send(self, method: str, *arguments: Any, **options: Any) -> None:
        """Send a request without waiting; `receive` must follow before the next one."""
        self._busy = True
        try:
            self._connection.send((method, arguments, options))
        except OSError as error:  # a broken pipe, or one that `kill` closed
            raise ChildDiedError(self._exit_code()) from error

    def receive(self, timeout_s: float) -> Any:
        """Wait for the answer to the last request; a late one kills the process."""
        try:
            if not _awaited(self._connection, timeout_s):
                self.kill()
                raise ChildTimeoutError(f"no answer within {timeout_s:g} s")
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:  # OSError: it ended in the middle of its answer
            raise ChildDiedError(self._exit_code()) from error
        self._busy = False
        if kind == "raise":
            raise value
        return value

    def leave(self, timeout_s: float) -> None:
        """Let the process end by itself, so that its libraries clean up; one at work is killed."""
        if not self._busy:
            self._connection.close()
            self._process.join(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End the process at once; a kernel that never ends goes with it."""
        # The pipe last: another thread may be waiting for an answer, and is told by its end.
        self._process.kill()
        self._process.join(10.0)
        self._connection.close()

    def _exit_code(self) -> int | None:
        self._process.join(5.0)
        return self._process.exitcode


def _serve(connection: Connection, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    handler: Any = None
    request: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
    answer: tuple[str, Any]
    while True:
        try:
            if handler is None:
                handler = factory(*arguments)
                answer = ("value", None)
            else:
                assert request is not None
                answer = ("value", getattr(handler, request[0])(*request[1], **request[2]))
        except TunerError as error:
            answer = ("raise", error)
        except MemoryError as error:  # NumPy's and CuPy's are subclasses, known here only
            answer = ("raise", MemoryError(str(error)))
        except Exception:  # noqa: BLE001 - the traceback must reach the parent, whatever it is
            answer = ("raise", TunerError(f"in a worker process:\n{traceback.format_exc()}"))
        try:
            connection.send(answer)
            if handler is None:
                return
            _awaited(connection, None)
            request = connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _awaited(connection: Connection, timeout_s: float | None) -> bool:
    """Wait for a message, at first awake: to be woken takes longer than most answers."""
    ends_s = time.perf_counter() + AWAKE_S
    while time.perf_counter() < ends_s:
        if connection.poll(0.0):
            return True
    return connection.poll(timeout_s)


def _end_with_parent() -> None:
    """Kill this process when the parent is gone: a kernel that never ends would hold the GPU."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)
