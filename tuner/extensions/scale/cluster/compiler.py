"""Compile on any worker of a cluster."""

from __future__ import annotations

from concurrent.futures import Future
from functools import cached_property
from typing import Any

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.includes import refused_include
from tuner.extensions.scale.cluster.coordinator import MOST_LOSSES, Cluster, LostTooOftenError
from tuner.extensions.scale.cluster.files import Bundle, request_bundle
from tuner.extensions.scale.cluster.messages import Compile, NameCompiler, Work
from tuner.model.errors import DeviceLost


class RemoteCompiler:
    """Compile where the least is to do; implements `Compiler`.

    What is lost with a worker is compiled by another one; a source that is lost with
    `MOST_LOSSES` of them has that as its error.
    """

    def __init__(self, cluster: Cluster, *, on_cpu: bool) -> None:
        self._cluster, self._on_cpu = cluster, on_cpu

    @cached_property
    def version(self) -> str:
        """Ask a worker; all have the same version of ours, and of NVRTC."""
        return str(self._cluster.start(self._ask_any(NameCompiler(self._on_cpu))).result())

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Send the source, with the headers that it can reach, and return at once."""
        if error := refused_include(request.source, request.include_dirs):
            refused: Future[CompileResult] = Future()
            refused.set_result(CompileResult(error=error))
            return refused
        return self._cluster.start(self._compile(request))

    def close(self) -> None:
        """Nothing is held open here: the workers' compilers serve the next run."""

    async def _compile(self, request: CompileRequest) -> CompileResult:
        moved, bundle = request_bundle(request)
        work = Compile(moved, bundle.files, self._on_cpu)
        try:
            result: CompileResult = await self._ask_any(work, bundle)
        except LostTooOftenError as error:
            return CompileResult(error=error.message)
        return result

    async def _ask_any(self, work: Work, bundle: Bundle | None = None) -> Any:
        cluster, deadline_s = self._cluster, self._cluster.settings.timeouts.compile_s
        lost: list[str] = []
        while len(lost) < MOST_LOSSES:
            slot = await cluster.compiling_slot(on_cpu=self._on_cpu)
            try:
                return await cluster.ask(slot, work, deadline_s, bundle)
            except DeviceLost as error:
                if not slot.refused:
                    lost.append(error.message)
        raise LostTooOftenError("compiling was lost", lost)
