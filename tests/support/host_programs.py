"""What g++ made for the tests, kept on disk for all of them, whichever process runs them."""

from __future__ import annotations

import os

import pytest

from tuner.compiler.cache import Cache


def shared_cache(factory: pytest.TempPathFactory) -> Cache:
    """Return the cache of this run of the tests."""
    folder = factory.getbasetemp()
    # Each process of pytest-xdist has a folder of its own in that of the run.
    in_one_of_several = "PYTEST_XDIST_WORKER" in os.environ
    return Cache((folder.parent if in_one_of_several else folder) / "host_programs")
