"""What g++ made for the tests, kept on disk for all of them, whichever process runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache as once
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest
from tuner.compiler.cache import Cache
from tuner.extensions.cpu.compiler import HostCompiler


def folder_of_the_run(factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all processes of this run of the tests share."""
    folder = factory.getbasetemp()
    # Each process of pytest-xdist has a folder of its own in that of the run.
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@contextmanager
def cached_compiler(*, timeout_s: float = 60.0) -> Iterator[HostCompiler]:
    """Open a compiler over what is kept between runs."""
    compiler = HostCompiler(timeout_s=timeout_s, cache=Cache())
    try:
        yield compiler
    finally:
        compiler.close()


@contextmanager
def cubins() -> Iterator[Callable[..., bytes]]:
    """Give what compiles kernels of a source, under sanitizers too, and closes its compilers."""
    with ExitStack() as stack:

        @once
        def opened(sanitizers: tuple[str, ...]) -> HostCompiler:
            compiler = HostCompiler(sanitizers=sanitizers, cache=Cache())
            stack.callback(compiler.close)
            return compiler

        def compile_kernels(
            source: str, kernels: tuple[str, ...] = ("run",), sanitizers: tuple[str, ...] = ()
        ) -> bytes:
            request = CompileRequest(source, kernels, "sm_90a")
            result = opened(sanitizers).submit(request).result()
            assert result.ok, result.error
            return result.cubin

        yield compile_kernels
