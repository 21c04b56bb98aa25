"""The `host` device, and every kernel compiled for it while the first ones run."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from adversaries import ON_HOST
from on_trial import Build, OneDevice
from operators import Operator
from unusual_kernels import UNUSUAL

from tuner.compiler.base import CompileRequest, CompileResult, source_key
from tuner.compiler.cache import Cache
from tuner.device.base import Program
from tuner.extensions.cpu.compiler import HostCompiler, preload, sanitizer_finding
from tuner.extensions.cpu.device import HostDevice
from tuner.model.kernel import Launch, Workload

FOLDER = Path(__file__).parent
ARCHITECTURE = "sm_90a"
RUN_TIMEOUT_S = 2.0
# Compilations that are begun before they are needed.
AHEAD = 4

# Source, kernels and sanitizers.
Job = tuple[str, tuple[str, ...], tuple[str, ...]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("g++") is not None:
        return
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs g++"))


class HostPrograms:
    """Compile each source once, and those of the next tests while one runs.

    Not all at once: where several processes share the tests, each has use for its share only.
    """

    def __init__(
        self,
        foreseen: Iterable[tuple[str, tuple[Launch, ...], tuple[str, ...]]],
        cache: Cache,
    ) -> None:
        self._cache = cache
        self._compilers: dict[tuple[str, ...], HostCompiler] = {}
        self._compiling: dict[Job, Future[CompileResult]] = {}
        self._foreseen = list(dict.fromkeys(_job(*one) for one in foreseen))

    def build(
        self,
        source: str,
        workload: Workload,
        launches: tuple[Launch, ...],
        sanitizers: tuple[str, ...],
    ) -> Program:
        """Wait for the compiler and make a program."""
        job = _job(source, launches, sanitizers)
        result = self._start(job)
        if job in self._foreseen:
            position = self._foreseen.index(job)
            for later in self._foreseen[position + 1 : position + 1 + AHEAD]:
                self._start(later)
        compiled = result.result(60)
        assert compiled.ok, compiled.error
        key = source_key(source, sanitizers, ARCHITECTURE)
        return Program(key, workload, launches, compiled.cubin, compiled.lowered)

    def close(self) -> None:
        """End the compilers."""
        for compiler in self._compilers.values():
            compiler.close()

    def _start(self, job: Job) -> Future[CompileResult]:
        if job not in self._compiling:
            source, kernels, sanitizers = job
            if sanitizers not in self._compilers:
                self._compilers[sanitizers] = HostCompiler(sanitizers=sanitizers, cache=self._cache)
            request = CompileRequest(source, kernels, ARCHITECTURE)
            self._compiling[job] = self._compilers[sanitizers].submit(request)
        return self._compiling[job]


def _job(source: str, launches: tuple[Launch, ...], sanitizers: tuple[str, ...]) -> Job:
    return source, tuple(sorted({launch.kernel for launch in launches})), sanitizers


@pytest.fixture(scope="session")
def build() -> Iterator[Build]:
    adversaries = [(one.source, one.launched, one.sanitizers) for one in ON_HOST]
    unusual = [(one.source, one.launched, ()) for one in UNUSUAL]
    programs = HostPrograms([*adversaries, *unusual], Cache())
    yield programs.build
    programs.close()


@pytest.fixture(scope="session")
def devices() -> Iterator[OneDevice]:
    def make(operator: Operator, sanitizers: tuple[str, ...]) -> HostDevice:
        environment = preload(sanitizers)
        return HostDevice(
            operator.spec,
            {},
            run_timeout_s=RUN_TIMEOUT_S,
            environment=environment,
            finding=sanitizer_finding,
        )

    devices = OneDevice(make)
    yield devices
    devices.close()
