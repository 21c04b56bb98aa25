"""gemm_fp8: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import numpy as np
import pytest
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.model.expressions import Value
from tuner.model.kernel import Launch

KERNEL = ShippedKernel("gemm_fp8")
# Places of stages are used more than once.
SHARED: dict[str, Value] = {
    **{"path": "wgmma", "tokens": 32, "tile_n": 64, "tile_k": 128, "stages": 2},
    **{"warps_n": 4, "warps_k": 1, "split": 2},
}
DEPTHS = {"registers": 512, "copies": 512, "wgmma": 1024, "token_rows": 1024}
ARGUMENTS = ("out", "x", "w", "x_scale", "w_scale", "M", "N", "K")


def drawn(axes: dict[str, int], fill: str, scales: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    given = KERNEL.reference.drawn(np, rng, axes, fill, {"SCALES": scales})
    shapes = {"x": ("M", "K"), "w": ("N", "K")}
    plain = {k: rng.standard_normal([axes[i] for i in shape]) for k, shape in shapes.items()}
    of_x = (axes["M"], 1) if scales == "token" else (axes["K"] // 128, -(-axes["M"] // 4) * 4)
    return {**plain, "x_scale": np.ones(of_x), **given}


def test_each_token_and_each_column_has_a_scale() -> None:
    x, w = np.array([[1.0, 2], [3, 4]]), np.array([[1.0, 0], [0, 1], [1, 1]])
    arrays = {"x": x, "w": w, "x_scale": np.array([[1.0], [2]]), "w_scale": np.ones((3, 1)) / 2}
    out = KERNEL.compute(arrays, {"M": 2, "N": 3, "K": 2})["out"]
    assert out.tolist() == [[0.5, 1, 1.5], [3, 4, 7]]


def test_each_block_of_128_has_a_scale() -> None:
    x, w = np.ones((1, 256)), np.ones((130, 256))
    x_scale, w_scale = np.array([[1.0, 9, 9, 9], [2, 9, 9, 9]]), np.array([[1.0, 2], [3, 4]])
    arrays = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale}
    out = KERNEL.compute(arrays, {"M": 1, "N": 130, "K": 256}, SCALES="block")["out"]
    assert out[0, [0, 127, 128]].tolist() == [128 * 5, 128 * 5, 128 * 11]


@pytest.mark.parametrize("scales", ["token", "block"])
def test_sums_are_near_1_for_every_length(scales: str) -> None:
    for depth in (256, 16384):
        axes = {"M": 4, "N": 130, "K": depth}
        out = KERNEL.compute(drawn(axes, "normal", scales), axes, SCALES=scales)["out"]
        assert 0.7 < out.std() < 1.4


@pytest.mark.parametrize("scales", ["token", "block"])
def test_extreme_rows_have_one_sign_and_a_scale_of_their_own(scales: str) -> None:
    arrays = drawn({"M": 40, "N": 16, "K": 256}, "extreme", scales)
    assert (arrays["x"] >= 0).all()
    assert arrays["x"].max() == 448
    assert np.log2(arrays["x_scale"].max() / arrays["x_scale"].min()) == 110
    signs = np.sign(arrays["w"])
    assert (signs * signs[:, :1] >= 0).all()


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    operators = ({}, {"SCALES": "block"})
    baselines = ({"M": 3, "N": 136, "K": 256}, {"M": 40, "N": 8, "K": 128})
    samples = tuple(
        Sample({"M": m, "N": 264 if "share" in of else 136, "K": DEPTHS[of["path"]]}, 1, of)
        for m, of in (
            (3, {"path": "registers", "split": 1, "token_memory": "registers"}),
            (9, {"path": "registers", "reduction": "last", "token_memory": "shared", "tokens": 16}),
            (8, {"path": "registers", "split": 2, "reduction": "cluster", "tokens": 8}),
            (20, {"path": "registers", "reduction": "last", "tokens": 16, "tile_n": 128}),
            (9, {"path": "copies", "split": 3, "reduction": "cluster", "tokens": 16, "tile_n": 64}),
            (16, {"path": "wgmma", "split": 3, "tokens": 16, "tile_n": 64}),
            (40, {"path": "wgmma", "split": 1, "tokens": 16}),
            (40, {**SHARED, "share": 2, "reduction": "cluster"}),
            (32, {**SHARED, "share": 4, "reduction": "last"}),
            (40, {"path": "token_rows", "tile_n": 32, "warps_n": 4, "stages": 2}),
            (100, {"path": "token_rows", "tile_n": 16, "tokens": 128, "share": 2, "split": 2}),
        )
    )
    workload = {"M": 3, "N": 72, "K": 512}
    launches = (Launch("gemm_fp8<8>", (2, 1, 1), (128, 1, 1), arguments=ARGUMENTS),)
