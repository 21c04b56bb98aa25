"""The CPU device and the compiler for one kernel: that of the module's `DEFINITION`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from host_programs import cached_compiler

from tuner.compiler.host import HostCompiler
from tuner.device.cpu.device import HostDevice
from tuner.space.load import Definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCompiler]:
    with cached_compiler(tmp_path_factory, timeout_s=30.0) as compiler:
        yield compiler


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[HostDevice]:
    device = HostDevice(request.module.DEFINITION.spec, {})
    yield device
    device.close()


@pytest.fixture(scope="module")
def evaluator(
    request: pytest.FixtureRequest, compiler: HostCompiler, device: HostDevice
) -> Evaluator:
    definition: Definition = request.module.DEFINITION
    spec = definition.spec
    candidate = Candidate("template", definition.space, Template.load(spec.template))
    return Evaluator(spec, candidate, {}, compiler, device)
