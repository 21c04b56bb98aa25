"""per_token_quant_fp8: reference, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from host_programs import shared_cache

from tuner.compiler.base import CompileRequest
from tuner.compiler.host import HostCompiler
from tuner.device.base import Program
from tuner.device.host.device import HostDevice
from tuner.device.inputs import load_reference
from tuner.evaluate import Candidate, Evaluator
from tuner.kernel import Launch, Workload
from tuner.search.pool import valid_configs
from tuner.space_file import load_definition
from tuner.template import Template
from tuner.trial import Status

ROOT = Path(__file__).parents[3]
DEFINITION = load_definition(ROOT / "search_spaces/sglang/per_token_quant_fp8.yaml")
SPEC = DEFINITION.spec
SOURCE = SPEC.source.read_text(encoding="utf-8")
ROWS, WIDTH = 64, 512
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

STEP = "block_max(largest, maxima) / kLargest"
CODE = "__nv_fp8_e4m3(value)"
# What a kernel that is nearly right does instead: (before, after) in the text of the baseline.
NEAR_MISSES = {
    "signs count in the largest": ("fabsf(__bfloat162float(x[row + k]))", "x[row + k]"),
    "the largest becomes 240": (STEP, "block_max(largest, maxima) / 240.0f"),
    "the scale is rounded to 16 bits": (
        STEP,
        "__bfloat162float(__float2bfloat16(block_max(largest, maxima) / kLargest))",
    ),
    "the scale is a power of two": (
        STEP,
        "exp2f(ceilf(log2f(block_max(largest, maxima) / kLargest)))",
    ),
    "the scale is the inverse": (
        "scale[blockIdx.x] = step",
        "scale[blockIdx.x] = step > 0.0f ? 1.0f / step : 0.0f",
    ),
    "codes are cut off": (
        CODE,
        "__nv_fp8_e4m3(__uint_as_float(__float_as_uint(value) & 0xfff00000u))",
    ),
    "zeros are divided by zero": ("step > 0.0f ?", "true ?"),
    "only the first row has a scale": ("if (thread == 0)", "if (thread == 0 && blockIdx.x == 0)"),
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCompiler]:
    compiler = HostCompiler(timeout_s=30.0, cache=shared_cache(tmp_path_factory))
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def device() -> Iterator[HostDevice]:
    device = HostDevice(SPEC, {})
    yield device
    device.close()


@pytest.fixture(scope="module")
def evaluator(compiler: HostCompiler, device: HostDevice) -> Evaluator:
    candidate = Candidate("template", DEFINITION.space, Template.load(SPEC.template))
    return Evaluator(SPEC, candidate, {}, compiler, device)


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
@pytest.mark.parametrize("width", [300, 1025, 4096])
def test_the_baseline_is_right_for_any_width(evaluator: Evaluator, width: int) -> None:
    trial = evaluator.baseline(Workload.of({"T": 5, "K": width}))
    assert trial.status is Status.CORRECT, trial.reason


@needs_compiler
@pytest.mark.parametrize("width", [1032, 4096])
def test_configs_of_the_template_are_right(evaluator: Evaluator, width: int) -> None:
    workload = Workload.of({"T": 3, "K": width})
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
    request = CompileRequest(SOURCE.replace(before, after), ("per_token_quant_fp8",), "sm_90a")
    result = compiler.submit(request).result()
    assert result.ok, result.error
    launch = Launch("per_token_quant_fp8", (ROWS, 1, 1), (256, 1, 1))
    workload = Workload.of({"T": ROWS, "K": WIDTH})
    program = Program("near miss", workload, (launch,), result.cubin, result.lowered)
    assert device.verify(program).status is Status.WRONG
