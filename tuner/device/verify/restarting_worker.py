"""The process that runs candidate code, on whatever device: who may die, and is replaced then."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from platformdirs import user_cache_path

from tuner.device.base import Program
from tuner.device.layout import Arena, Patch
from tuner.device.timing import TimingPolicy
from tuner.model.errors import DeviceError, WorkerError
from tuner.model.surroundings import Surroundings
from tuner.model.trial import Measurement, Status
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError

if TYPE_CHECKING:
    from filelock import FileLock


class RunFailedError(Exception):
    """A program did not end as it should; the worker works again, or will when it is asked.

    `killed` says that SIGKILL ended its process, which whoever is short of memory may have sent:
    the program is to blame only if that happens again.
    """

    def __init__(self, status: Status, reason: str, *, killed: bool = False) -> None:
        super().__init__(reason)
        self.status, self.killed = status, killed


class Killable(Protocol):
    def kill(self) -> None: ...


Rows = Sequence[tuple[float, ...]]
# Called with the result of a program's last timed call on one variant of its inputs in the arena,
# for both: the program's index, the variant, and whether timed calls on the same inputs left the
# same bits of all outputs that have to be deterministic.
Judge = Callable[[int, int, bool], None]
_W = TypeVar("_W", bound=Killable)


class RestartingWorker(ABC, Generic[_W]):
    """Run candidate code in a process that may die; raise `RunFailedError` where a program fails.

    The process has the verifier's memory mapped. One that died or gave no answer costs the program
    that it ran; it is replaced when the next one is asked for, and maps the memory again.
    """

    # What a reason calls the worker.
    _called: str
    # Whether arrays get pages of their own, which the worker closes and protects.
    by_pages: ClassVar[bool] = False
    # What the clock varies by.
    noise_us: float = 0.0

    def __init__(self) -> None:
        self._worker: _W | None = None
        self._arena: Arena | None = None
        self._surroundings: Surroundings | None = None
        self._attached = False
        self._closed = False

    def orders(self) -> Iterator[int]:
        """Yield the orders of the runs that check one program."""
        return count()

    @abstractmethod
    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        """Run the program on the arena; return what to say of this run where its result is wrong.

        `order` is that of blocks and threads where the hardware leaves a choice: 0 ascending, 1
        descending, else the seed of a random one. `nan` says whether what the program has yet to
        write may hold NaN.
        """

    @abstractmethod
    def time(
        self,
        program: Program,
        policy: TimingPolicy,
        incumbent_us: float | None,
        patch: Patch,
        judge: Judge,
    ) -> Measurement:
        """Time the program on both variants of its inputs, then let the results be judged."""

    @abstractmethod
    def rerun(self, program: Program) -> None:
        """Run it as when it was timed, on what the arena holds now; leave one result there.

        Nothing that the program can observe may tell this from being timed.
        """

    @abstractmethod
    def compare(
        self, programs: Sequence[Program], rounds: int, patch: Patch, judge: Judge | None
    ) -> Rows:
        """Time programs interleaved, in microseconds: a row a round, in the programs' order.

        Then let the results of each program be judged, unless there is no judge.
        """

    def alone_us(self, programs: Sequence[Program]) -> tuple[float, ...]:
        """Time programs without their neighbours, interleaved; medians, or () where none differ."""
        return ()

    def isolated_us(self, programs: Sequence[Program]) -> tuple[float | None, ...]:
        """Time those with programmatic dependent launch without it; None for the others."""
        return tuple(None for _ in programs)

    def attach(self, arena: Arena, surroundings: Surroundings | None = None) -> None:
        """Map the verifier's memory, unless it is mapped already; what was mapped is let go.

        `surroundings` are those of the workload whose memory it is.
        """
        if self._arena is not arena:
            if self._attached and self._arena is not None and arena.shares(self._arena):
                try:
                    self._fit(self._live_worker(), arena)
                except (ChildTimeoutError, ChildDiedError, WorkerError):
                    self._drop_worker()  # nothing ran in it: another one maps the memory
            else:
                self.detach()
            self._arena, self._surroundings = arena, surroundings
        with self._blamed_on_the_program():
            self._ready_worker()

    def detach(self) -> None:
        """Let go of the verifier's memory."""
        if self._worker is not None and self._attached:
            try:
                self._unmap(self._worker)
            except (ChildTimeoutError, ChildDiedError, WorkerError):
                self._drop_worker()  # nothing ran in it: the next program is not to blame
        self._attached, self._arena = False, None

    def start_afresh(self) -> None:
        """End the process: whatever a program did to it is gone when the next one runs."""
        self._drop_worker()

    def close(self) -> None:
        """End the process, with it whatever runs; what another thread asks for then fails."""
        self._closed = True
        self._drop_worker()

    @abstractmethod
    def _start(self) -> _W: ...

    @abstractmethod
    def _map(self, worker: _W, arena: Arena) -> None: ...

    def _fit(self, worker: _W, arena: Arena) -> None:
        """Take another layout of what is mapped."""
        self._map(worker, arena)

    @abstractmethod
    def _unmap(self, worker: _W) -> None: ...

    @abstractmethod
    def _blame_own_failures(self) -> AbstractContextManager[None]: ...

    @contextmanager
    def _blamed_on_the_program(self) -> Iterator[None]:
        try:
            with self._blame_own_failures():
                yield
        except ChildTimeoutError as error:
            self._drop_worker()
            raise RunFailedError(Status.TIMEOUT, str(error)) from error
        except ChildDiedError as error:
            self._drop_worker()
            reason = f"{self._called} died (exit code {error})"
            raise RunFailedError(Status.LAUNCH, reason, killed=error.killed) from error

    def _ready_worker(self) -> _W:
        worker = self._live_worker()
        if self._arena is not None and not self._attached:
            try:
                self._map(worker, self._arena)
            except (ChildDiedError, WorkerError):
                self._drop_worker()
                raise
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


class ChildRunner(RestartingWorker[Child]):
    """A worker that is an object in a process of ours, whose methods are called by their names."""

    run_timeout_s: float
    judged: ClassVar[int]

    def ask(self, method: str, *arguments: Any, timeout_s: float, **options: Any) -> Any:
        """Have the worker do something with the program that is blamed where it fails."""
        with self._blamed_on_the_program():
            return self._ready_worker().call(method, *arguments, timeout_s=timeout_s, **options)

    def ask_and_judge(
        self, judge: Judge | None, count: int, method: str, *arguments: Any, timeout_s: float
    ) -> Any:
        """Have it time so many programs, then show what each one's last calls left.

        Of each program there are up to `judged` results to show, each with the variant of the
        inputs that its call met.
        """
        with self._blamed_on_the_program():
            worker = self._ready_worker()
            answer = worker.call(method, *arguments, timeout_s=timeout_s)
            for index in range(count if judge else 0):
                for place in range(self.judged):
                    shown = worker.call("show", index, place, timeout_s=self.run_timeout_s)
                    if judge is not None and shown is not None:
                        judge(index, *shown)
        return answer

    def _fit(self, worker: Child, arena: Arena) -> None:
        worker.call("fit", arena.layout, timeout_s=self.run_timeout_s)

    def _unmap(self, worker: Child) -> None:
        worker.call("detach", timeout_s=self.run_timeout_s)


@contextmanager
def raise_worker_errors(
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


def lock_gpu(identity: str, gpu: str, options: str) -> FileLock:
    """Keep other runs off a GPU; raise `DeviceError` where one uses it already."""
    from filelock import FileLock, Timeout  # which imports asyncio

    folder = user_cache_path("kernel-tune", ensure_exists=True)
    # Several GPUs are opened by threads that end before the lock is given back.
    lock = FileLock(folder / f"{identity}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DeviceError(
            f"{gpu} is in use by another `tune`",
            remedy=f"wait for it, or choose another GPU with {options}; two runs on one GPU would "
            "spoil each other's times",
        ) from error
    return lock
