"""The project's own kernel: its baseline and its template are right on a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tuner.compiler.pool import NvrtcPool
from tuner.device.cuda.device import CudaDevice
from tuner.device.inputs import input_kinds_for
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.load import Definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

SMALL = [
    Workload.of(axes)
    for axes in (
        {"T": 1, "D": 11008},
        {"T": 16, "D": 11008},
        {"T": 3, "D": 4096},
        {"T": 7, "D": 64},
    )
]
CONFIGS = 10


@pytest.fixture(scope="module", params=["silu", "gelu", "gelu_tanh"])
def evaluator(
    request: pytest.FixtureRequest, definition: Definition, compiler: NvrtcPool
) -> Iterator[Evaluator]:
    """One evaluator, and so one device, for each activation."""
    spec, operators = definition.spec, {"ACTIVATION": request.param}
    candidate = Candidate(
        "template", definition.space, Template.load(spec.template, spec.include_dirs)
    )
    device = CudaDevice(0, spec, operators)
    yield Evaluator(spec, candidate, operators, compiler, device)
    device.close()


@pytest.mark.parametrize("workload", SMALL, ids=str)
def test_the_baseline_is_right_with_every_fill(
    evaluator: Evaluator, definition: Definition, workload: Workload
) -> None:
    trial = evaluator.baseline(workload)
    assert trial.status is Status.CORRECT
    assert trial.correctness is not None
    assert set(trial.correctness.input_kinds) == set(input_kinds_for(definition.spec))
    assert all(error <= 1.0 for _, error in trial.correctness.errors)
    assert trial.time_us is not None
    assert 0.5 < trial.time_us < 1000


def test_random_configs_of_the_template_are_right(
    evaluator: Evaluator, definition: Definition, capability: tuple[int, int]
) -> None:
    workload = SMALL[1]
    valid = valid_configs(definition.space, evaluator.names(workload))
    runnable = [c for c in valid if capability >= (9, 0) or not c["pdl"]]
    sample = random.Random(7).sample(runnable, 3 * CONFIGS)  # noqa: S311
    pending = [evaluator.start(workload, config) for config in sample]
    trials = []
    for one in pending:
        trial = evaluator.finish(one, stage="finals" if not trials else "search")
        if trial.status is not Status.RESOURCE_LIMIT:
            trials.append(trial)
        if len(trials) == CONFIGS:
            break
    assert len(trials) == CONFIGS
    wrong = [f"{trial.config}: {trial.reason}" for trial in trials if trial.time_us is None]
    assert not wrong
