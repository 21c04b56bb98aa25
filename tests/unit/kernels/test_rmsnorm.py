"""rmsnorm: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import numpy as np
from operators import launch
from shipped_kernels import KernelChecks, Sample, ShippedKernel

KERNEL = ShippedKernel("rmsnorm")


def referred(x: np.ndarray, w: np.ndarray, **operator: str) -> np.ndarray:
    axes = {"T": x.shape[0], "H": x.shape[1]}
    return KERNEL.compute({"x": x, "w": w}, axes, **operator)["out"]


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


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    baselines = tuple({"T": 3, "H": width} for width in (1, 100, 257, 4096))
    samples = (
        *(Sample({"T": 3, "H": width}) for width in (1032, 4096)),
        Sample({"T": 3, "H": 4096}, 2, {"streaming": "stores", "cluster": 1}),
        Sample({"T": 3, "H": 4096}, 1, {"streaming": "stores", "row_storage": "cache"}),
    )
    workload = {"T": 64, "H": 512}
    launches = (launch(64, 256, kernel="rmsnorm"),)
