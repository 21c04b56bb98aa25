"""Code of a user's file in a process of its own, which it may stop, end or fill."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tuner.device.reference import limit_time, line_in
from tuner.model.errors import KernelError
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError
from tuner.process.confinement import be_quiet, limit_process

# Beyond the time that a call may compute: then the process is ended from outside.
GRACE_S, MOST_BYTES = 5.0, 4 << 30
_SMALLER = "tune runs it with its own sizes and others: let it do no more than compute"


class BoundedProcess:
    """Call an object of ours that runs the code of the file at `path`; close it at the end.

    Whatever that does to its process is one `KernelError`, and what it prints is lost. What it has
    started ends with it, unless that left its session.
    """

    def __init__(
        self,
        path: Path,
        factory: Callable[..., Any],
        *arguments: Any,
        limit_s: float,
        most_bytes: int = MOST_BYTES,
        ahead: str = "",
    ) -> None:
        self._path, self._limit_s, self._most_bytes = path, limit_s, most_bytes
        self._make: tuple[Any, ...] = (factory, *arguments)
        self._child = Child(_Bounded, (path, most_bytes, ahead), "tune-reference", wait=False)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object, which the first call makes."""
        with self._blame_file():
            if self._make:
                self._child.wait_ready()
                self._call("make", *self._make)
                self._make = ()
            return self._call("call", method, *arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        within_s = self._limit_s
        return self._child.call(method, within_s, *arguments, timeout_s=within_s + GRACE_S)

    def close(self) -> None:
        self._child.kill()

    @contextmanager
    def _blame_file(self) -> Iterator[None]:
        try:
            yield
        except ChildTimeoutError as error:
            message = f"computes for over {self._limit_s:g} s"
            raise KernelError(message, path=self._path, remedy=_SMALLER) from error
        except ChildDiedError as error:
            message = f"ends the process that runs it (exit code {error})"
            raise KernelError(message, path=self._path, remedy=_SMALLER) from error
        except MemoryError as error:
            raise _too_large(self._path, self._most_bytes, None) from error


class _Bounded:
    """What is in the process: it gives up what the file does not need."""

    def __init__(self, path: Path, most_bytes: int, ahead: str) -> None:
        self._path, self._most_bytes, self._made = path, most_bytes, None
        limit_process(most_bytes)
        be_quiet()
        os.register_at_fork(after_in_child=partial(os._exit, 1))  # it would go on as this one does
        # An exception has a line, an end has none.
        os._exit = sys.exit  # type: ignore[assignment]
        with suppress(ImportError):  # whose import takes its time
            import_module(ahead or __name__)

    def make(self, limit_s: float, factory: Callable[..., Any], *arguments: Any) -> None:
        self._made = self._run(limit_s, factory, arguments)

    def call(self, limit_s: float, method: str, *arguments: Any) -> Any:
        return self._run(limit_s, getattr(self._made, method), arguments)

    def _run(self, limit_s: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            with limit_time(self._path, limit_s):
                return function(*arguments)
        except MemoryError as error:
            raise _too_large(self._path, self._most_bytes, line_in(self._path, error)) from error
        except KeyboardInterrupt as error:  # of the file: Ctrl-C does not reach this process
            raise KernelError("raises KeyboardInterrupt", path=self._path) from error


def _too_large(path: Path, most_bytes: int, line: int | None) -> KernelError:
    message = f"takes more than {most_bytes / (1 << 30):.3g} GiB of memory"
    return KernelError(message, path=path, line=line, remedy=_SMALLER)
