"""gemm_small_m: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.search.pool import valid_configs
from tuner.tuning.evaluator import Evaluator

KERNEL = ShippedKernel("gemm_small_m")


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
        Sample({"M": tokens, "N": 40, "K": 512}, 1, having)
        for tokens, having in (
            (8, {"path": "registers", "reduction": "cluster", "split": 3, "tokens": 8}),
            (16, {"path": "registers", "reduction": "last", "token_memory": "shared", "tokens": 16}),
            (40, {"path": "registers", "reduction": "last", "tokens": 16}),
            (4, {"path": "dots", "split": 1, "token_memory": "registers", "tokens": 4}),
            (8, {"path": "copies", "reduction": "cluster", "split": 4, "tokens": 8, "tile_n": 32}),
            (16, {"path": "wgmma", "reduction": "last", "tokens": 16, "tile_n": 64}),
            (40, {"path": "wgmma", "reduction": "cluster", "split": 2, "tokens": 32, "share": 1}),
            (40, {"path": "wgmma", "split": 1, "tokens": 32, "tile_n": 64, "share": 2}),
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
