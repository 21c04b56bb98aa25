"""What g++ made for the tests, kept on disk for all of them, whichever process runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tuner.compiler.cache import Cache
from tuner.extensions.cpu.compiler import HostCompiler


def folder_of_the_run(factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all processes of this run of the tests share."""
    folder = factory.getbasetemp()
    # Each process of pytest-xdist has a folder of its own in that of the run.
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def shared_cache(factory: pytest.TempPathFactory) -> Cache:
    """Return the cache of this run of the tests."""
    return Cache(folder_of_the_run(factory) / "host_programs")


@contextmanager
def cached_compiler(
    factory: pytest.TempPathFactory, *, timeout_s: float = 60.0
) -> Iterator[HostCompiler]:
    """Open a compiler over that cache."""
    compiler = HostCompiler(timeout_s=timeout_s, cache=shared_cache(factory))
    try:
        yield compiler
    finally:
        compiler.close()
