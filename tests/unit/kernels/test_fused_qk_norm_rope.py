"""fused_qk_norm_rope: reference, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

import numpy as np
import pytest
from operators import launch
from shipped_kernels import KernelChecks, Sample, ShippedKernel

KERNEL = ShippedKernel("fused_qk_norm_rope")


def referred(qkv: np.ndarray, positions: np.ndarray, weights: np.ndarray, style: str) -> np.ndarray:
    """Run the reference with one query head, one key head and one value head."""
    dim = qkv.shape[1] // 3
    arrays = {"qkv": qkv, "wq": weights, "wk": 2.0 * weights, "positions": positions}
    axes = {"T": len(qkv), "Q": 1, "G": 1, "D": dim}
    return KERNEL.compute(arrays, axes, STYLE=style)["qkv"]


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
    axes = {"T": 5000, "Q": 1, "G": 1, "D": 64}
    positions = KERNEL.drawn(axes, "normal")["positions"]
    assert positions.min() == 0
    assert 40900 < positions.max() < 40960


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    operators = ({}, {"STYLE": "interleaved", "THETA": "theta_5e5"})
    baselines = tuple({"T": 3, "Q": 3, "G": 2, "D": dim} for dim in (64, 128, 256))
    samples = (Sample({"T": 17, "Q": 5, "G": 3, "D": 128}, 4),)
    workload = {"T": 64, "Q": 3, "G": 2, "D": 64}
    launches = (launch(64 * 7 // 8, 256, kernel="fused_qk_norm_rope<64>"),)
