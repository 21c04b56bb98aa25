"""A compiler that knows what came of the sources of a recording, and compiles only others."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from tuner.compiler.base import Compiler, CompileRequest, CompileResult, source_key


class AnsweringCompiler:
    """Answer from results without machine code, by `source_key`; ask `fallback` for the rest.

    Implements `Compiler`; closes its fallback.
    """

    def __init__(
        self, results: Mapping[str, CompileResult], version: str, fallback: Compiler
    ) -> None:
        self._results, self._version, self._fallback = results, version, fallback

    @property
    def version(self) -> str:
        """The name and version of the compiler that gave the results."""
        return self._version

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Answer at once where all kernels of the request are known, else start compiling."""
        key = source_key(request.source, request.options, request.architecture)
        known = self._results.get(key)
        if known is None or (known.ok and not set(request.kernels) <= known.resources.keys()):
            return self._fallback.submit(request)
        answer: Future[CompileResult] = Future()
        answer.set_result(known)
        return answer

    def close(self) -> None:
        """End what the fallback started."""
        self._fallback.close()
