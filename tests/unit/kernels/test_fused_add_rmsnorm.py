"""fused_add_rmsnorm: reference, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

from collections.abc import Mapping
from runpy import run_path

import numpy as np
from operators import launch
from shipped_kernels import KernelChecks, Sample, ShippedKernel

KERNEL = ShippedKernel("fused_add_rmsnorm")
bfloat16 = run_path(str(KERNEL.spec.reference))["bfloat16"]


def referred(
    x: np.ndarray, residual: np.ndarray, w: np.ndarray, **operator: str
) -> Mapping[str, np.ndarray]:
    axes = {"T": x.shape[0], "H": x.shape[1]}
    return KERNEL.compute({"x": x, "residual": residual, "w": w}, axes, **operator)


def test_the_residual_is_rounded_to_nearest_even() -> None:
    ulp = 2.0**-7
    x = np.array([[1.0, 1.0, 1.0, 1.0, -1.0, 3e38, np.inf, 2.0**-133]])
    added = np.array([[ulp / 2, ulp * 1.5, ulp * 0.51, 0.0, -ulp / 2, -3e38, 1.0, 2.0**-133]])
    rounded = [1.0, 1.0 + 2 * ulp, 1.0 + ulp, 1.0, -1.0, 0.0, np.inf, 2.0**-132]
    assert bfloat16(np, x + added).tolist() == [rounded]
    assert np.isnan(bfloat16(np, np.array([np.nan]))).all()


def test_a_sum_in_fp32_rounds_to_the_same_residual_as_the_exact_one() -> None:
    rng = np.random.default_rng(0)
    shape = (1 << 16,)
    bits = rng.integers(0, 1 << 16, (2, *shape), dtype=np.uint32)
    bits = bits & 0x80FF | rng.integers(120, 140, (2, *shape), dtype=np.uint32) << 7
    a, b = (bits << 16).view(np.float32)
    in_fp32 = bfloat16(np, (a + b).astype(np.float64))
    exact = bfloat16(np, a.astype(np.float64) + b.astype(np.float64))
    np.testing.assert_array_equal(in_fp32, exact)


def test_what_cancels_out_is_zero() -> None:
    x = np.random.default_rng(0).standard_normal((3, 40))
    outputs = referred(x, -x, np.full(40, 3.0))
    assert not outputs["x"].any()
    assert not outputs["residual"].any()


def test_the_sum_or_the_new_residual_is_normalized() -> None:
    rng = np.random.default_rng(0)
    x, residual = (bfloat16(np, rng.standard_normal((5, 4096))) for _ in range(2))
    exact = referred(x, residual, np.ones(4096))
    rounded = referred(x, residual, np.ones(4096), ROUNDED="true")
    np.testing.assert_allclose((exact["x"] ** 2).mean(axis=1), 1.0, rtol=2e-6)
    directions = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in rounded.values()]
    np.testing.assert_allclose(*directions, rtol=1e-12)
    np.testing.assert_allclose(rounded["x"], exact["x"], rtol=2.0**-8)
    assert (rounded["x"] != exact["x"]).any()


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    operators = ({}, {"ROUNDED": "true"}, {"GEMMA": "true"})
    baselines = ({"T": 11, "H": 1032},)
    samples = (Sample({"T": 11, "H": 1032}),)
    workload = {"T": 64, "H": 512}
    launches = (launch(64, 64, kernel="fused_add_rmsnorm", shared_bytes=512 * 4),)
