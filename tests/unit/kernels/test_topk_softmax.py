"""topk_softmax: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import numpy as np
import pytest
from operators import launch
from scipy.special import softmax
from shipped_kernels import KernelChecks, Sample, ShippedKernel

KERNEL = ShippedKernel("topk_softmax")


def referred(
    logits: np.ndarray, k: int = 8, renormalize: str = "false"
) -> tuple[np.ndarray, np.ndarray]:
    axes = {"T": logits.shape[0], "E": logits.shape[1], "k": k}
    outputs = KERNEL.compute({"logits": logits}, axes, RENORMALIZE=renormalize)
    return outputs["weights"], outputs["ids"]


def test_weights_are_the_softmax_over_all_experts_largest_first() -> None:
    logits = np.random.default_rng(0).permuted(np.arange(5 * 40.0).reshape(5, 40) / 7, axis=1)
    weights, ids = referred(logits)
    probabilities = softmax(logits, axis=1)
    np.testing.assert_array_equal(ids, np.argsort(-probabilities, axis=1)[:, :8])
    np.testing.assert_allclose(weights, -np.sort(-probabilities, axis=1)[:, :8], rtol=1e-12)


def test_renormalized_weights_add_up_to_1_and_keep_their_ratios() -> None:
    logits = np.random.default_rng(1).standard_normal((5, 40))
    plain, ids = referred(logits)
    weights, same_ids = referred(logits, renormalize="true")
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(weights / weights[:, :1], plain / plain[:, :1], rtol=1e-12)
    np.testing.assert_array_equal(ids, same_ids)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([0.0] * 10, range(8)),
        ([-0.0, 0.0] * 5, range(8)),
        ([1, 2, 1, 2, 1, 2, 1, 2, 1, 2], [1, 3, 5, 7, 9, 0, 2, 4]),
    ],
)
def test_of_equal_logits_the_lower_id_comes_first(row: list[float], expected: list[int]) -> None:
    assert referred(np.array([row], float))[1].tolist() == [list(expected)]


def test_k_is_anything_up_to_all_experts() -> None:
    logits = np.random.default_rng(2).standard_normal((5, 9))
    weights, ids = referred(logits, 9)
    assert sorted(ids[0]) == list(range(9))
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
    fewer, first = referred(logits, 1)
    np.testing.assert_array_equal(first, ids[:, :1])
    np.testing.assert_array_equal(fewer, weights[:, :1])


def test_logits_rank_where_their_probabilities_are_all_0() -> None:
    row = np.array([[-3e38, -2e38, -1e38, 0.0, 1e38, 2e38, 3e38, -2.5e38, -1.5e38]])
    weights, ids = referred(row)
    assert weights[0].tolist() == [1.0] + [0.0] * 7
    assert ids.tolist() == [[6, 5, 4, 3, 2, 8, 1, 7]]


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    operators = ({}, {"RENORMALIZE": "true"})
    baselines = tuple(
        {"T": 3, "E": experts, "k": k}
        for experts, k in [
            *((8, 2), (16, 16), (32, 4), (64, 6)),
            *((100, 5), (128, 8), (256, 8), (512, 10)),
        ]
    )
    samples = tuple(
        Sample({"T": 3, "E": experts, "k": k}, 1, {"pick": pick})
        for experts, k in [(60, 4), (256, 8)]
        for pick in ("chain", "chains", "threes", "crossed", "sorted", "merged")
    )
    # a quarter of the rows are without numbers in one of the fills
    workload = {"T": 64, "E": 128, "k": 8}
    launches = (launch(8, 128, kernel="topk_softmax<128>"),)
