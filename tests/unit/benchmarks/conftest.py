"""Tests import the scripts of benchmarks/ by their names; and the compiler of the host."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_programs import cached_compiler

from tuner.extensions.cpu.compiler import HostCompiler

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))


@pytest.fixture(scope="module")
def compiler() -> Iterator[HostCompiler]:
    with cached_compiler(timeout_s=120.0) as compiler:
        yield compiler
