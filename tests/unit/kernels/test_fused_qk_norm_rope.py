"""fused_qk_norm_rope: reference, kernels on the CPU, and near misses that are to be caught."""

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
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

ROOT = Path(__file__).parents[3]
DEFINITION = load_definition(ROOT / "search_spaces/sglang/fused_qk_norm_rope.yaml")
SPEC = DEFINITION.spec
SOURCE = SPEC.source.read_text(encoding="utf-8")
SHAPE = {"T": 64, "Q": 3, "G": 2, "D": 64}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SCALE = "rsqrtf(warp_sum(squares) / kDim + eps)"
POSITION = "const float position = positions[token];"
FREQUENCY = "powf(theta, -2.0f * pair / kDim)"
# What a kernel that is nearly right does instead: (before, after) in the text of the baseline.
NEAR_MISSES = {
    "eps is left out": (SCALE, "rsqrtf(warp_sum(squares) / kDim)"),
    "the squares are not divided": (SCALE, "rsqrtf(warp_sum(squares) + eps)"),
    "keys have the weights of queries": ("head < Q ? wq : wk", "wq"),
    "the first key counts as a query": ("head < Q ?", "head <= Q ?"),
    "values are rotated like keys": ("(Q + G)", "(Q + 2 * G)"),
    "pairs turn the other way": ("second ? other : -other", "second ? -other : other"),
    "pairs are those of the other style": ("#define STYLE neox", "#define STYLE interleaved"),
    "the next position is taken": (POSITION, "const float position = positions[token] + 1;"),
    "positions end at 32767": (
        POSITION,
        "const float position = positions[token] & 0x7fff;",
    ),
    "positions are rounded to 16 bits": (
        POSITION,
        "const float position = __bfloat162float(__float2bfloat16(positions[token]));",
    ),
    "every position is that of the first token": (POSITION, "const float position = positions[0];"),
    "frequencies have twice the distance": (FREQUENCY, "powf(theta, -4.0f * pair / kDim)"),
    "theta is 10000": (FREQUENCY, "powf(10000.0f, -2.0f * pair / kDim)"),
    "angles have 11 bits": (
        "sincosf(position * frequency,",
        "sincosf(__uint_as_float(__float_as_uint(position * frequency) & 0xfffff000u),",
    ),
}


def referred(qkv: np.ndarray, positions: np.ndarray, weights: np.ndarray, style: str) -> np.ndarray:
    """Run the reference with one query head, one key head and one value head."""
    dim = qkv.shape[1] // 3
    arrays = {"qkv": qkv, "wq": weights, "wk": 2.0 * weights, "positions": positions}
    axes = {"T": len(qkv), "Q": 1, "G": 1, "D": dim}
    return load_reference(SPEC.reference).compute(np, arrays, axes, STYLE=style)["qkv"]


@pytest.mark.parametrize("style", ["neox", "interleaved"])
def test_a_rotation_keeps_the_length_of_pairs_and_leaves_values_alone(style: str) -> None:
    qkv = np.random.default_rng(0).standard_normal((5, 24))
    there = referred(qkv, np.array([0, 1, 7, 4000, 40959]), np.ones(8), style)
    np.testing.assert_array_equal(there[:, 16:], qkv[:, 16:])
    at_0 = referred(qkv, np.zeros(5), np.ones(8), style)
    for start, length in ((0, 1.0), (8, 2.0)):
        head = slice(start, start + 8)
        np.testing.assert_allclose((there[:, head] ** 2).mean(axis=1), length**2, rtol=1e-5)
        assert np.abs(there[1:, head] - at_0[1:, head]).max() > 0.1
        mean = np.sqrt((qkv[:, head] ** 2).mean(axis=1, keepdims=True))
        np.testing.assert_allclose(at_0[:, head], length * qkv[:, head] / mean, rtol=1e-4)


@pytest.mark.parametrize(("style", "partner"), [("neox", 4), ("interleaved", 1)])
def test_the_first_pair_turns_by_the_position_itself(style: str, partner: int) -> None:
    qkv = np.zeros((1, 24))
    qkv[0, 0] = 1.0
    head = referred(qkv, np.array([2]), np.ones(8), style)[0, :8]
    length = np.sqrt(8.0 / (1.0 + 8.0e-6))
    assert head[0] == pytest.approx(length * np.cos(2.0))
    assert head[partner] == pytest.approx(length * np.sin(2.0))
    assert np.count_nonzero(head) == 2


def test_only_the_distance_of_two_positions_counts() -> None:
    rng = np.random.default_rng(1)
    qkv = np.tile(rng.standard_normal(192), (4, 1))
    rows = referred(qkv, np.array([30000, 30017, 5, 22]), np.ones(64), "neox")
    queries, keys = rows[:, :64], rows[:, 64:128]
    assert queries[0] @ keys[1] == pytest.approx(queries[2] @ keys[3])


def test_positions_go_from_0_to_the_last() -> None:
    reference = load_reference(SPEC.reference)
    assert reference.inputs is not None
    axes = {"T": 5000, "Q": 1, "G": 1, "D": 64}
    positions = reference.inputs(np, np.random.default_rng(2), axes, "normal")["positions"]
    assert positions.min() == 0
    assert 40900 < positions.max() < 40960


@needs_compiler
@pytest.mark.parametrize(
    "operators", [{}, {"STYLE": "interleaved", "THETA": "theta_5e5"}], ids=["neox", "interleaved"]
)
def test_baseline_and_configs_are_right(compiler: HostCompiler, operators: dict[str, str]) -> None:
    chosen = DEFINITION.chosen(operators)
    operators = {operator.name: operator.values[0] for operator in SPEC.operators} | operators
    device = HostDevice(chosen.spec, operators)
    candidate = Candidate("template", chosen.space, Template.load(SPEC.template))
    evaluator = Evaluator(chosen.spec, candidate, operators, compiler, device)
    try:
        for dim in (64, 128, 256):
            trial = evaluator.baseline(Workload.of({"T": 3, "Q": 3, "G": 2, "D": dim}))
            assert trial.status is Status.CORRECT, trial.reason
        workload = Workload.of({"T": 17, "Q": 5, "G": 3, "D": 128})
        configs = list(valid_configs(chosen.space, evaluator.names(workload)))
        sample = random.Random(7).sample(configs, 4)  # noqa: S311
        for pending in [evaluator.start(workload, config) for config in sample]:
            trial = evaluator.finish(pending)
            assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"
    finally:
        device.close()


@needs_compiler
@pytest.mark.parametrize(("before", "after"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_a_near_miss_is_caught(
    compiler: HostCompiler, device: HostDevice, before: str, after: str
) -> None:
    assert before in SOURCE
    kernel = "fused_qk_norm_rope<64>"
    request = CompileRequest(SOURCE.replace(before, after), (kernel,), "sm_90a")
    result = compiler.submit(request).result()
    assert result.ok, result.error
    heads = SHAPE["T"] * (SHAPE["Q"] + 2 * SHAPE["G"])
    launch = Launch(kernel, (-(-heads // 8), 1, 1), (256, 1, 1))
    program = Program("near miss", Workload.of(SHAPE), (launch,), result.cubin, result.lowered)
    assert device.verify(program).status is Status.INCORRECT
