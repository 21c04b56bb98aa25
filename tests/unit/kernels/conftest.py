"""The compiler and the CPU device for the kernel of a class of `KernelChecks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from host_programs import cached_compiler
from shipped_kernels import compile_edited, start_samples

from tuner.device.base import Program
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.space.choices import chosen_operators
from tuner.space.load import Definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator, Pending

OpenDevice = Callable[[Definition, Mapping[str, str]], HostDevice]


@pytest.fixture(scope="module")
def compiler() -> Iterator[HostCompiler]:
    with cached_compiler(timeout_s=120.0) as compiler:
        yield compiler


@pytest.fixture(scope="module")
def open_device() -> Iterator[OpenDevice]:
    """Open a device for each choice of a kernel's operators, once."""
    opened: dict[tuple[str, frozenset[tuple[str, str]]], HostDevice] = {}

    def open_device(definition: Definition, operators: Mapping[str, str]) -> HostDevice:
        chosen = chosen_operators(definition.spec, operators)
        key = definition.spec.name, frozenset(chosen.items())
        if key not in opened:
            opened[key] = HostDevice(definition.chosen(operators).spec, chosen)
        return opened[key]

    yield open_device
    for device in opened.values():
        device.close()


@pytest.fixture
def device(request: pytest.FixtureRequest, open_device: OpenDevice) -> HostDevice:
    return open_device(request.cls.kernel.definition, getattr(request.cls, "choice", {}))


@pytest.fixture(scope="class")
def edited(request: pytest.FixtureRequest, compiler: HostCompiler) -> Mapping[str, Program]:
    return compile_edited(compiler, request.cls.edited_sources())


@pytest.fixture(scope="class")
def evaluator(
    request: pytest.FixtureRequest,
    operators: Mapping[str, str],
    compiler: HostCompiler,
    open_device: OpenDevice,
) -> Evaluator:
    shipped = request.cls.kernel.definition
    definition = shipped.chosen(operators)
    spec, operators = definition.spec, chosen_operators(shipped.spec, operators)
    template = Template.load(spec.template, spec.include_dirs)
    template.check(definition.space, spec)
    candidate = Candidate("template", definition.space, template)
    device = open_device(shipped, operators)
    return Evaluator(spec, candidate, operators, compiler, device)


@pytest.fixture(scope="class")
def started(
    request: pytest.FixtureRequest, operators: Mapping[str, str], evaluator: Evaluator
) -> Mapping[str, list[Pending]]:
    """Begin all samples with these operators that are to run."""
    runs = (
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.cls is request.cls
        and hasattr(item, "callspec")
    )
    samples = [one["sample"] for one in runs if "sample" in one and one["operators"] == operators]
    return start_samples(evaluator, evaluator.candidate.space, samples)
