"""A few processes that share a list of tasks."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self, TypeVar

from tuner.model.errors import TunerError, WorkerError

Task = TypeVar("Task")
# Spawned, not forked: a strategy of Kernel Tuner may have left a thread here.
_CONTEXT = multiprocessing.get_context("spawn")


class Crew:
    """Hold `count` processes with a handler each; leaving ends them, whatever they do."""

    def __init__(self, factory: Callable[..., Any], arguments: tuple[Any, ...], count: int) -> None:
        self._members: list[tuple[Any, Connection]] = []
        try:
            for number in range(count):
                ours, theirs = _CONTEXT.Pipe()
                process = _CONTEXT.Process(
                    target=_serve,
                    args=(theirs, factory, arguments),
                    name=f"compare:{number}",
                    daemon=True,
                )
                process.start()
                theirs.close()  # so that its end is heard of here
                self._members.append((process, ours))
        except BaseException:
            self.close()
            raise

    def map(self, method: str, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        """Call the handlers' method for every task; results come as they are ready.

        Raises what a handler raised, and `WorkerError` where a process ends.
        """
        left = iter(tasks)
        busy: dict[Connection, Task] = {}
        idle = [connection for _, connection in self._members]
        while True:
            # `idle` stands first: what `zip` takes from the first and cannot pair is lost.
            for connection, task in zip(idle, left, strict=False):
                self._send(connection, (method, task))
                busy[connection] = task
            if not busy:
                return
            connection = next(one for one in wait(list(busy)) if isinstance(one, Connection))
            result = self._receive(connection)
            idle = [connection]
            yield busy.pop(connection), result

    def close(self) -> None:
        """End the processes at once."""
        for process, connection in self._members:
            process.kill()
            process.join()
            connection.close()
        self._members = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, connection: Connection, request: tuple[str, object]) -> None:
        try:
            connection.send(request)
        except OSError as error:
            raise self._ended(connection) from error

    def _receive(self, connection: Connection) -> Any:
        try:
            kind, value = connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended(connection) from error
        if kind == "raise":
            raise value
        return value

    def _ended(self, connection: Connection) -> WorkerError:
        (process,) = (process for process, one in self._members if one is connection)
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        why = "was killed, which a lack of memory may do" if killed else "died"
        return WorkerError(f"a process of the comparison {why}", remedy="try fewer --jobs")


def _serve(connection: Connection, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    handler = factory(*arguments)
    while True:
        try:
            method, task = connection.recv()
            connection.send(_answer(handler, method, task))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent is gone


def _answer(handler: Any, method: str, task: object) -> tuple[str, Any]:
    try:
        return "value", getattr(handler, method)(task)
    except TunerError as error:
        return "raise", error
    except Exception:  # noqa: BLE001 - the traceback must reach the parent, whatever it is
        told = f"in a process of the comparison:\n{traceback.format_exc()}"
        return "raise", WorkerError(told)
