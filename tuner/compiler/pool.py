"""Compilers in parallel processes, with a cache: NVRTC, and what compiles other languages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

from tuner.compiler.base import CompileRequest, CompileResult, compiler_options, result_of
from tuner.compiler.cache import Cache, cache_key, user_cache_dir
from tuner.compiler.includes import include_digest, refused_include
from tuner.model.errors import WorkerError
from tuner.process.child import START_TIMEOUT_S, ChildDiedError, ChildProcess, ChildTimeoutError
from tuner.process.pool import ProcessPool, settle

# Beside a driver NVRTC keeps results of its own, and on a hit the log lacks ptxas's report.
_WITHOUT_OWN_CACHE = {"CUDA_CACHE_DISABLE": "1"}
# Where Python and CUDA are; the rest of the environment may hold keys.
_VARIABLES = re.compile(
    r"PATH|HOME|LANG|LC_\w+|LD_LIBRARY_PATH|PYTHON\w+|CUDA_\w+|CONDA_PREFIX|TMPDIR"
)
MAX_LAST_WORDS = 65_536


class CompilerProcess(ChildProcess):
    """A process that compiles with NVRTC, with its own scratch folder.

    Once it is ready, `version` names its compiler, and `identity` tells builds of it apart. Another
    compiler's has a `module` of its own, and says what it is asked and what becomes of its answer.
    """

    module: ClassVar[str] = "tuner.compiler.nvrtc"

    def __init__(self, cache_dir: Path, *arguments: str) -> None:
        self.version = self.identity = self.last_words = ""
        self._scratch = Path(tempfile.mkdtemp(prefix="tuner-compiler-"))
        (self._scratch / "empty").mkdir()
        self._diagnosis = tempfile.TemporaryFile()  # noqa: SIM115
        kept = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
        try:
            super().__init__(
                "tune-compiler",
                self.module,
                [str(cache_dir), str(self._scratch), *arguments],
                environment={**kept, **_WITHOUT_OWN_CACHE},
                # Compilers may write there what is no message.
                stdout=self._diagnosis.fileno(),
                stderr=self._diagnosis.fileno(),
            )
        except OSError:
            self._clean_up()
            raise

    def wait_ready(self) -> None:
        """Wait for what it says of its compiler; raise `WorkerError` with its last words."""
        try:
            hello = self.read(START_TIMEOUT_S).header
        except ChildDiedError as error:
            if error.killed:
                raise
            raise WorkerError(self.last_words or f"exit status {error}") from error
        self.version, self.identity = hello["version"], hello["identity"]

    def compile(
        self, request: CompileRequest, state: str, timeout_s: float
    ) -> tuple[CompileResult, bool]:
        """Compile, and tell whether the same request would give the same result again.

        `state` names the content of the user's headers. Raises `ChildDiedError` where SIGKILL,
        which others may send, ended the process.
        """
        try:
            self.write({**self.content(request), "state": state})
            reply = self.read(timeout_s)
        except ChildTimeoutError:
            error = f"compiling took over {timeout_s:g} s and was stopped"
            return CompileResult(error=error, timed_out=True, seconds=timeout_s), False
        except ChildDiedError as died:
            if died.killed:
                raise
            return _describe_crash(died, self.last_words), False
        return self.result(request, reply.header, reply.payload), reply.header["lasting"]

    def content(self, request: CompileRequest) -> dict[str, Any]:
        """Say what it is asked."""
        asked = {"source": request.source, "kernels": request.kernels}
        return {**asked, "options": self.options(request)}

    def options(self, request: CompileRequest) -> list[str]:
        return compiler_options(request)

    def result(
        self, request: CompileRequest, reply: dict[str, Any], binary: bytes
    ) -> CompileResult:
        return result_of(request, reply, binary)

    def kill(self) -> None:
        super().kill()
        self._clean_up()

    def _clean_up(self) -> None:
        with suppress(ValueError):  # another thread was first
            size = self._diagnosis.seek(0, os.SEEK_END)
            self._diagnosis.seek(max(size - MAX_LAST_WORDS, 0))
            text = self._diagnosis.read().decode(errors="replace")
            self.last_words = text.strip().rpartition("\n")[2]
            self._diagnosis.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _describe_crash(died: ChildDiedError, words: str = "") -> CompileResult:
    (status,) = died.args
    how = f"exit status {status}" if (status or 0) >= 0 else signal.Signals(-status).name
    return CompileResult(error=f"the compiler crashed ({how}) {words}".rstrip())


class CompilerPool:
    """Compile in worker processes, started when needed and kept for later requests.

    Implements `Compiler`. A compile over `timeout_s` is killed and one that crashes is an error;
    either costs one worker, which is replaced. Equal requests in flight are compiled once.
    `start` starts a process that may use a folder for what can be made again; `workers` is one per
    available core where not given. Where no process can be used, `version` and the futures raise
    what `cannot_start` makes of the reason.
    """

    def __init__(
        self,
        start: Callable[[Path], CompilerProcess],
        cannot_start: Callable[[Exception], WorkerError],
        workers: int | None,
        timeout_s: float,
        cache: Cache | None,
    ) -> None:
        self._timeout_s = timeout_s
        self._cache = cache
        cache_dir = cache.directory if cache else user_cache_dir()
        most = workers or len(os.sched_getaffinity(0))
        self._pool = ProcessPool(lambda: start(cache_dir), most, cannot_start)
        # Looks results up and stores them, while the processes go on.
        self._thread = ThreadPoolExecutor(1, "compiler")
        self._lock = threading.Lock()
        self._asked: dict[CompileRequest, list[Future[CompileResult]]] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        return self._compiler.result()[0]

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Start compiling; callbacks of the future run in another thread."""
        future: Future[CompileResult] = Future()
        with self._lock:
            if self._closed:
                raise WorkerError("the compiler was closed")
            self._pool.require_usable()
            if request in self._asked:
                self._asked[request].append(future)
            else:
                self._asked[request] = [future]
                self._thread.submit(self._answer, request)
        return future

    def paused(self) -> AbstractContextManager[None]:
        """Stop compiling for as long as a block takes: what is timed there has the CPU."""
        return self._pool.paused()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            left = [future for futures in self._asked.values() for future in futures]
            self._asked.clear()
        for future in left:
            future.cancel()
        self._pool.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def _compiler(self) -> Future[tuple[str, str]]:
        return self._pool.submit(lambda worker: (worker.version, worker.identity), ahead=1)

    def _answer(self, request: CompileRequest) -> None:
        try:
            if error := refused_include(request.source, request.include_dirs):
                self._finish(request, CompileResult(error=error))
                return
            state, key = include_digest(request.source, request.include_dirs), ""
            if self._cache is not None:
                key = cache_key(request, self._compiler.result()[1], state)
                if stored := self._cache.get(key):
                    self._finish(request, stored)
                    return
            # A process may have compiled the same source for another work-group.
            topic = hash(request.source) if request.work_groups else None
            compiling = self._pool.submit(partial(self._compile, request, state), topic=topic)
            compiling.add_done_callback(
                lambda done: self._thread.submit(self._keep_result, request, key, done)
            )
        except Exception as error:  # noqa: BLE001 - whoever waits for the result is told
            self._finish(request, error)

    def _compile(
        self, request: CompileRequest, state: str, worker: CompilerProcess
    ) -> tuple[CompileResult, bool] | None:
        """Compile unless nobody waits for it any more; whoever asks from then on begins anew."""
        with self._lock:
            if all(future.cancelled() for future in self._asked.get(request, ())):
                self._asked.pop(request, None)
                return None
        return worker.compile(request, state, self._timeout_s)

    def _keep_result(
        self, request: CompileRequest, key: str, done: Future[tuple[CompileResult, bool] | None]
    ) -> None:
        try:
            answer = done.result()
        except ChildDiedError as died:
            self._finish(request, _describe_crash(died))
        except Exception as error:  # noqa: BLE001 - as above
            self._finish(request, error)
        else:
            if answer is None:
                return
            result, lasting = answer
            if self._cache is not None and lasting:
                self._cache.put(key, result)
            self._finish(request, result)

    def _finish(self, request: CompileRequest, outcome: CompileResult | Exception) -> None:
        with self._lock:
            futures = self._asked.pop(request, [])
        for future in futures:
            settle(future, outcome)


class NvrtcPool(CompilerPool):
    """Compile with NVRTC."""

    def __init__(
        self, workers: int | None = None, timeout_s: float = 60.0, cache: Cache | None = None
    ) -> None:

        def cannot_start(reason: Exception) -> WorkerError:
            return WorkerError(
                f"the CUDA compiler cannot start: {reason}",
                remedy="pip install 'nvidia-cuda-nvrtc>=13.3,<14' 'cuda-bindings>=13,<14'",
            )

        super().__init__(CompilerProcess, cannot_start, workers, timeout_s, cache)
