"""Code of a user's file, such as a reference, in a process of its own that it may end or fill."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from tuner.device.encoding import Array, storage_dtype
from tuner.device.layout import lay_out
from tuner.device.reference import LIMIT_S, limit_time, line_in
from tuner.device.verify.shared_memory import available_bytes
from tuner.device.verify.telling import TellingVerifier
from tuner.device.verify.verifier import HostMemory
from tuner.model.errors import KernelError, TooSlow
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Correctness
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
            raise TooSlow(message, path=self._path, remedy=_SMALLER) from error
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


class ReferenceProcess:
    """Draw inputs and judge outputs by a reference that may stop, end or fill its process.

    All raise `KernelError` for what it does. Close it at the end.
    """

    def __init__(self, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        # A right one may need much: only that something is left for others is asked of it.
        most = max(MOST_BYTES, (available_bytes() or 0) // 2)
        self._process = BoundedProcess(
            *(spec.reference, _Judge, spec, dict(operators)),
            limit_s=LIMIT_S,
            most_bytes=most,
            ahead=__name__,
        )

    def draw(self, workload: Workload, kind: str, seed: int) -> dict[str, Array]:
        """Draw what every array holds: inputs as the file says, the rest is poison."""
        return cast("dict[str, Array]", self._process.call("draw", workload, kind, seed))

    def judge(
        self, workload: Workload, kind: str, seed: int, left: Mapping[str, Array]
    ) -> Correctness:
        """Compare what a run left of the inputs drawn so with the reference."""
        return cast("Correctness", self._process.call("judge", workload, kind, seed, left))

    def require_telling(self) -> None:
        """Raise `KernelError` where an input changes nothing, or nothing changes an output."""
        self._process.call("require_telling")

    def close(self) -> None:
        self._process.close()


class _Judge(TellingVerifier):
    def __init__(self, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        super().__init__(HostMemory(), spec, operators)

    def draw(self, workload: Workload, kind: str, seed: int) -> dict[str, Array]:
        if workload != self._workload:
            self.open_arena(workload, lay_out(self._spec, workload.values))
        self.prepare(workload, kind, seed)
        return {
            slot.name: self._bytes(slot).view(storage_dtype(slot.dtype)).copy()
            for slot in self._layout.slots
        }

    def judge(
        self, workload: Workload, kind: str, seed: int, left: Mapping[str, Array]
    ) -> Correctness:
        self.draw(workload, kind, seed)
        for slot in self._layout.slots:
            if slot.name in left:
                self._bytes(slot)[...] = left[slot.name].view(np.uint8)
        return self.check()
