"""rmsnorm: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from tuner.compiler.base import CompileRequest
from tuner.compiler.host import HostCompiler
from tuner.device.base import Program
from tuner.device.cpu.device import HostDevice
from tuner.device.reference import load_reference
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.load import load_definition
from tuner.tuning.evaluator import Evaluator

ROOT = Path(__file__).parents[3]
DEFINITION = load_definition(ROOT / "search_spaces/sglang/rmsnorm.yaml")
SPEC = DEFINITION.spec
SOURCE = SPEC.source.read_text(encoding="utf-8")
ROWS, WIDTH = 64, 512
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SCALE = "rsqrtf(block_sum(squares, scratch) / H + eps)"
VALUE = "__bfloat162float(v.values[k]) * scale;"
WEIGHT = "(kBias + __bfloat162float(by.values[k]))"
# What a kernel that is nearly right does instead: (before, after) in the text of the baseline.
NEAR_MISSES = {
    "eps is left out": (SCALE, "rsqrtf(block_sum(squares, scratch) / H)"),
    "eps is added to the root": (SCALE, "1.0f / (sqrtf(block_sum(squares, scratch) / H) + eps)"),
    "the sum of the squares is not divided": (SCALE, "rsqrtf(block_sum(squares, scratch) + eps)"),
    "a value is rounded before its weight": (
        VALUE,
        "__bfloat162float(__float2bfloat16(__bfloat162float(v.values[k]) * scale));",
    ),
    "the scale is rounded to 16 bits": (
        SCALE,
        "__bfloat162float(__float2bfloat16(rsqrtf(block_sum(squares, scratch) / H + eps)))",
    ),
    "one is added to the weights": (WEIGHT, "(1.0f + __bfloat162float(by.values[k]))"),
    "the weight is multiplied by the scale first": (
        f"value * {WEIGHT}",
        f"__bfloat162float(v.values[k]) * (scale * {WEIGHT})",
    ),
}


def referred(x: np.ndarray, w: np.ndarray, **operator: str) -> np.ndarray:
    axes = {"T": x.shape[0], "H": x.shape[1]}
    return load_reference(SPEC.reference).compute(np, {"x": x, "w": w}, axes, **operator)["out"]


def test_rows_have_a_mean_square_of_1_before_they_are_weighted() -> None:
    x = np.random.default_rng(0).standard_normal((5, 40)) * np.array([[1.0, 3, 1e3, 1e9, 1e15]]).T
    rows = referred(x, np.ones(40))
    np.testing.assert_allclose((rows * rows).mean(axis=1), 1.0, rtol=2e-6)
    np.testing.assert_allclose(rows / rows[:, :1], x / x[:, :1], rtol=1e-12)


def test_a_row_of_zeros_stays_zeros() -> None:
    assert not referred(np.zeros((2, 8)), np.full(8, 3.0)).any()


def test_the_weights_of_gemma_are_one_more() -> None:
    x, w = np.random.default_rng(0).standard_normal((2, 3, 40))
    np.testing.assert_array_equal(referred(x, w[0], GEMMA="true"), referred(x, 1.0 + w[0]))


@needs_compiler
@pytest.mark.parametrize("width", [1, 100, 257, 4096])
def test_the_baseline_is_right_for_any_width(evaluator: Evaluator, width: int) -> None:
    trial = evaluator.baseline(Workload.of({"T": 3, "H": width}))
    assert trial.status is Status.CORRECT, trial.reason


@needs_compiler
@pytest.mark.parametrize("width", [1032, 4096])
def test_configs_of_the_template_are_right(evaluator: Evaluator, width: int) -> None:
    workload = Workload.of({"T": 3, "H": width})
    configs = list(valid_configs(DEFINITION.space, evaluator.names(workload)))
    sample = random.Random(7).sample(configs, 3)  # noqa: S311
    for pending in [evaluator.start(workload, config) for config in sample]:
        trial = evaluator.finish(pending)
        assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"


@needs_compiler
@pytest.mark.parametrize(("before", "after"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_a_near_miss_is_caught(
    compiler: HostCompiler, device: HostDevice, before: str, after: str
) -> None:
    assert SOURCE.count(before) == 1
    request = CompileRequest(SOURCE.replace(before, after), ("rmsnorm",), "sm_90a")
    result = compiler.submit(request).result()
    assert result.ok, result.error
    launch = Launch("rmsnorm", (ROWS, 1, 1), (256, 1, 1))
    workload = Workload.of({"T": ROWS, "H": WIDTH})
    program = Program("near miss", workload, (launch,), result.cubin, result.lowered)
    assert device.verify(program).status is Status.INCORRECT
