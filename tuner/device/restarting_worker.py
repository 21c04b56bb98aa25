"""The worker process that runs candidate code, replaced by another when it fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Generic, Protocol, TypeVar

from tuner.device.layout import Arena
from tuner.device.verify.verified_device import RunFailedError
from tuner.model.errors import WorkerError
from tuner.model.trial import Status
from tuner.process.child import ChildDiedError, ChildTimeoutError


class Killable(Protocol):
    """A worker process as its parent holds it."""

    def kill(self) -> None:
        """End the process at once."""
        ...


_W = TypeVar("_W", bound=Killable)


class RestartingWorker(ABC, Generic[_W]):
    """Keep one worker with the judge's memory mapped: what every `Runner` has in common.

    A worker that died or gave no answer costs the program that it ran; it is replaced when the
    next one is asked for, and maps the memory again.
    """

    # What a reason calls the worker.
    _called: ClassVar[str]

    def __init__(self) -> None:
        self._worker: _W | None = None
        self._arena: Arena | None = None
        self._attached = False
        self._closed = False

    def attach(self, arena: Arena) -> None:
        """Map the judge's memory, unless it is mapped already."""
        if self._arena is not arena:
            self.detach()
            self._arena = arena
        with self._blamed_on_the_program():
            self._ready_worker()

    def detach(self) -> None:
        """Let go of the judge's memory."""
        if self._worker is not None and self._attached:
            try:
                self._unmap(self._worker)
            except (ChildTimeoutError, ChildDiedError, WorkerError):
                self._drop_worker()  # nothing ran in it: the next program is not to blame
        self._attached, self._arena = False, None

    def close(self) -> None:
        """End the process, with it whatever runs; what another thread asks for then fails."""
        self._closed = True
        self._drop_worker()

    @abstractmethod
    def _start(self) -> _W:
        """Start a worker; `unless_killed` makes of its failures what they are."""

    @abstractmethod
    def _map(self, worker: _W, arena: Arena) -> None: ...

    @abstractmethod
    def _unmap(self, worker: _W) -> None: ...

    @abstractmethod
    def _own_failures_blamed(self) -> AbstractContextManager[None]:
        """Raise `RunFailedError` in place of the error in which a worker reports a program's."""

    @contextmanager
    def _blamed_on_the_program(self) -> Iterator[None]:
        try:
            with self._own_failures_blamed():
                yield
        except ChildTimeoutError as error:
            self._drop_worker()
            raise RunFailedError(Status.TIMEOUT, str(error)) from error
        except ChildDiedError as error:
            self._drop_worker()
            reason = f"{self._called} died (exit code {error})"
            raise RunFailedError(Status.LAUNCH, reason, killed=error.killed) from error

    def _ready_worker(self) -> _W:
        """Return the worker with the judge's memory mapped; a replaced one maps it again."""
        worker = self._live_worker()
        if self._arena is not None and not self._attached:
            self._map(worker, self._arena)
            self._attached = True
        return worker

    def _live_worker(self) -> _W:
        if self._worker is None:
            if self._closed:
                raise WorkerError(f"{self._called} was ended")
            self._worker = self._start()
        return self._worker

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker, self._attached = None, False


@contextmanager
def unless_killed(
    failed: str, *causes: type[Exception], remedy: str | None = None
) -> Iterator[None]:
    """Raise `WorkerError` where a worker fails, or for one of `causes`, before it runs anything.

    `failed` says what did. One that SIGKILL ended may work when it is tried again: that stays a
    `ChildDiedError`.
    """
    failures: tuple[type[Exception], ...] = (ChildTimeoutError, ChildDiedError, *causes)
    try:
        yield
    except failures as error:
        if isinstance(error, ChildDiedError) and error.killed:
            raise
        raise WorkerError(f"{failed}: {error}", remedy=remedy) from error
