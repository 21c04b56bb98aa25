"""merge_state: reference, inputs, kernels on the CPU, and near misses that are to be caught."""

from __future__ import annotations

import numpy as np
import pytest
from operators import launch
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.device.inputs import INPUT_KINDS, NONFINITE

KERNEL = ShippedKernel("merge_state")
INF = float("inf")


def referred(
    v_a: np.ndarray, s_a: np.ndarray, v_b: np.ndarray, s_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    axes = dict(zip("THD", v_a.shape, strict=True))
    inputs = {"v_a": v_a, "s_a": s_a, "v_b": v_b, "s_b": s_b}
    with np.errstate(invalid="ignore"):
        outputs = KERNEL.compute(inputs, axes)
    return outputs["v_merged"], outputs["s_merged"]


def test_two_parts_of_the_keys_give_the_attention_over_all_of_them() -> None:
    rng = np.random.default_rng(0)
    scores, values = rng.standard_normal((3, 2, 9)), rng.standard_normal((9, 4))

    def attended(keys: slice) -> tuple[np.ndarray, np.ndarray]:
        weights = np.exp(scores[:, :, keys])
        sums = weights.sum(axis=2)
        return weights @ values[keys] / sums[:, :, None], np.log(sums)

    v_merged, s_merged = referred(*attended(slice(0, 5)), *attended(slice(5, 9)))
    expected_v, expected_s = attended(slice(0, 9))
    np.testing.assert_allclose(v_merged, expected_v, rtol=1e-12)
    np.testing.assert_allclose(s_merged, expected_s, rtol=1e-12)


@pytest.mark.parametrize("none", [INF, -INF])
def test_a_part_without_keys_changes_nothing(none: float) -> None:
    v_a, v_b = np.full((1, 1, 3), 2.0), np.full((1, 1, 3), 7.0)
    s, empty = np.full((1, 1), 1.5), np.full((1, 1), none)
    for v_merged, s_merged in (referred(v_a, s, v_b, empty), referred(v_b, empty, v_a, s)):
        assert v_merged.tolist() == v_a.tolist()
        assert s_merged.tolist() == s.tolist()


@pytest.mark.parametrize("a", [INF, -INF])
@pytest.mark.parametrize("b", [INF, -INF])
def test_two_parts_without_keys_give_nan(a: float, b: float) -> None:
    v = np.ones((1, 1, 3))
    v_merged, s_merged = referred(v, np.full((1, 1), a), v, np.full((1, 1), b))
    assert np.isnan(v_merged).all()
    assert np.isnan(s_merged).all()


@pytest.mark.parametrize("fill", [*INPUT_KINDS, NONFINITE])
def test_only_where_nan_is_told_from_untouched_memory_both_parts_are_empty(fill: str) -> None:
    given = KERNEL.drawn({"T": 64, "H": 40, "D": 8}, fill)
    empty = {name: np.isinf(s) for name, s in given.items()}
    if fill not in ("zeros", NONFINITE):
        assert not any(where.any() for where in empty.values())
        return
    for name, where in empty.items():
        assert 0.05 < where.mean() < 0.2
        assert {INF, -INF} <= set(given[name][where])
    assert bool((empty["s_a"] & empty["s_b"]).any()) is (fill == NONFINITE)


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    baselines = tuple({"T": 5, "H": 3, "D": width} for width in (8, 48, 512))
    samples = tuple(Sample({"T": 3, "H": 5, "D": width}, 4) for width in (48, 128))
    workload = {"T": 16, "H": 8, "D": 64}
    launches = (launch(16 * 8 * 64 // 1024, 128, kernel="merge_state"),)
