"""A few child processes, started as they are needed, that share a queue of tasks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from itertools import chain
from operator import methodcaller
from typing import Any, Generic, Self, TypeVar

from tuner.model.errors import TunerError, WorkerError
from tuner.process.child import Child, ChildDiedError, ChildProcess

_LOG = logging.getLogger(__name__)
# SIGKILL may come from outside, from a system that is short of memory say: neither a task nor the
# installation is to blame before it has come this often.
MAX_KILLS = 3
MAX_KILLS_AT_START = 8  # one after the other, with no start between
# Processes that are started before they are needed, and that may be starting at the same time. It
# is more than one GPU can use where a kernel compiles fast; dozens more slow down the first.
AHEAD = 16


_M = TypeVar("_M", bound=ChildProcess)
_T = TypeVar("_T")
_R = TypeVar("_R")


class _Task(Generic[_M]):
    def __init__(self, work: Callable[[_M], Any], topic: object) -> None:
        self.work, self.topic, self.kills = work, topic, 0
        self.future: Future[Any] = Future()


def workers_to_start(ready: int, starting: int, waiting: int, most: int, ahead: int) -> int:
    """Count the workers to start now: some ahead of need, further ones for tasks that wait.

    All that are ready are at work where a task waits; one that is starting will take one.
    """
    wanted = min(max(ahead, ready + waiting), most, ready + AHEAD)
    return max(0, wanted - ready - starting)


class ProcessPool(Generic[_M]):
    """Run tasks in up to `most` processes, each held by a thread; first come, first served.

    `start` starts a process without waiting for it. A task whose process is killed from outside is
    done again by another. Where no process can be started, every future raises what `failed` makes
    of the reason.
    """

    def __init__(
        self, start: Callable[[], _M], most: int, failed: Callable[[Exception], TunerError]
    ) -> None:
        self._start, self._most, self._failed = start, most, failed
        self._changed = threading.Condition()
        self._waiting: deque[_Task[_M]] = deque()
        self._running: set[_Task[_M]] = set()
        self._threads: set[threading.Thread] = set()
        self._members: list[_M] = []
        # Who worked last on what.
        self._homes: dict[object, _M] = {}
        self._ready = 0
        self._ahead = 0
        self._kills_at_start = 0
        self._any_ready = False
        self._error: TunerError | None = None
        self._closed = False

    def submit(
        self, work: Callable[[_M], _R], *, ahead: int = AHEAD, topic: object = None
    ) -> Future[_R]:
        """Queue a task, and start up to `ahead` processes for those that may follow.

        Whoever did one of the same `topic` takes this one before those that came earlier.
        """
        task = _Task(work, topic)
        with self._changed:
            self.require_usable()
            self._ahead = max(self._ahead, ahead)
            self._waiting.append(task)
            self._grow()
            self._changed.notify()
        return task.future

    def require_usable(self) -> None:
        """Raise the error that ended the pool, if one did."""
        if self._error is not None:
            raise self._error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the processes that are at work for as long as a block takes."""
        with self._changed:
            members = list(self._members)
        try:
            for member in members:
                member.stop()
            yield
        finally:
            for member in members:
                member.go_on()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._error = self._error or WorkerError("the processes were ended")
            left = self._end()
            members, threads = list(self._members), set(self._threads)
        for member in members:
            member.kill()
        for task in left:
            task.future.cancel()
        for thread in threads - {threading.current_thread()}:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> list[_Task[_M]]:
        left = [*self._waiting, *self._running]
        self._waiting.clear()
        self._running.clear()
        self._changed.notify_all()
        return left

    def _grow(self) -> None:
        if self._error is not None:
            return
        starting = len(self._threads) - self._ready
        waiting = len(self._waiting)
        for _ in range(workers_to_start(self._ready, starting, waiting, self._most, self._ahead)):
            thread = threading.Thread(target=self._live, name="pool", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _live(self) -> None:
        member = self._start_member()
        while member is not None and (task := self._next(member)) is not None:
            self._do(task, member)
        if member is not None:
            member.kill()
        with self._changed:
            if member is not None:
                self._members.remove(member)
                self._homes = {
                    topic: who for topic, who in self._homes.items() if who is not member
                }
                self._ready -= 1
            self._threads.discard(threading.current_thread())
            self._grow()

    def _start_member(self) -> _M | None:
        while self._error is None:
            member = None
            try:
                member = self._start()
                with self._changed:
                    self._members.append(member)
                    if self._closed:  # which has not seen this one
                        member.kill()
                member.wait_ready()
            except Exception as error:  # noqa: BLE001 - whoever waits for a task is told
                if member is not None:
                    member.kill()
                    with self._changed:
                        self._members.remove(member)
                if not self._start_again(error):
                    return None
            else:
                with self._changed:
                    self._ready += 1
                    self._any_ready, self._kills_at_start = True, 0
                return member
        return None

    def _start_again(self, error: Exception) -> bool:
        """Whether another attempt to start may go better; note it where this one was the last."""
        with self._changed:
            if isinstance(error, ChildDiedError) and error.killed:
                self._kills_at_start += 1
                if self._kills_at_start < MAX_KILLS_AT_START:
                    return True
            self._most -= 1
            if self._most and (self._any_ready or len(self._threads) > 1):
                # Others do start, or may: memory is short, say, and fewer of them will do.
                _LOG.info("a process did not start: %s", error)
                return False
            self._error = self._error or self._failed(error)
            left = self._end()
        for task in left:
            settle(task.future, self._error)
        return False

    def _next(self, member: _M) -> _Task[_M] | None:
        with self._changed:
            while True:
                if not member.ended:
                    self._changed.wait_for(lambda: self._waiting or self._error is not None)
                if member.ended or not self._waiting:  # it may end while it has nothing to do
                    self._changed.notify()  # another one, for the task that woke this one
                    return None
                task = self._take_task(member)
                if not task.future.cancelled():
                    self._running.add(task)
                    return task

    def _take_task(self, member: _M) -> _Task[_M]:
        """Take what waits longest of the member's own topics, else of nobody's, else of all."""

        def home(task: _Task[_M]) -> _M | None:
            return self._homes.get(task.topic)

        own = (task for task in self._waiting if home(task) is member)
        new = (task for task in self._waiting if home(task) is None)
        task = next(chain(own, new, self._waiting))
        self._waiting.remove(task)
        if task.topic is not None:
            self._homes[task.topic] = member
        return task

    def _do(self, task: _Task[_M], member: _M) -> None:
        outcome: object
        try:
            outcome = task.work(member)
        except Exception as error:  # noqa: BLE001 - whoever waits for the task is told
            outcome = error
        with self._changed:
            if task not in self._running:
                return
            self._running.remove(task)
            killed = isinstance(outcome, ChildDiedError) and outcome.killed
            task.kills += killed
            if killed and member.ended and task.kills < MAX_KILLS:
                self._waiting.appendleft(task)
                self._changed.notify()
                return
        settle(task.future, outcome)


def settle(future: Future[Any], outcome: object) -> None:
    """Set the result of a future, or the exception, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class ObjectPool(ProcessPool[Child]):
    """Hold an object in each of up to `count` processes."""

    def __init__(self, factory: Callable[..., Any], arguments: tuple[Any, ...], count: int) -> None:
        super().__init__(
            lambda: Child(factory, arguments, "tune-pool", wait=False), count, _explain_end
        )

    def map(self, method: str, tasks: Sequence[_T]) -> Iterator[tuple[_T, Any]]:
        """Call the objects' method for every task; results come as they are ready.

        Raises what a handler raised, and `WorkerError` where a process ends.
        """
        futures = {
            self.submit(methodcaller("call", method, task, timeout_s=None)): task for task in tasks
        }
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except ChildDiedError as error:
                raise _explain_end(error) from error


def _explain_end(error: Exception) -> TunerError:
    if isinstance(error, TunerError):
        return error
    killed = isinstance(error, ChildDiedError) and error.killed
    why = "was killed, which a lack of memory may do" if killed else "died"
    return WorkerError(f"a process of the comparison {why}", remedy="try fewer --jobs")
