"""Scratch whose shape a config chooses, counters in it, and launches with their own arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Program
from tuner.device.cuda.device import CudaDevice
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Status
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

FOLDER = Path(__file__).parents[1] / "support" / "weighted_sum"
WORKLOAD = Workload.of({"T": 24, "K": 4096})


@pytest.fixture(scope="module")
def evaluator(compiler: NvrtcPool) -> Iterator[Evaluator]:
    definition = load_definition(FOLDER / "weighted_sum.yaml")
    device = CudaDevice(0, definition.spec, {})
    template = Template.load(definition.spec.template)
    candidate = Candidate(INITIAL, definition.space, template)
    yield Evaluator(definition.spec, candidate, {}, compiler, device)
    device.close()


def program(one: Evaluator, splits: int, finish: str, old: str = "", new: str = "") -> Program:
    text = one.candidate.template.text.replace(old, new)
    template = Template.from_text(text, FOLDER / "weighted_sum.cu.j2")
    candidate = Candidate(INITIAL, one.candidate.space, template)
    made = Evaluator(one.spec, candidate, {}, one.compiler, one.device)
    config = Config.of({"splits": splits, "threads": 32, "finish": finish})
    return made.program(WORKLOAD, config)


@pytest.mark.parametrize("finish", ["launch", "last"])
def test_each_config_is_right_and_timed_with_scratch_of_its_own(
    evaluator: Evaluator, finish: str
) -> None:
    for splits in (1, 4, 2):
        outcome = evaluator.device.run(program(evaluator, splits, finish), full_verification=True)
        assert outcome.status is Status.CORRECT, outcome.reason
        assert outcome.measurement is not None


def test_configs_with_scratch_of_several_sizes_are_compared(evaluator: Evaluator) -> None:
    made = [program(evaluator, splits, "last") for splits in (1, 4, 2)]
    programs = [evaluator.baseline_program(WORKLOAD), *made]
    assert evaluator.device.compare(programs, rounds=6).faults == ("",) * 4


def test_who_writes_beyond_its_own_scratch_is_caught(evaluator: Evaluator) -> None:
    device = evaluator.device
    assert device.verify(program(evaluator, 4, "launch")).status is Status.CORRECT
    beyond = "partial[part * rows", "partial[32 + part * rows"
    outcome = device.verify(program(evaluator, 1, "launch", *beyond))
    assert outcome.status is Status.INCORRECT
    assert "wrote outside its buffers" in outcome.reason


def test_who_leaves_a_counter_harms_nobody_else(evaluator: Evaluator) -> None:
    left = program(evaluator, 2, "last", "done[row] = 0;", "done[row] = 7;")
    outcome = evaluator.device.verify(left)
    assert "left scratch done[0] = 7, expected 0" in outcome.reason
    outcome = evaluator.device.run(program(evaluator, 2, "last"), full_verification=True)
    assert outcome.status is Status.CORRECT, outcome.reason
