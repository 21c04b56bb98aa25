"""The compiler that the search uses: NVRTC in parallel processes, with a cache."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.compiler.base import CompileRequest, CompileResult, compiler_options, result_of
from tuner.compiler.cache import Cache, cache_key, user_cache_dir
from tuner.compiler.includes import IncludeDigest, refused_include
from tuner.compiler.wire import READ_BYTES, Message, Unpacker, packed
from tuner.model.errors import WorkerError

# The package's folder goes last: where tuner is installed it is found as usual.
_START = (
    "import sys; sys.path.append(sys.argv.pop()); from tuner.compiler.worker import main; main()"
)
# Beside a driver NVRTC keeps results of its own, and on a hit the log lacks ptxas's report.
_WITHOUT_OWN_CACHE = {"CUDA_CACHE_DISABLE": "1"}
# Where Python and CUDA are; the rest of the environment may hold keys.
_VARIABLES = re.compile(
    r"PATH|HOME|LANG|LC_\w+|LD_LIBRARY_PATH|PYTHON\w+|CUDA_\w+|CONDA_PREFIX|TMPDIR"
)
MAX_LAST_WORDS = 65_536
_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[2])


class WorkerProcess:
    """A compiling process with its own scratch folder; ready once its first message came."""

    def __init__(self, cache_dir: Path, deadline: float) -> None:
        self.ready = False
        self.job: Any = None
        self.deadline: float | None = deadline
        self._scratch = Path(tempfile.mkdtemp(prefix="tuner-compiler-"))
        (self._scratch / "empty").mkdir()
        self._unpacker = Unpacker()
        self._outgoing = bytearray()
        self._diagnosis = tempfile.TemporaryFile()  # noqa: SIM115
        self.socket, theirs = socket.socketpair()
        arguments = (cache_dir, self._scratch, _PACKAGE_FOLDER)
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-P", "-c", _START, *map(str, arguments)],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._diagnosis,
                    env=_environment(),
                    start_new_session=True,
                )
        except OSError:
            self._clean_up()
            raise
        self.socket.setblocking(False)

    @property
    def has_outgoing(self) -> bool:
        """Whether `flush` has more to write."""
        return bool(self._outgoing)

    def send(self, content: dict[str, Any], job: Any, deadline: float) -> None:
        """Queue the request of `job`, to be answered by `deadline`; `flush` does the writing."""
        self.job = job
        self.deadline = deadline
        self._outgoing += packed(content)

    def flush(self) -> None:
        """Write as much as the process takes now."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._outgoing:
                del self._outgoing[: self.socket.send(self._outgoing)]

    def receive(self) -> Iterator[Message] | None:
        """Read what came and yield complete messages; None when the process has ended."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return iter(())
        except ConnectionResetError:
            return None
        try:
            return iter([*self._unpacker.feed(data)]) if data else None
        except ValueError:
            return None  # no message of a worker: it is ended like one that died

    def last_words(self) -> str:
        """Return the last line that the process wrote to its standard error."""
        size = self._diagnosis.seek(0, os.SEEK_END)
        self._diagnosis.seek(max(size - MAX_LAST_WORDS, 0))
        text = self._diagnosis.read().decode(errors="replace")
        return text.strip().rpartition("\n")[2]

    def stop(self) -> int:
        """Kill the process with all it started; return its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._clean_up()
        return status

    def _clean_up(self) -> None:
        self.socket.close()
        self._diagnosis.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    return {**kept, **_WITHOUT_OWN_CACHE}


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


class NvrtcPool:
    """Compile with NVRTC in worker processes, started when needed and kept for later requests.

    Implements `Compiler`. A compile over `timeout_s` is killed and one that crashes is an error;
    either costs one worker, which is replaced. Equal requests in flight are compiled once.
    `workers` is one per available core where not given. Where NVRTC cannot be used, `version` and
    the futures raise `WorkerError`.
    """

    def __init__(
        self, workers: int | None = None, timeout_s: float = 60.0, cache: Cache | None = None
    ) -> None:
        self._workers = workers or len(os.sched_getaffinity(0))
        self._timeout_s = timeout_s
        self._cache = cache
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None
        self._closed = False

    def __enter__(self) -> NvrtcPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        """Name and version, `NVRTC 13.5`; waits for the first worker."""
        return self._started().compiler.result().version

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Start compiling and return at once; callbacks of the future run in another thread."""
        return self._started().post(request)

    def close(self) -> None:
        """Kill what runs, cancel what waits and end the processes."""
        with self._lock:
            self._closed = True
            dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            dispatcher.stop()

    def _started(self) -> Dispatcher:
        with self._lock:
            if self._closed:
                raise WorkerError("the compiler was closed")
            if self._dispatcher is None:
                self._dispatcher = Dispatcher(
                    most_workers=self._workers,
                    timeout_s=self._timeout_s,
                    cache=self._cache,
                    cache_dir=self._cache.directory if self._cache else user_cache_dir(),
                )
                self._dispatcher.start()
            return self._dispatcher
