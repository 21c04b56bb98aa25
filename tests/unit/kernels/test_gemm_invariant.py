"""gemm_invariant: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import shutil
from typing import ClassVar

import numpy as np
import pytest
from shipped_kernels import EditsOfTheTemplate, KernelChecks, Sample, ShippedKernel

from tuner.model.expressions import Value
from tuner.model.kernel import Launch, Workload

KERNEL = ShippedKernel("gemm_invariant")
# Places of stages are used more than once, and blocks walk over tiles where they may.
SMALL: dict[str, Value] = {"tile_k": 64, "stages": 2, "resident": 1}
BLOCK: dict[str, Value] = {**SMALL, "sum_by": "block"}


def test_rows_of_x_are_multiplied_by_rows_of_w() -> None:
    x, w = np.array([[1.0, 2], [3, 4]]), np.array([[1.0, 0], [0, 1], [1, 1]])
    y = KERNEL.compute({"x": x, "w": w}, {"T": 2, "N": 3, "K": 2})["y"]
    assert y.tolist() == [[1, 2, 3], [3, 4, 7]]


def test_sums_are_near_1_for_every_length() -> None:
    for depth in (256, 16384):
        axes = {"T": 4, "N": 32, "K": depth}
        x = np.random.default_rng(1).standard_normal((4, depth))
        w = KERNEL.drawn(axes, "normal")["w"].astype(np.float64)
        assert 0.7 < KERNEL.compute({"x": x, "w": w}, axes)["y"].std() < 1.4


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    baselines = ({"T": 3, "N": 40, "K": 264}, {"T": 70, "N": 72, "K": 128})
    samples = tuple(
        Sample({"T": tokens, "N": columns, "K": depth}, 1, having)
        for tokens, columns, depth, having in (
            (1, 72, 264, {**BLOCK, "parts": 1, "tile_t": 8, "tile_n": 64}),
            (9, 200, 512, {**BLOCK, "parts": 2, "tile_t": 16, "tile_n": 64, "groups": 1}),
            (70, 136, 512, {**BLOCK, "parts": 4, "tile_t": 48, "tile_n": 128, "groups": 2}),
            (40, 328, 512, {**BLOCK, "parts": 1, "tile_n": 128, "share": 2, "tile_t": 32}),
            (33, 520, 512, {**BLOCK, "parts": 2, "tile_n": 64, "share": 4, "tile_t": 32}),
            (100, 136, 384, {**BLOCK, "parts": 1, "tile_t": 96, "tile_n": 128, "groups": 1}),
            (5, 72, 512, {**SMALL, "parts": 2, "sum_by": "cluster", "tile_t": 8, "tile_n": 64}),
            (50, 136, 512, {**SMALL, "parts": 4, "sum_by": "cluster", "tile_t": 24, "groups": 2}),
            (3, 40, 512, {**SMALL, "parts": 8, "sum_by": "cluster", "tile_t": 8, "groups": 1}),
            (7, 136, 512, {**SMALL, "parts": 4, "sum_by": "last", "tile_t": 8, "tile_n": 64}),
            (40, 200, 512, {**SMALL, "parts": 2, "sum_by": "last", "tile_t": 32, "groups": 2}),
            (60, 264, 512, {**SMALL, "parts": 2, "sum_by": "last", "tile_t": 64, "share": 2}),
        )
    )
    workload = {"T": 3, "N": 72, "K": 512}
    launches = (
        Launch(
            "gemm_invariant<8>", (2, 1, 1), (128, 1, 1), arguments=("y", "x", "w", "T", "N", "K")
        ),
    )


class TestParts(EditsOfTheTemplate):
    kernel = KERNEL
    edits_of = "gemm_invariant's parts of one block"
    workload = Workload.of({"T": 40, "N": 136, "K": 512})
    having: ClassVar = {**BLOCK, "parts": 2, "tile_t": 64}


class TestPartsOfACluster(TestParts):
    edits_of = "gemm_invariant's parts of a cluster"
    having: ClassVar = {**SMALL, "parts": 2, "tile_t": 32, "sum_by": "cluster"}


class TestPartsThatTheLastAdds(TestParts):
    edits_of = "gemm_invariant's parts that the last adds up"
    having: ClassVar = {**SMALL, "parts": 2, "tile_t": 32, "sum_by": "last", "share": 2}
