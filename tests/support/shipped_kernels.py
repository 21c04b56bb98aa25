"""What each kernel of `search_spaces/sglang` has to show on the CPU: it is right, its edits not."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from ruamel.yaml import YAML
from slow import mostly_slow

from tuner.app.check import target_info
from tuner.compiler.base import Compiler, CompileRequest, CompileResult
from tuner.device.base import CompileTarget, Program
from tuner.device.reference import load_reference
from tuner.extensions.cpu.device import HostDevice
from tuner.extensions.export.cpp import in_namespace
from tuner.model.config import Config, SearchSpace
from tuner.model.expressions import Value
from tuner.model.kernel import ChosenScratch, KernelSpec, Launch, Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.choices import chosen_operators
from tuner.space.load import Definition, load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Evaluator, Pending

SPACES = Path(__file__).parents[2] / "search_spaces" / "sglang"
Axes = Mapping[str, int]
Edits = Sequence[tuple[str, str]]
EDITED = Config.of({"edited": 1})
NEAR_MISSES = Path(__file__).parents[1] / "unit" / "kernels" / "near_misses.yaml"


@dataclass(frozen=True, slots=True)
class Sample:
    """Configs of the template to run: `count` of those that have the values `having`."""

    axes: Axes
    count: int = 3
    having: Mapping[str, Value] = field(default_factory=dict)


def narrowed(space: SearchSpace, having: Mapping[str, Value]) -> SearchSpace:
    """Leave only the values `having`; what is asked for by name may be thought slow."""
    if not having:
        return space
    parameters = (
        replace(one, values=(having[one.name],)) if one.name in having else one
        for one in space.parameters
    )
    return replace(space.unpruned, parameters=tuple(parameters))


@cache
def shipped_definition(name: str) -> Definition:
    """Read a search space once, for all tests that are collected."""
    return load_definition(SPACES / f"{name}.yaml")


def start_samples(
    evaluator: Evaluator, space: SearchSpace, samples: Iterable[Sample]
) -> Mapping[str, list[Pending]]:
    """Compile the configs of all samples as one source."""
    compiler, started = evaluator.compiler, {}
    evaluator.compiler = together = Together(compiler)
    for sample in samples:
        workload = Workload.of(sample.axes)
        configs = list(valid_configs(narrowed(space, sample.having), evaluator.names(workload)))
        chosen = random.Random(7).sample(configs, sample.count)  # noqa: S311
        started[case_id(sample)] = [evaluator.start(workload, config) for config in chosen]
    evaluator.compiler = compiler
    together.compile()
    return started


class ShippedKernel:
    """One search space with the functions of its reference."""

    def __init__(self, name: str) -> None:
        self.definition = shipped_definition(name)
        self.reference = load_reference(self.spec.reference)

    @property
    def spec(self) -> KernelSpec:
        return self.definition.spec

    @cached_property
    def source(self) -> str:
        return self.spec.source.read_text(encoding="utf-8")

    def compute(
        self, arrays: Mapping[str, np.ndarray], axes: Axes, **operators: str
    ) -> Mapping[str, np.ndarray]:
        return self.reference.compute(np, arrays, axes, **operators)

    def drawn(self, axes: Axes, fill: str, seed: int = 0) -> Mapping[str, Any]:
        assert self.reference.inputs is not None
        return self.reference.inputs(np, np.random.default_rng(seed), axes, fill)


def case_id(value: Mapping[str, str] | Axes | Sample) -> str:
    return f"{value.axes} {value.having}" if isinstance(value, Sample) else str(value)


def mostly_default(
    operators: Sequence[Mapping[str, str]], values: Sequence[Axes] | Sequence[Sample]
) -> list[Any]:
    """Pair all values with the first of an operator's choices, and a third with each other one.

    The rest is the exhaustive sweep. Each choice has another third, and at least one value.
    """
    parts = min(3, len(values))
    chosen = [
        (operator, value)
        for (choice, operator), (number, value) in product(enumerate(operators), enumerate(values))
        if choice == 0 or number % parts == choice % parts
    ]
    return mostly_slow(product(operators, values), chosen, sample=[])


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
class KernelChecks:
    """The tests of a kernel; a module's class says of which, at which sizes and with what edits.

    Baseline and template are run for each of `operators`, mostly for the first, the edits of
    near_misses.yaml with the default ones, on `workload` by `launches`.
    """

    kernel: ClassVar[ShippedKernel]
    operators: ClassVar[Sequence[Mapping[str, str]]] = ({},)
    baselines: ClassVar[Sequence[Axes]]
    samples: ClassVar[Sequence[Sample]]
    workload: ClassVar[Axes]
    launches: ClassVar[tuple[Launch, ...]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        named = {"axes": self.baselines, "sample": self.samples}
        asked = [name for name in named if name in metafunc.fixturenames]
        for name in asked:
            cases = mostly_default(self.operators, named[name])
            metafunc.parametrize(("operators", name), cases, ids=case_id, scope="class")
        if "operators" in metafunc.fixturenames and not asked:
            metafunc.parametrize("operators", self.operators, ids=str, scope="class")
        if "edits" in metafunc.fixturenames:
            metafunc.parametrize("edits", near_misses(self.kernel.spec.name))

    def test_the_baseline_is_right(self, evaluator: Evaluator, axes: Axes) -> None:
        trial = evaluator.baseline(Workload.of(axes))
        assert trial.status is Status.CORRECT, trial.reason

    def test_configs_of_the_template_are_right(
        self, evaluator: Evaluator, started: Mapping[str, list[Pending]], sample: Sample
    ) -> None:
        assert len(started[case_id(sample)]) == sample.count
        for pending in started[case_id(sample)]:
            trial = evaluator.finish(pending)
            assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"

    def test_a_near_miss_is_caught(
        self, edited: Mapping[str, Program], device: HostDevice, edits: str
    ) -> None:
        # What reaches beyond an array may meet a page that is closed.
        assert device.verify(edited[edits]).status in (Status.INCORRECT, Status.LAUNCH)

    @classmethod
    def edited_sources(cls) -> Iterator[EditedSource]:
        workload = Workload.of(cls.workload)
        for name, edits in near_misses(cls.kernel.spec.name).items():
            yield EditedSource(name, cls.kernel.source, edits, workload, cls.launches)


def near_misses(name: str) -> Mapping[str, Edits]:
    """Read what is wrong with each near miss, and its edits."""
    found: Mapping[str, Edits] = YAML(typ="safe").load(NEAR_MISSES)[name]
    return found


def chosen_scratch(spec: KernelSpec, names: Mapping[str, Value]) -> tuple[ChosenScratch, ...]:
    """Size the scratch of a config."""
    return tuple(ChosenScratch(one.name, one.dimensions(names)) for one in spec.sized)


@dataclass(frozen=True, eq=False)
class EditedSource:
    """A source with what is wrong with it, where it is to be caught."""

    name: str
    source: str
    edits: Edits
    workload: Workload
    launches: tuple[Launch, ...]
    scratch: tuple[ChosenScratch, ...] = ()

    @property
    def text(self) -> str:
        text = self.source
        for before, after in self.edits:
            assert text.count(before) == 1
            text = text.replace(before, after)
        return text


def rendered(
    kernel: ShippedKernel,
    workload: Workload,
    having: Mapping[str, Value],
    choice: Mapping[str, str] | None = None,
) -> EditedSource:
    """Render what the template makes of a config, as it is."""
    operators = chosen_operators(kernel.spec, choice or {})
    spec = kernel.definition.chosen(operators).spec
    template = Template.load(spec.template, spec.include_dirs)
    config = {**kernel.definition.space.default, **having}
    target = CompileTarget(spec, operators, target_info("sm_90a"))
    names = {**target.names(workload), **config, **operators}
    source, launches = template.render(names).source, spec.candidate_launches(names)
    scratch = target.scratch(workload, Config.of(config))
    return EditedSource("as it is", source, (), workload, launches, scratch)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
class EditsOfTheTemplate:
    """Near misses of what the template makes of a config: all of them are caught."""

    kernel: ClassVar[ShippedKernel]
    edits_of: ClassVar[str]
    choice: ClassVar[Mapping[str, str]] = {}
    workload: ClassVar[Workload]
    having: ClassVar[Mapping[str, Value]]
    test_a_near_miss_is_caught = KernelChecks.test_a_near_miss_is_caught

    @classmethod
    def edited_sources(cls) -> Iterator[EditedSource]:
        made = rendered(cls.kernel, cls.workload, cls.having, cls.choice)
        for name, edits in near_misses(cls.edits_of).items():
            yield replace(made, name=name, edits=edits)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.parametrize("edits", near_misses(self.edits_of))


@dataclass
class Together:
    """Take requests and compile all of them as one source; implements what `Evaluator` asks for.

    Each has a namespace and macros of its own. Headers are read once: they take g++ longer than
    most kernels do.
    """

    compiler: Compiler
    asked: list[tuple[CompileRequest, Future[CompileResult]]] = field(default_factory=list)

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        future = Future[CompileResult]()
        self.asked.append((request, future))
        return future

    def compile(self) -> None:
        spaces = [f"unit_{number}" for number in range(len(self.asked))]
        texts, kernels = [], []
        for space, (request, _) in zip(spaces, self.asked, strict=True):
            macros = set(re.findall(r"^ *# *define +(\w+)", request.source, re.MULTILINE))
            macros -= {re.split(r"[=(]", one[2:])[0] for one in request.options}
            ends = (f"#undef {macro}" for macro in sorted(macros))
            texts += [in_namespace(request.source, space), *ends]
            kernels += [f"{space}::{kernel}" for kernel in request.kernels]
        first, _ = self.asked[0]
        together = replace(first, source="\n".join(texts), kernels=tuple(kernels))
        found = self.compiler.submit(together).result()
        assert found.ok, found.error
        for space, (request, future) in zip(spaces, self.asked, strict=True):
            assert replace(request, source="", kernels=()) == replace(first, source="", kernels=())
            lowered, used = (
                {kernel: made[f"{space}::{kernel}"] for kernel in request.kernels}
                for made in (found.lowered, found.resources)
            )
            future.set_result(replace(found, lowered=lowered, resources=used))


def compile_edited(compiler: Compiler, sources: Iterable[EditedSource]) -> dict[str, Program]:
    together, made = Together(compiler), {}
    for one in sources:
        kernels = tuple(dict.fromkeys(launch.kernel for launch in one.launches))
        made[one] = together.submit(CompileRequest(one.text, kernels, "sm_90a"))
    together.compile()
    found = {one: future.result() for one, future in made.items()}
    return {
        # As a config's: where a baseline is wrong with large inputs, they shrink.
        one.name: Program(
            *(one.name, one.workload, one.launches, of.cubin, of.lowered, EDITED),
            scratch=one.scratch,
        )
        for one, of in found.items()
    }
