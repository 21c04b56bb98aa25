"""Every production kernel on the CPU, under the sanitizers: its baseline and 20 random configs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from slow import mostly_slow

from tuner.app.instruments import sanitized_host
from tuner.compiler.host import SANITIZERS, preload
from tuner.model.errors import DeviceError
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.choices import chosen_operators
from tuner.space.load import Definition, load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

SPACES = Path(__file__).parents[2] / "search_spaces" / "sglang"
OPERATORS = sorted(path.stem for path in SPACES.glob("*.yaml") if "." not in path.stem)
CONFIGS = 20

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def evaluator_of(definition: Definition, choice: dict[str, str], stack: ExitStack) -> Evaluator:
    try:
        environment = preload(SANITIZERS)
    except DeviceError as error:
        pytest.skip(str(error))
    spec, operators = definition.spec, chosen_operators(definition.spec, choice)
    compiler, device = sanitized_host(spec, operators, environment, stack)
    candidate = Candidate(
        "initial", definition.space, Template.load(spec.template, spec.include_dirs)
    )
    return Evaluator(spec, candidate, operators, compiler, device)


def small(definition: Definition) -> list[Workload]:
    """The smallest sizes that the operator declares, two of them."""
    spec = definition.spec
    return sorted((*spec.edge_cases, *spec.workloads), key=spec.footprint_bytes)[:2]


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """Each operator as it is by default, and with each of its other choices alone."""
    for name in OPERATORS:
        yield name, {}
        for choice in load_definition(SPACES / f"{name}.yaml").spec.operators:
            yield from ((name, {choice.name: value}) for value in choice.values[1:])


@pytest.mark.parametrize(
    ("name", "choice"),
    mostly_slow(variants(), [("silu_and_mul", {}), ("rmsnorm", {})]),
    ids=lambda value: value if isinstance(value, str) else " ".join(value.values()),
)
def test_the_baseline_is_right(name: str, choice: dict[str, str], stack: ExitStack) -> None:
    definition = load_definition(SPACES / f"{name}.yaml", choice)
    evaluator = evaluator_of(definition, choice, stack)
    for workload in small(definition):
        evaluator.verify_baseline(workload)


@pytest.mark.parametrize("name", mostly_slow(OPERATORS, ["silu_and_mul"]))
def test_random_configs_are_right(name: str, stack: ExitStack) -> None:
    definition = load_definition(SPACES / f"{name}.yaml")
    evaluator = evaluator_of(definition, {}, stack)
    chance = random.Random(name)  # noqa: S311 - the same configs every time
    workloads = small(definition)
    pools = [valid_configs(definition.space, evaluator.names(one)) for one in workloads]
    for n in range(CONFIGS):
        workload, pool = workloads[n % len(workloads)], pools[n % len(workloads)]
        config = pool[chance.randrange(len(pool))]
        outcome = evaluator.verify(evaluator.start(workload, config))
        known = outcome.status in (Status.CORRECT, Status.RESOURCE_LIMIT)
        assert known, f"{config}: {outcome.reason}"
