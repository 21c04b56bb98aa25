"""gemm_small_m: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import shutil
from typing import ClassVar

import numpy as np
import pytest
from shipped_kernels import EditsOfTheTemplate, KernelChecks, Sample, ShippedKernel

from tuner.model.expressions import Value
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.tuning.evaluator import Evaluator

KERNEL = ShippedKernel("gemm_small_m")
# Places of stages are used more than once.
SHARED: dict[str, Value] = {
    **{"path": "wgmma", "tokens": 32, "tile_n": 64, "tile_k": 64, "stages": 2},
    **{"warps_n": 4, "warps_k": 1, "split": 2},
}
TOKEN_ROWS: dict[str, Value] = {
    **{"path": "token_rows", "tokens": 128, "tile_n": 48, "tile_k": 128, "stages": 2},
    **{"warps_n": 4, "reduction": "cluster"},
}
BOXES: dict[str, Value] = {
    **{"path": "boxes", "tile_n": 32, "tile_k": 64, "stages": 6, "warps_n": 2, "warps_k": 4},
}
# Several boxes in a stage.
DEEP: dict[str, Value] = {"tile_k": 256, "stages": 2}


def test_rows_of_x_are_multiplied_by_rows_of_w() -> None:
    x, w = np.array([[1.0, 2], [3, 4]]), np.array([[1.0, 0], [0, 1], [1, 1]])
    out = KERNEL.compute({"x": x, "w": w}, {"M": 2, "N": 3, "K": 2})["out"]
    assert out.tolist() == [[1, 2, 3], [3, 4, 7]]


def test_sums_are_near_1_for_every_length() -> None:
    for depth in (256, 16384):
        axes = {"M": 4, "N": 32, "K": depth}
        drawn = KERNEL.drawn(axes, "normal")
        x = np.random.default_rng(1).standard_normal((4, depth))
        out = KERNEL.compute({"x": x, "w": drawn["w"].astype(np.float64)}, axes)["out"]
        assert 0.7 < out.std() < 1.4


def test_extreme_rows_have_one_sign_and_a_scale_of_their_own() -> None:
    drawn = KERNEL.drawn({"M": 40, "N": 16, "K": 64}, "extreme")
    assert (drawn["x"] >= 0).all()
    assert drawn["x"].max() > 2.0**49
    assert drawn["x"].max(axis=1).min() < 2.0**-90
    signs = np.sign(drawn["w"])
    assert (signs == signs[:, :1]).all()


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    baselines = (
        {"M": 3, "N": 40, "K": 264},
        {"M": 9, "N": 72, "K": 128},
        {"M": 40, "N": 8, "K": 256},
    )
    samples = tuple(
        Sample({"M": tokens, "N": 264 if "share" in having else 40, "K": 512}, 1, having)
        for tokens, having in (
            (8, {"path": "registers", "reduction": "cluster", "split": 3, "tokens": 8}),
            (9, {"path": "registers", "reduction": "last", "token_memory": "shared", "tokens": 16}),
            (40, {"path": "registers", "reduction": "last", "tokens": 16}),
            (4, {"path": "dots", "split": 1, "token_memory": "registers", "tokens": 4}),
            (8, {"path": "copies", "reduction": "cluster", "split": 4, "tokens": 8, "tile_n": 32}),
            (16, {"path": "wgmma", "reduction": "last", "tokens": 16, "tile_n": 64}),
            (40, {"path": "wgmma", "reduction": "cluster", "split": 2, "tokens": 32}),
            (40, {**SHARED, "share": 2, "reduction": "cluster"}),
            (32, {**SHARED, "share": 4, "reduction": "last"}),
            (40, {"path": "token_rows", "tile_n": 40, "reduction": "last", "split": 2}),
            (100, {**TOKEN_ROWS, "share": 2, "split": 1, "warps_k": 1}),
            (70, {**TOKEN_ROWS, "share": 1, "split": 2, "warps_k": 2}),
            (3, {**BOXES, "tokens": 8, "split": 1}),
            (16, {**BOXES, "tokens": 16, "tile_k": 128, "stages": 3, "share": 2, "split": 1}),
            (20, {**BOXES, "tokens": 32, "split": 2, "warps_n": 1, "reduction": "last"}),
            (32, {**BOXES, "tokens": 32, "split": 2, "reduction": "cluster"}),
            (32, {**BOXES, **DEEP, "tokens": 32, "share": 4, "split": 1}),
            (16, {**BOXES, **DEEP, "tokens": 16, "tile_n": 48, "warps_n": 1, "warps_k": 8}),
        )
    )
    workload = {"M": 3, "N": 72, "K": 512}
    launches = (
        Launch(
            "gemm_small_m<8>", (2, 1, 1), (128, 1, 1), arguments=("out", "x", "w", "M", "N", "K")
        ),
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
class TestInFloat32:
    kernel = KERNEL

    @pytest.mark.parametrize("operators", [{"OUT": "fp32"}], scope="class")
    def test_routers_are_right(self, evaluator: Evaluator) -> None:
        workload = Workload.of({"M": 3, "N": 40, "K": 512})
        assert evaluator.baseline(workload).status is Status.CORRECT
        space = KERNEL.definition.chosen({"OUT": "fp32"}).space
        config = next(iter(valid_configs(space, evaluator.names(workload))))
        trial = evaluator.finish(evaluator.start(workload, config))
        assert trial.status is Status.CORRECT, f"{trial.config}: {trial.reason}"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
class TestBlocksThatShareX(EditsOfTheTemplate):
    kernel = KERNEL
    edits_of = "gemm_small_m's blocks that share x"
    workload, having = Workload.of({"M": 40, "N": 72, "K": 512}), {**SHARED, "share": 2}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
class TestBoxes(EditsOfTheTemplate):
    kernel = KERNEL
    edits_of = "gemm_small_m's boxes"
    workload = Workload.of({"M": 16, "N": 72, "K": 1536})
    having: ClassVar = {**BOXES, "tokens": 16, "tile_k": 128, "share": 1}


class TestBoxesThatBlocksShare(TestBoxes):
    edits_of = "gemm_small_m's boxes that blocks share"
    having: ClassVar = {**TestBoxes.having, "share": 2}
