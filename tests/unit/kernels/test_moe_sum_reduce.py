"""moe_sum_reduce: reference, kernels on the CPU, and near misses that are to be caught."""

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
DEFINITION = load_definition(ROOT / "search_spaces/sglang/moe_sum_reduce.yaml")
SPEC = DEFINITION.spec
SOURCE = SPEC.source.read_text(encoding="utf-8")
TOKENS, EXPERTS, WIDTH = 16, 8, 512
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SUM = "for (int k = 0; k < kTopK; ++k) sum += __bfloat162float(x[static_cast<size_t>(k) * H]);"
# What a kernel that is nearly right does instead: (before, after) in the text of the baseline.
NEAR_MISSES = {
    "the sum is rounded at each step": (
        SUM,
        SUM.replace("sum += ", "sum = __bfloat162float(__float2bfloat16(sum + ").replace(
            "* H]);", "* H])));"
        ),
    ),
    "the sum is rounded before it is scaled": (
        "*y = __float2bfloat16(sum * scale);",
        "*y = __float2bfloat16(__bfloat162float(__float2bfloat16(sum)) * scale);",
    ),
    "the last expert is left out": (SUM, SUM.replace("k < kTopK", "k < kTopK - 1")),
    "the scale is left out": ("__float2bfloat16(sum * scale)", "__float2bfloat16(sum)"),
    "numbers that are not finite count as 0": (
        "*y = __float2bfloat16(sum * scale);",
        "*y = __float2bfloat16(isfinite(sum) ? sum * scale : 0.0f);",
    ),
    "the result is the mean": (
        "__float2bfloat16(sum * scale)",
        "__float2bfloat16(sum * scale / K)",
    ),
    "experts lie before tokens": (SUM, SUM.replace("(k) * H", "(k) * H * gridDim.y / K")),
}


def referred(x: np.ndarray) -> np.ndarray:
    axes = dict(zip("TKH", x.shape, strict=True))
    return load_reference(SPEC.reference).compute(np, {"x": x}, axes)["y"]


def test_the_experts_of_a_token_are_added_up_and_scaled() -> None:
    x = np.arange(2 * 3 * 4.0).reshape(2, 3, 4)
    assert referred(x).tolist() == [[30.0, 37.5, 45.0, 52.5], [120.0, 127.5, 135.0, 142.5]]


def test_the_scale_is_that_of_the_search_space() -> None:
    (scale,) = (one.value for one in SPEC.arguments if one.name == "scale")
    assert scale is not None
    assert scale.evaluate({}) == referred(np.ones((1, 1, 1)))[0, 0]


def test_extreme_columns_have_one_sign_and_all_magnitudes() -> None:
    draw = load_reference(SPEC.reference).inputs
    assert draw is not None
    x = draw(np, np.random.default_rng(0), {"T": 9, "K": 8, "H": 64}, "extreme")["x"]
    assert x.shape == (9, 8, 64)
    assert ((x >= 0).all(axis=1) | (x <= 0).all(axis=1)).all()
    largest = np.finfo(np.float32).max
    beyond = np.abs(referred(x.astype(np.float64))) > largest
    assert 0 < beyond.mean() < 0.5
    assert (np.abs(x) < 2.0**-126).any()


@needs_compiler
@pytest.mark.parametrize(
    ("tokens", "experts", "width"),
    [(3, 8, 300), (3, 5, 100), (130, 9, 40), (257, 3, 136), (260, 2, 528)],
)
def test_each_kernel_of_the_baseline_is_right(
    evaluator: Evaluator, tokens: int, experts: int, width: int
) -> None:
    trial = evaluator.baseline(Workload.of({"T": tokens, "K": experts, "H": width}))
    assert trial.status is Status.CORRECT, trial.reason


@needs_compiler
@pytest.mark.parametrize("experts", [5, 9])
def test_configs_of_the_template_are_right(evaluator: Evaluator, experts: int) -> None:
    workload = Workload.of({"T": 3, "K": experts, "H": 1032})
    configs = list(valid_configs(DEFINITION.space, evaluator.names(workload)))
    sample = random.Random(7).sample(configs, 4)  # noqa: S311
    for pending in [evaluator.start(workload, config) for config in sample]:
        trial = evaluator.finish(pending)
        assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"


@needs_compiler
@pytest.mark.parametrize(("before", "after"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_a_near_miss_is_caught(
    compiler: HostCompiler, device: HostDevice, before: str, after: str
) -> None:
    assert SOURCE.count(before) == 1
    request = CompileRequest(SOURCE.replace(before, after), ("sum_by_elements",), "sm_90a")
    result = compiler.submit(request).result()
    assert result.ok, result.error
    launch = Launch("sum_by_elements", (WIDTH // 256, TOKENS, 1), (256, 1, 1))
    workload = Workload.of({"T": TOKENS, "K": EXPERTS, "H": WIDTH})
    program = Program("near miss", workload, (launch,), result.cubin, result.lowered)
    assert device.verify(program).status is Status.INCORRECT
