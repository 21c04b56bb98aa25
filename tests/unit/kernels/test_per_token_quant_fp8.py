"""per_token_quant_fp8: reference, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

import numpy as np
from operators import launch
from shipped_kernels import KernelChecks, Sample, ShippedKernel

# The near misses are in what has a block for a row.
KERNEL = ShippedKernel("per_token_quant_fp8")


def referred(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axes = {"T": x.shape[0], "K": x.shape[1]}
    outputs = KERNEL.compute({"x": x}, axes)
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


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    # with a block a row and with a warp
    baselines = (*({"T": 5, "K": width} for width in (24, 296, 1032, 4096)), {"T": 2115, "K": 64})
    samples = (Sample({"T": 3, "K": 4096}), Sample({"T": 70, "K": 1032}))
    workload = {"T": 64, "K": 512}
    launches = (launch(64, 256, kernel="per_token_quant_fp8_block"),)
