"""The compiler and the CPU device for the kernel of a class of `KernelChecks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from host_programs import cached_compiler
from shipped_kernels import compile_together

from tuner.device.base import Program
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.space.choices import chosen_operators
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator


@pytest.fixture(scope="module")
def compiler() -> Iterator[HostCompiler]:
    with cached_compiler(timeout_s=30.0) as compiler:
        yield compiler


@pytest.fixture(scope="class")
def device(request: pytest.FixtureRequest) -> Iterator[HostDevice]:
    spec = request.cls.kernel.spec
    device = HostDevice(spec, chosen_operators(spec, {}))
    yield device
    device.close()


@pytest.fixture(scope="class")
def edited(request: pytest.FixtureRequest, compiler: HostCompiler) -> Mapping[str, Program]:
    return compile_together(compiler, request.cls.edited_sources())


@pytest.fixture(scope="class")
def evaluator(
    request: pytest.FixtureRequest, operators: Mapping[str, str], compiler: HostCompiler
) -> Iterator[Evaluator]:
    definition = request.cls.kernel.definition.chosen(operators)
    operators = chosen_operators(definition.spec, operators)
    template = Template.load(definition.spec.template, definition.spec.include_dirs)
    template.check(definition.space, definition.spec)
    candidate = Candidate("template", definition.space, template)
    device = HostDevice(definition.spec, operators)
    yield Evaluator(definition.spec, candidate, operators, compiler, device)
    device.close()
