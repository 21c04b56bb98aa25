"""moe_sum_reduce: reference, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

import numpy as np
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.model.kernel import Launch

KERNEL = ShippedKernel("moe_sum_reduce")


def referred(x: np.ndarray) -> np.ndarray:
    axes = dict(zip("TKH", x.shape, strict=True))
    return KERNEL.compute({"x": x}, axes)["y"]


def test_the_experts_of_a_token_are_added_up_and_scaled() -> None:
    x = np.arange(2 * 3 * 4.0).reshape(2, 3, 4)
    assert referred(x).tolist() == [[30.0, 37.5, 45.0, 52.5], [120.0, 127.5, 135.0, 142.5]]


def test_the_scale_is_that_of_the_search_space() -> None:
    (scale,) = (one.value for one in KERNEL.spec.arguments if one.name == "scale")
    assert scale is not None
    assert scale.evaluate({}) == referred(np.ones((1, 1, 1)))[0, 0]


def test_extreme_columns_have_one_sign_and_all_magnitudes() -> None:
    x = KERNEL.drawn({"T": 9, "K": 8, "H": 64}, "extreme")["x"]
    assert x.shape == (9, 8, 64)
    assert ((x >= 0).all(axis=1) | (x <= 0).all(axis=1)).all()
    largest = np.finfo(np.float32).max
    beyond = np.abs(referred(x.astype(np.float64))) > largest
    assert 0 < beyond.mean() < 0.5
    assert (np.abs(x) < 2.0**-126).any()


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    # each kernel of the baseline
    baselines = tuple(
        dict(zip("TKH", sizes, strict=True))
        for sizes in [(3, 8, 300), (3, 5, 100), (130, 9, 40), (257, 3, 136), (260, 2, 528)]
    )
    samples = tuple(Sample({"T": 3, "K": experts, "H": 1032}, 4) for experts in (5, 9))
    workload = {"T": 16, "K": 8, "H": 512}
    launches = (Launch("sum_by_elements", (2, 16, 1), (256, 1, 1)),)
