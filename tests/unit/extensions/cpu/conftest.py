"""The host compiler over what is kept between runs."""

from collections.abc import Iterator

import pytest
from host_programs import cached_compiler

from tuner.extensions.cpu.compiler import HostCompiler


@pytest.fixture(scope="module")
def compiler() -> Iterator[HostCompiler]:
    with cached_compiler() as compiler:
        yield compiler
