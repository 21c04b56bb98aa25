"""The compiler that the search uses: NVRTC in parallel processes, with a cache."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.cache import Cache, user_cache_dir
from tuner.compiler.dispatch import Dispatcher
from tuner.errors import WorkerError


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
