"""per_token_quant_fp8: reference, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

import numpy as np
from operators import launch
from shipped_kernels import KernelChecks, Sample, ShippedKernel

# The edits are in what has a block for a row.
KERNEL = ShippedKernel("per_token_quant_fp8")

STEP = "largest / kLargest;"
SCALED = "make_float2(pair.x * factor, pair.y * factor)"
CUT_OFF = "__uint_as_float(__float_as_uint({}) & 0xfff00000u)"
# What a kernel that is nearly right does instead: (before, after) in the text of the baseline, in
# what has a block for a row.
NEAR_MISSES = {
    "signs count in the largest": ("fmaxf(fabsf(pair.x), fabsf(pair.y))", "fmaxf(pair.x, pair.y)"),
    "the first warp's largest is taken": ("lane < kWarps ?", "lane < 1 ?"),
    "the largest becomes 240": (STEP, "largest / 240.0f;"),
    "the scale is rounded to 16 bits": (
        STEP,
        "__bfloat162float(__float2bfloat16(largest / kLargest));",
    ),
    "the scale is a power of two": (STEP, "exp2f(ceilf(log2f(largest / kLargest)));"),
    "the scale is the inverse": (
        "scale[blockIdx.x] = step",
        "scale[blockIdx.x] = step > 0.0f ? 1.0f / step : 0.0f",
    ),
    "codes are cut off": (
        SCALED,
        f"make_float2({CUT_OFF.format('pair.x * factor')}, {CUT_OFF.format('pair.y * factor')})",
    ),
    "zeros are divided by zero": ("step > 0.0f ? 1.0f / step : 0.0f", "1.0f / step"),
    "only the first row has a scale": (
        "if (thread == 0) scale",
        "if (thread == 0 && blockIdx.x == 0) scale",
    ),
}


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
    near_misses = NEAR_MISSES
    workload = {"T": 64, "K": 512}
    launches = (launch(64, 256, kernel="per_token_quant_fp8_block"),)
