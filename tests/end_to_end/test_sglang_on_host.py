"""Every production kernel on the CPU, under the sanitizers: its baseline and every value."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import pytest
from shipped_kernels import shipped_definition
from slow import mostly_slow

from tuner.extensions.cpu.compiler import SANITIZERS, preload
from tuner.extensions.cpu.device import sanitized_host
from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.choices import chosen_operators
from tuner.space.load import Definition, load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

SPACES = Path(__file__).parents[2] / "search_spaces" / "sglang"
OPERATORS = sorted(path.stem for path in (SPACES.parents[1] / "kernels/sglang").glob("*.cu"))
# From which the config with the most values that are still missing is taken.
CANDIDATES = 50

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
        for choice in shipped_definition(name).spec.operators:
            yield from ((name, {choice.name: value}) for value in choice.values[1:])


@pytest.mark.parametrize(
    ("name", "choice"),
    mostly_slow(
        variants(),
        [("silu_and_mul", {}), ("rmsnorm", {})],
        sample=[("topk_softmax", {}), ("fused_qk_norm_rope", {}), ("gemm_small_m", {})],
    ),
    ids=lambda value: value if isinstance(value, str) else " ".join(value.values()),
)
def test_the_baseline_is_right(name: str, choice: dict[str, str], stack: ExitStack) -> None:
    definition = load_definition(SPACES / f"{name}.yaml", choice)
    evaluator = evaluator_of(definition, choice, stack)
    for workload in small(definition):
        evaluator.verify_baseline(workload)


def covering(
    pools: Mapping[Workload, Sequence[Config]], chance: random.Random
) -> Iterator[tuple[Workload, Config]]:
    """Choose few configs that together have every value of every parameter."""
    missing = {value for pool in pools.values() for config in pool for value in config.items()}
    order = cycle(pools)
    while missing:
        wanted, workload = min(missing, key=str), next(order)
        having = [config for config in pools[workload] if wanted in config.items()]
        if having:
            drawn = chance.sample(having, min(CANDIDATES, len(having)))
            config = max(drawn, key=lambda one: len(missing & {*one.items()}))
            missing -= {*config.items()}
            yield workload, config


# Shared memory and shuffles.
SAMPLE = ("topk_softmax",)


@pytest.mark.parametrize("name", mostly_slow(OPERATORS, ["silu_and_mul"], SAMPLE))
def test_every_value_of_every_parameter_is_right(name: str, stack: ExitStack) -> None:
    definition = shipped_definition(name)
    evaluator = evaluator_of(definition, {}, stack)
    chance = random.Random(name)  # noqa: S311 - the same configs every time
    pools = {
        one: valid_configs(definition.space, evaluator.names(one)) for one in small(definition)
    }
    started = [evaluator.start(*one) for one in covering(pools, chance)]
    for pending in started:
        outcome = evaluator.verify(pending)
        known = outcome.status in (Status.CORRECT, Status.RESOURCE_LIMIT)
        assert known, f"{pending.config}: {outcome.reason}"
