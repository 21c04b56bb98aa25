"""fused_add_rmsnorm: reference, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

import importlib.util
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tuner.compiler.base import CompileRequest
from tuner.compiler.host import HostCompiler
from tuner.device.base import Program
from tuner.device.cpu.device import HostDevice
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

ROOT = Path(__file__).parents[3]
DEFINITION = load_definition(ROOT / "search_spaces/sglang/fused_add_rmsnorm.yaml")
SPEC = DEFINITION.spec
SOURCE = SPEC.source.read_text(encoding="utf-8")
ROWS, WIDTH = 64, 512
OPERATORS = [{}, {"ROUNDED": "true"}, {"GEMMA": "true"}]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SCALE = "rsqrtf(block_sum(squares, partial) / H + eps)"
KEPT = "ROUNDED ? __bfloat162float(stored.values[k]) : sum;"
STORED = "__float2bfloat16(sum);"
SQUARES = "squares += sum * sum;"
# What a kernel that is nearly right does instead: (before, after) in the text of the baseline.
NEAR_MISSES = {
    "eps is left out": (SCALE, "rsqrtf(block_sum(squares, partial) / H)"),
    "the scale is rounded to 16 bits": (
        SCALE,
        "__bfloat162float(__float2bfloat16(rsqrtf(block_sum(squares, partial) / H + eps)))",
    ),
    "the rounded sum is normalized": (KEPT, "__bfloat162float(stored.values[k]);"),
    "only x is normalized": (KEPT, "__bfloat162float(a.values[k]);"),
    "the squares are those of x": (
        SQUARES,
        "squares += __bfloat162float(a.values[k]) * __bfloat162float(a.values[k]);",
    ),
    "the residual is cut off": (
        STORED,
        "__float2bfloat16(__uint_as_float(__float_as_uint(sum) & 0xffff0000u));",
    ),
    "the residual stays as it was": ("row_residual[i] = stored;", "row_residual[i] = b;"),
    "the residual is what was normalized": (
        "row_x[i] = r;",
        "row_x[i] = r;\n    row_residual[i] = r;",
    ),
}


@pytest.fixture(scope="module")
def module() -> ModuleType:
    found = importlib.util.spec_from_file_location("fused_add_rmsnorm", SPEC.reference)
    assert found is not None
    assert found.loader is not None
    loaded = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    return loaded


def referred(
    module: ModuleType, x: np.ndarray, residual: np.ndarray, w: np.ndarray, **operator: str
) -> Mapping[str, np.ndarray]:
    axes = {"T": x.shape[0], "H": x.shape[1]}
    return module.reference(np, {"x": x, "residual": residual, "w": w}, axes, **operator)


def evaluator_for(
    operators: Mapping[str, str], compiler: HostCompiler, device: HostDevice
) -> Evaluator:
    candidate = Candidate("template", DEFINITION.space, Template.load(SPEC.template))
    return Evaluator(SPEC, candidate, operators, compiler, device)


def test_the_residual_is_rounded_to_nearest_even(module: ModuleType) -> None:
    ulp = 2.0**-7
    x = np.array([[1.0, 1.0, 1.0, 1.0, -1.0, 3e38, np.inf, 2.0**-133]])
    added = np.array([[ulp / 2, ulp * 1.5, ulp * 0.51, 0.0, -ulp / 2, -3e38, 1.0, 2.0**-133]])
    rounded = [1.0, 1.0 + 2 * ulp, 1.0 + ulp, 1.0, -1.0, 0.0, np.inf, 2.0**-132]
    assert module.bfloat16(np, x + added).tolist() == [rounded]
    assert np.isnan(module.bfloat16(np, np.array([np.nan]))).all()


def test_a_sum_in_fp32_rounds_to_the_same_residual_as_the_exact_one(module: ModuleType) -> None:
    rng = np.random.default_rng(0)
    shape = (1 << 16,)
    bits = rng.integers(0, 1 << 16, (2, *shape), dtype=np.uint32)
    bits = bits & 0x80FF | rng.integers(120, 140, (2, *shape), dtype=np.uint32) << 7
    a, b = (bits << 16).view(np.float32)
    in_fp32 = module.bfloat16(np, (a + b).astype(np.float64))
    exact = module.bfloat16(np, a.astype(np.float64) + b.astype(np.float64))
    np.testing.assert_array_equal(in_fp32, exact)


def test_what_cancels_out_is_zero(module: ModuleType) -> None:
    x = np.random.default_rng(0).standard_normal((3, 40))
    outputs = referred(module, x, -x, np.full(40, 3.0))
    assert not outputs["x"].any()
    assert not outputs["residual"].any()


def test_the_sum_or_the_new_residual_is_normalized(module: ModuleType) -> None:
    rng = np.random.default_rng(0)
    x, residual = (module.bfloat16(np, rng.standard_normal((5, 4096))) for _ in range(2))
    exact = referred(module, x, residual, np.ones(4096))
    rounded = referred(module, x, residual, np.ones(4096), ROUNDED="true")
    np.testing.assert_allclose((exact["x"] ** 2).mean(axis=1), 1.0, rtol=2e-6)
    directions = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in rounded.values()]
    np.testing.assert_allclose(*directions, rtol=1e-12)
    np.testing.assert_allclose(rounded["x"], exact["x"], rtol=2.0**-8)
    assert (rounded["x"] != exact["x"]).any()


@needs_compiler
@pytest.mark.parametrize("operators", OPERATORS, ids=str)
def test_baseline_and_configs_of_the_template_are_right(
    compiler: HostCompiler, operators: Mapping[str, str]
) -> None:
    device = HostDevice(SPEC, operators)
    try:
        evaluator = evaluator_for(operators, compiler, device)
        workload = Workload.of({"T": 11, "H": 1032})
        configs = list(valid_configs(DEFINITION.space, evaluator.names(workload)))
        sample = random.Random(7).sample(configs, 3)  # noqa: S311
        for pending in [evaluator.start(workload, config) for config in sample]:
            trial = evaluator.finish(pending)
            assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"
        trial = evaluator.baseline(workload)
        assert trial.status is Status.CORRECT, trial.reason
    finally:
        device.close()


@needs_compiler
@pytest.mark.parametrize(("before", "after"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_a_near_miss_is_caught(
    compiler: HostCompiler, device: HostDevice, before: str, after: str
) -> None:
    assert SOURCE.count(before) == 1
    request = CompileRequest(SOURCE.replace(before, after), ("fused_add_rmsnorm",), "sm_90a")
    result = compiler.submit(request).result()
    assert result.ok, result.error
    launch = Launch("fused_add_rmsnorm", (ROWS, 1, 1), (64, 1, 1), shared_bytes=WIDTH * 4)
    workload = Workload.of({"T": ROWS, "H": WIDTH})
    program = Program("near miss", workload, (launch,), result.cubin, result.lowered)
    assert device.verify(program).status is Status.INCORRECT
