"""awq_dequantize: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import numpy as np
import pytest
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.model.kernel import Launch

KERNEL = ShippedKernel("awq_dequantize")


def referred(words: np.ndarray, scales: np.ndarray, zeros: np.ndarray, dtype: str) -> np.ndarray:
    arrays = {"qweight": words, "scales": scales, "zeros": zeros}
    axes = {"R": words.shape[0], "C": words.shape[1]}
    return KERNEL.compute(arrays, axes, DTYPE=dtype)["out"]


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
    drawn = KERNEL.drawn({"R": 300, "C": 40}, "extreme")
    assert drawn["qweight"].dtype == np.int32
    assert {tuple(drawn[name].shape) for name in ("zeros", "scales")} == {(3, 40), (3, 320)}
    nibbles = drawn["qweight"][..., None] >> 4 * np.arange(8) & 15
    assert len(np.unique(nibbles)) == 16
    assert (drawn["qweight"] < 0).any()
    assert (drawn["qweight"] >= 0).any()
    scales = drawn["scales"].astype(np.float16).astype(np.float64)
    assert np.isfinite(referred(drawn["qweight"], scales, drawn["zeros"], "float16")).all()


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    operators = ({"DTYPE": "float16"}, {"DTYPE": "bfloat16"})
    baselines = ({"R": 3, "C": 5},)
    samples = (Sample({"R": 131, "C": 68}), Sample({"R": 131, "C": 68}, 1, {"store": "bulk"}))
    workload = {"R": 256, "C": 20}
    launches = (Launch("awq_dequantize", (2, 16, 1), (16, 16, 1)),)
