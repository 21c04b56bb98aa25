"""What g++ made for the tests, kept on disk for all of them, whichever process runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tuner.compiler.cache import Cache
from tuner.compiler.host import HostCompiler


def shared_cache(factory: pytest.TempPathFactory) -> Cache:
    """Return the cache of this run of the tests."""
    folder = factory.getbasetemp()
    # Each process of pytest-xdist has a folder of its own in that of the run.
    in_one_of_several = "PYTEST_XDIST_WORKER" in os.environ
    return Cache((folder.parent if in_one_of_several else folder) / "host_programs")


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
