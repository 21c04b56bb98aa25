"""awq_dequantize: reference, kernels on the CPU, and near misses that its check has to catch."""

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
DEFINITION = load_definition(ROOT / "search_spaces/sglang/awq_dequantize.yaml")
SPEC = DEFINITION.spec
SOURCE = SPEC.source.read_text(encoding="utf-8")
ROWS, WORDS = 256, 20
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

PRODUCT = "__hmul2(__hsub2(w.pairs[k], z.pairs[k]), s.pairs[k])"
# What a kernel that is nearly right does instead: (before, after) in the text of the baseline.
NEAR_MISSES = {
    "nibbles are taken in their own order": (
        "word >> 4 * k & 0x000f000fu",
        "(word >> 8 * k & 15u) | (word >> 8 * k + 4 & 15u) << 16",
    ),
    "two pairs are exchanged": ("word >> 4 * k", "word >> 4 * (k ^ 1)"),
    "there are no zeros": (
        PRODUCT,
        "__hmul2(__hsub2(w.pairs[k], unpacked(0).pairs[k]), s.pairs[k])",
    ),
    "zeros are one higher": (
        PRODUCT,
        "__hmul2(__hsub2(__hsub2(w.pairs[k], z.pairs[k]), "
        "__hsub2(unpacked(0x11111111u).pairs[k], unpacked(0u).pairs[k])), s.pairs[k])",
    ),
    "weight and zero are scaled one by one": (
        PRODUCT,
        "__hsub2(__hmul2(__hsub2(w.pairs[k], unpacked(0u).pairs[k]), s.pairs[k]), "
        "__hmul2(__hsub2(z.pairs[k], unpacked(0u).pairs[k]), s.pairs[k]))",
    ),
    "the first group serves all rows": ("row / kGroup", "0"),
    "groups have 64 rows": ("kGroup = 128", "kGroup = 64"),
    "scales are those of the word before": ("(scales)[group]", "(scales)[group - (column > 0)]"),
}


def referred(words: np.ndarray, scales: np.ndarray, zeros: np.ndarray, dtype: str) -> np.ndarray:
    arrays = {"qweight": words, "scales": scales, "zeros": zeros}
    axes = {"R": words.shape[0], "C": words.shape[1]}
    return load_reference(SPEC.reference).compute(np, arrays, axes, DTYPE=dtype)["out"]


def test_nibbles_of_a_word_are_columns_in_the_order_of_awq() -> None:
    word = np.array([[0x76543210]], dtype=np.int32)
    rows = referred(word, np.ones((1, 8)), np.zeros((1, 1), np.int32), "float16")
    assert rows.tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]


def test_negative_words_have_a_highest_nibble_above_7() -> None:
    words = np.array([[-1]], dtype=np.int32)
    assert referred(words, np.ones((1, 8)), np.zeros((1, 1), np.int32), "float16").tolist() == [
        [15.0] * 8
    ]


def test_each_128_rows_have_scales_and_zeros_of_their_own() -> None:
    words = np.full((129, 1), 0x33333333, dtype=np.int32)
    scales = np.array([[2.0] * 8, [4.0] * 8])
    rows = referred(words, scales, np.array([[0x11111111], [0x44444444]], np.int32), "float16")
    assert (rows[:128] == 4.0).all()
    assert (rows[128] == -4.0).all()


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 10), ("bfloat16", 7)])
@pytest.mark.parametrize(("steps", "rounded"), [(1, 4), (3, 8)])
def test_a_product_halfway_is_rounded_to_even(
    dtype: str, bits: int, steps: int, rounded: int
) -> None:
    words = np.array([[0x33333333]], dtype=np.int32)
    scales = np.full((1, 8), 1.0 + steps * 2.0**-bits)
    rows = referred(words, scales, np.zeros((1, 1), np.int32), dtype)
    assert (rows == 3.0 + rounded * 2.0**-bits).all()


def test_inputs_have_words_of_both_signs_and_finite_products() -> None:
    reference = load_reference(SPEC.reference)
    assert reference.inputs is not None
    axes = {"R": 300, "C": 40}
    drawn = reference.inputs(np, np.random.default_rng(3), axes, "extreme")
    assert drawn["qweight"].dtype == np.int32
    assert {tuple(drawn[name].shape) for name in ("zeros", "scales")} == {(3, 40), (3, 320)}
    nibbles = drawn["qweight"][..., None] >> 4 * np.arange(8) & 15
    assert len(np.unique(nibbles)) == 16
    assert (drawn["qweight"] < 0).any()
    assert (drawn["qweight"] >= 0).any()
    scales = drawn["scales"].astype(np.float16).astype(np.float64)
    assert np.isfinite(referred(drawn["qweight"], scales, drawn["zeros"], "float16")).all()


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_baseline_and_configs_are_right(compiler: HostCompiler, dtype: str) -> None:
    chosen = DEFINITION.chosen({"DTYPE": dtype})
    device = HostDevice(chosen.spec, {"DTYPE": dtype})
    candidate = Candidate("template", chosen.space, Template.load(SPEC.template))
    evaluator = Evaluator(chosen.spec, candidate, {"DTYPE": dtype}, compiler, device)
    try:
        assert evaluator.baseline(Workload.of({"R": 3, "C": 5})).status is Status.CORRECT
        workload = Workload.of({"R": 131, "C": 68})
        configs = list(valid_configs(chosen.space, evaluator.names(workload)))
        bulk = [config for config in configs if config["store"] == "bulk"]
        sample = random.Random(7).sample(configs, 3)  # noqa: S311
        for pending in [evaluator.start(workload, config) for config in [*sample, bulk[0]]]:
            trial = evaluator.finish(pending)
            assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"
    finally:
        device.close()


@needs_compiler
@pytest.mark.parametrize(("before", "after"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_a_near_miss_is_caught(
    compiler: HostCompiler, device: HostDevice, before: str, after: str
) -> None:
    assert SOURCE.count(before) == 1
    request = CompileRequest(SOURCE.replace(before, after), ("awq_dequantize",), "sm_90a")
    result = compiler.submit(request).result()
    assert result.ok, result.error
    grid = (-(-WORDS // 16), -(-ROWS // 16), 1)
    launch = Launch("awq_dequantize", grid, (16, 16, 1))
    workload = Workload.of({"R": ROWS, "C": WORDS})
    program = Program("near miss", workload, (launch,), result.cubin, result.lowered)
    assert device.verify(program).status is Status.INCORRECT
