"""The thread that hands requests to worker processes, and kills those that take too long."""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.cache import Cache, cache_key
from tuner.compiler.includes import IncludeDigest, refused_include
from tuner.compiler.process import WorkerProcess
from tuner.compiler.results import compiler_options, result_of
from tuner.errors import WorkerError

_LOG = logging.getLogger(__name__)
# Covers importing the bindings and extracting headers on a slow disk.
START_TIMEOUT_S = 120.0
# SIGKILL may come from outside, from a system that is short of memory say: neither a source nor
# the installation is to blame before it has come this often.
MOST_KILLS = 3
MOST_KILLS_AT_START = 8  # one after the other, with no start between
# Workers that are started before they are needed, and that may be starting at the same time. It is
# more than one GPU can use where a kernel compiles fast; dozens more would slow down the first.
AHEAD = 16


@dataclass(frozen=True, slots=True)
class CompilerInfo:
    """What a worker says of its compiler: a name to show, and all that tells builds apart."""

    version: str
    identity: str


@dataclass(slots=True, eq=False)
class _Job:
    request: CompileRequest
    futures: list[Future[CompileResult]] = field(default_factory=list)
    key: str = ""
    state: str = ""
    kills: int = 0

    @property
    def wanted(self) -> bool:
        return not all(future.cancelled() for future in self.futures)

    def finish(self, result: CompileResult) -> None:
        for future in self.futures:
            if future.set_running_or_notify_cancel():
                future.set_result(result)


def workers_to_start(ready: int, starting: int, waiting: int, most: int) -> int:
    """Count the workers to start now: some ahead of need, further ones for requests that wait.

    All that are ready are at work where a request waits; one that is starting will take one.
    """
    wanted = min(max(AHEAD, ready + waiting), most, ready + AHEAD)
    return max(0, wanted - ready - starting)


class Dispatcher:
    """Own the workers in a thread of its own; other threads `start`, `post` and `stop` it.

    Futures are completed in that thread. `compiler` is known once the first worker is ready.
    """

    def __init__(
        self, *, most_workers: int, timeout_s: float, cache: Cache | None, cache_dir: Path
    ) -> None:
        self.compiler: Future[CompilerInfo] = Future()
        self._most_workers = most_workers
        self._timeout_s = timeout_s
        self._cache = cache
        self._cache_dir = cache_dir
        self._thread = threading.Thread(target=self._run, name="compiler", daemon=True)
        self._lock = threading.Lock()
        self._ended: WorkerError | None = None
        self._closed = False
        self._inbox: deque[tuple[CompileRequest, Future[CompileResult]]] = deque()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._includes = IncludeDigest()
        self._jobs: dict[CompileRequest, _Job] = {}
        self._new: deque[_Job] = deque()
        self._waiting: deque[_Job] = deque()
        self._workers: list[WorkerProcess] = []
        self._begun = False
        self._kills_at_start = 0

    def start(self) -> None:
        """Start the thread, and with it the first worker."""
        self._thread.start()

    def post(self, request: CompileRequest) -> Future[CompileResult]:
        """Queue a request; raise `WorkerError` when the thread has ended."""
        future: Future[CompileResult] = Future()
        with self._lock:
            if self._ended:
                raise self._ended
            self._inbox.append((request, future))
            self._ring()
        return future

    def stop(self) -> None:
        """End the thread: kill what runs and cancel what waits."""
        with self._lock:
            if self._ended is None:
                self._closed = True
                self._ended = WorkerError("the compiler was closed")
                self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._start_worker()
            while self._ended is None:
                self._accept()
                self._assign()
                self._wait()
                self._end_overdue()
        finally:
            self._end()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._bell.send(b"!")

    def _accept(self) -> None:
        while self._inbox:
            request, future = self._inbox.popleft()
            job = self._jobs.get(request)
            if job is None:
                job = self._jobs[request] = _Job(request)
                self._new.append(job)
            job.futures.append(future)
        while self._new and self.compiler.done():
            job = self._new.popleft()
            result = self._without_compiling(job)
            if result is None:
                self._waiting.append(job)
            else:
                self._finish(job, result)

    def _without_compiling(self, job: _Job) -> CompileResult | None:
        request = job.request
        error = refused_include(request.source, request.include_dirs)
        if error:
            return CompileResult(error=error)
        job.state = self._includes.of(request.source, request.include_dirs)
        if self._cache is None:
            return None
        job.key = cache_key(request, self.compiler.result().identity, job.state)
        return self._cache.get(job.key)

    def _assign(self) -> None:
        for worker in self._workers:
            if worker.ready and worker.job is None:
                self._give_next(worker)
        # A search follows the first request, and a worker takes longer to start than to compile.
        if self._waiting or self._begun:
            self._begun = True
            ready = sum(worker.ready for worker in self._workers)
            starting = len(self._workers) - ready
            missing = workers_to_start(ready, starting, len(self._waiting), self._most_workers)
            for _ in range(missing):
                self._start_worker()

    def _give_next(self, worker: WorkerProcess) -> None:
        while self._waiting:
            job = self._waiting.popleft()
            if not job.wanted:
                self._finish(job, CompileResult(error="cancelled"))
                continue
            content = {
                "source": job.request.source,
                "kernels": job.request.kernels,
                "options": compiler_options(job.request),
                "state": job.state,
            }
            worker.send(content, job, time.monotonic() + self._timeout_s)
            self._flush(worker)
            return

    def _start_worker(self) -> None:
        try:
            worker = WorkerProcess(self._cache_dir, time.monotonic() + START_TIMEOUT_S)
        except OSError as error:  # no room for another process, or for its files
            self._failed_to_start(str(error))
            return
        self._workers.append(worker)
        self._selector.register(worker.socket, selectors.EVENT_READ, worker)

    def _wait(self) -> None:
        deadlines = [w.deadline for w in self._workers if w.deadline is not None]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for key, events in self._selector.select(timeout):
            if key.data is None:
                self._ear.recv(4096)
                continue
            if events & selectors.EVENT_WRITE:
                self._flush(key.data)
            if events & selectors.EVENT_READ:
                self._read(key.data)

    def _flush(self, worker: WorkerProcess) -> None:
        worker.flush()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.has_outgoing else 0)
        self._selector.modify(worker.socket, events, worker)

    def _read(self, worker: WorkerProcess) -> None:
        messages = worker.receive()
        if messages is None:
            self._crashed(worker)
            return
        for content, payload in messages:
            if worker.ready:
                self._answered(worker, content, payload)
            else:
                self._started(worker, content)

    def _started(self, worker: WorkerProcess, hello: dict[str, Any]) -> None:
        worker.ready = True
        worker.deadline = None
        self._kills_at_start = 0
        if not self.compiler.done():
            self.compiler.set_result(CompilerInfo(hello["version"], hello["identity"]))

    def _answered(self, worker: WorkerProcess, reply: dict[str, Any], cubin: bytes) -> None:
        job = worker.job
        worker.job = worker.deadline = None
        result = result_of(job.request, reply, cubin)
        # The worker gets its next request before this one is stored.
        self._give_next(worker)
        if self._cache is not None and reply["lasting"]:
            self._cache.put(job.key, result)
        self._finish(job, result)

    def _crashed(self, worker: WorkerProcess) -> None:
        words = worker.last_words()
        status = self._remove(worker)
        if self._forgiven(worker, status):
            return
        if not worker.ready:
            self._failed_to_start(words or f"exit status {status}")
        elif worker.job is not None:
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            error = f"the compiler crashed ({how}) {words}".rstrip()
            self._finish(worker.job, CompileResult(error=error))

    def _forgiven(self, worker: WorkerProcess, status: int) -> bool:
        """Go on as if a worker that was killed had never been, unless that happens too often."""
        if status != -signal.SIGKILL:
            return False
        if not worker.ready:
            self._kills_at_start += 1
            if self._kills_at_start < MOST_KILLS_AT_START:
                self._start_worker()
                return True
        elif worker.job is not None:
            worker.job.kills += 1
            if worker.job.kills < MOST_KILLS:
                self._waiting.appendleft(worker.job)
                return True
        return False

    def _end_overdue(self) -> None:
        now = time.monotonic()
        overdue = [w for w in self._workers if w.deadline is not None and w.deadline <= now]
        for worker in overdue:
            self._remove(worker)
            if worker.job is None:
                self._failed_to_start(f"no answer in {START_TIMEOUT_S:g} s")
                continue
            error = f"compiling took over {self._timeout_s:g} s and was stopped"
            result = CompileResult(error=error, timed_out=True, seconds=self._timeout_s)
            self._finish(worker.job, result)

    def _failed_to_start(self, reason: str) -> None:
        self._most_workers -= 1
        if self.compiler.done() and self._most_workers:
            # Others do start: memory is short, say, and fewer of them will do.
            _LOG.info("a compiler did not start: %s", reason)
            return
        with self._lock:
            self._ended = self._ended or WorkerError(
                f"the CUDA compiler cannot start: {reason}",
                remedy="pip install 'nvidia-cuda-nvrtc>=13.3,<14' 'cuda-bindings>=13,<14'",
            )

    def _remove(self, worker: WorkerProcess) -> int:
        self._selector.unregister(worker.socket)
        self._workers.remove(worker)
        return worker.stop()

    def _finish(self, job: _Job, result: CompileResult) -> None:
        del self._jobs[job.request]
        job.finish(result)

    def _end(self) -> None:
        for worker in list(self._workers):
            self._remove(worker)
        with self._lock:
            error = self._ended = self._ended or WorkerError("the compiler's thread died")
            left = [future for _, future in self._inbox]
        left += [future for job in self._jobs.values() for future in job.futures]
        for future in left:
            if self._closed:
                future.cancel()
            elif future.set_running_or_notify_cancel():
                future.set_exception(error)
        if not self.compiler.done():
            self.compiler.set_exception(error)
        self._selector.close()
        self._bell.close()
        self._ear.close()
