"""per_token_quant_fp8: reference, kernels on the CPU, and near misses that are to be caught."""

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
DEFINITION = load_definition(ROOT / "search_spaces/sglang/per_token_quant_fp8.yaml")
SPEC = DEFINITION.spec
SOURCE = SPEC.source.read_text(encoding="utf-8")
ROWS, WIDTH = 64, 512
BLOCKS = "per_token_quant_fp8_block"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

STEP = "largest / kLargest;"
SCALED = "make_float2(pair.x * factor, pair.y * factor)"
CUT_OFF = "__uint_as_float(__float_as_uint({}) & 0xfff00000u)"
# What a kernel that is nearly right does instead: (before, after) in the text of the baseline, in
# what has a block for a row.
NEAR_MISSES = {
    "signs count in the largest": ("fmaxf(fabsf(pair.x), fabsf(pair.y))", "fmaxf(pair.x, pair.y)"),
    "the first warp's largest is taken": ("lane < kWarps ?", "lane < 1 ?"),
    "the largest becomes 240": (STEP, "largest / 240.0f;"),
    "the scale is rounded to 16 bits": (
        STEP,
        "__bfloat162float(__float2bfloat16(largest / kLargest));",
    ),
    "the scale is a power of two": (STEP, "exp2f(ceilf(log2f(largest / kLargest)));"),
    "the scale is the inverse": (
        "scale[blockIdx.x] = step",
        "scale[blockIdx.x] = step > 0.0f ? 1.0f / step : 0.0f",
    ),
    "codes are cut off": (
        SCALED,
        f"make_float2({CUT_OFF.format('pair.x * factor')}, {CUT_OFF.format('pair.y * factor')})",
    ),
    "zeros are divided by zero": ("step > 0.0f ? 1.0f / step : 0.0f", "1.0f / step"),
    "only the first row has a scale": (
        "if (thread == 0) scale",
        "if (thread == 0 && blockIdx.x == 0) scale",
    ),
}


def referred(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axes = {"T": x.shape[0], "K": x.shape[1]}
    outputs = load_reference(SPEC.reference).compute(np, {"x": x}, axes)
    return outputs["q"], outputs["scale"]


def test_codes_times_scale_give_the_row_and_its_largest_is_448() -> None:
    x = np.random.default_rng(0).standard_normal((5, 40)) * np.array([[1.0, 3, 1e-9, 1e9, 448]]).T
    q, scale = referred(x)
    np.testing.assert_allclose(q * scale[:, None], x, rtol=1e-12)
    np.testing.assert_allclose(np.abs(q).max(axis=1), 448.0, rtol=1e-12)


def test_a_row_of_zeros_has_scale_0_and_codes_of_0() -> None:
    q, scale = referred(np.zeros((2, 8)))
    assert not q.any()
    assert not scale.any()


def test_halfway_cases_stay_halfway_whatever_the_largest() -> None:
    # 27 / 63 of the largest is 192 to the last bit: between codes if anything is lost.
    q, _ = referred(np.array([[63.0, 27.0, 24.75]]))
    assert q[0].tolist() == [448.0, 192.0, 176.0]


@needs_compiler
@pytest.mark.parametrize(
    ("rows", "width"), [(5, 24), (5, 296), (5, 1032), (5, 4096), (2115, 64)], ids=str
)
def test_the_baseline_is_right_with_a_block_a_row_and_with_a_warp(
    evaluator: Evaluator, rows: int, width: int
) -> None:
    trial = evaluator.baseline(Workload.of({"T": rows, "K": width}))
    assert trial.status is Status.CORRECT, trial.reason


@needs_compiler
@pytest.mark.parametrize(("rows", "width"), [(3, 4096), (70, 1032)], ids=str)
def test_configs_of_the_template_are_right(evaluator: Evaluator, rows: int, width: int) -> None:
    workload = Workload.of({"T": rows, "K": width})
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
    request = CompileRequest(SOURCE.replace(before, after), (BLOCKS,), "sm_90a")
    result = compiler.submit(request).result()
    assert result.ok, result.error
    launch = Launch(BLOCKS, (ROWS, 1, 1), (256, 1, 1))
    workload = Workload.of({"T": ROWS, "K": WIDTH})
    program = Program("near miss", workload, (launch,), result.cubin, result.lowered)
    assert device.verify(program).status is Status.INCORRECT
