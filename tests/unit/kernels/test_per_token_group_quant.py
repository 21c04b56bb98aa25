"""per_token_group_quant: reference, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

import numpy as np
import pytest
from operators import launch
from shipped_kernels import KernelChecks, Sample, ShippedKernel

KERNEL = ShippedKernel("per_token_group_quant")


def referred(x: np.ndarray, **operators: str) -> tuple[np.ndarray, np.ndarray]:
    width = x.shape[1] // 2 if operators.get("FUSED") == "true" else x.shape[1]
    axes = {"T": x.shape[0], "K": width}
    outputs = KERNEL.compute({"x": x}, axes, **operators)
    return outputs["q"], outputs["scale"]


@pytest.mark.parametrize(("quant", "largest"), [("fp8", 448.0), ("int8", 127.0)])
def test_codes_times_scale_give_the_row_and_a_group_s_largest_is_the_largest_code(
    quant: str, largest: float
) -> None:
    x = np.random.default_rng(0).standard_normal((5, 256)) * np.array([[1.0, 3, 1e-9, 1e9, 448]]).T
    q, scale = referred(x, QUANT=quant, SCALES="row")
    assert scale.shape == (5, 2)
    np.testing.assert_allclose(q * scale.repeat(128, axis=1), x, rtol=1e-12)
    np.testing.assert_allclose(np.abs(q).reshape(5, 2, 128).max(axis=2), largest, rtol=1e-12)


def test_scales_by_column_are_those_by_row_with_zeros_up_to_a_multiple_of_4() -> None:
    x = np.random.default_rng(1).standard_normal((5, 384))
    by_row, by_column = referred(x, SCALES="row"), referred(x, SCALES="column")
    np.testing.assert_array_equal(by_column[0], by_row[0])
    assert by_column[1].shape == (3, 8)
    np.testing.assert_array_equal(by_column[1][:, :5], by_row[1].T)
    assert not by_column[1][:, 5:].any()


def test_a_multiple_of_4_rows_needs_no_padding() -> None:
    assert referred(np.ones((8, 128)))[1].shape == (1, 8)


def test_no_scale_is_less_than_that_of_1e_10() -> None:
    x = np.zeros((1, 256))
    x[0, 128] = 1e-11
    q, scale = referred(x, SCALES="row")
    np.testing.assert_allclose(scale, 1e-10 / 448, rtol=1e-12)
    assert q[0, 128] == pytest.approx(44.8)
    assert np.count_nonzero(q) == 1


def test_halfway_cases_stay_halfway_whatever_the_largest() -> None:
    # 27 / 63 of the largest is 192 to the last bit: between codes if anything is lost.
    x = np.zeros((1, 128))
    x[0, :3] = 63.0, 27.0, 24.75
    assert referred(x)[0][0, :3].tolist() == [448.0, 192.0, 176.0]


def test_the_fused_operator_quantizes_silu_of_the_first_half_times_the_second() -> None:
    gate, up = np.random.default_rng(2).standard_normal((2, 3, 256))
    product = gate / (1.0 + np.exp(-gate)) * up
    fused = referred(np.concatenate([gate, up], axis=1), FUSED="true")
    for one, other in zip(fused, referred(product), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_product_beyond_the_largest_float_counts_as_that() -> None:
    x = np.full((1, 256), 3e38)
    q, scale = referred(x, FUSED="true", SCALES="row")
    assert (q == 448.0).all()
    assert scale[0, 0] == float(np.finfo(np.float32).max) / 448.0


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    operators = (
        {},
        {"QUANT": "int8"},
        {"SCALES": "row"},
        {"FUSED": "true"},
        {"QUANT": "int8", "SCALES": "row", "FUSED": "true"},
    )
    baselines = ({"T": 4, "K": 128}, {"T": 5, "K": 1152}, {"T": 66, "K": 384})
    samples = (Sample({"T": 7, "K": 1152}), Sample({"T": 515, "K": 128}))
    workload = {"T": 63, "K": 512}  # the scales of a column have padding
    launches = (launch(8, 256, kernel="per_token_group_quant"),)
