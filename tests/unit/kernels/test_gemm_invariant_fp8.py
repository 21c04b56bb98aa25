"""gemm_invariant_fp8: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import numpy as np
import pytest
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.model.expressions import Value
from tuner.model.kernel import Launch

KERNEL = ShippedKernel("gemm_invariant_fp8")
# Places of stages are used more than once, and blocks walk over tiles where they may.
SMALL: dict[str, Value] = {"tile_k": 128, "stages": 2, "resident": 1, "flight": 1}
BLOCK: dict[str, Value] = {**SMALL, "sum_by": "block"}
CLUSTER: dict[str, Value] = {**SMALL, "sum_by": "cluster"}
LAST: dict[str, Value] = {**SMALL, "sum_by": "last"}
TWO: dict[str, Value] = {"tile_k": 256, "flight": 2}


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    operators = ({"SCALES": "block"}, {"SCALES": "token"})
    baselines = ({"T": 3, "N": 136, "K": 256}, {"T": 70, "N": 72, "K": 128})
    samples = tuple(
        Sample({"T": tokens, "N": columns, "K": depth}, 1, having)
        for tokens, columns, depth, having in (
            (1, 72, 384, {**BLOCK, "parts": 1, "tile_t": 8, "tile_n": 64}),
            (9, 200, 1024, {**BLOCK, **TWO, "parts": 2, "tile_t": 16, "tile_n": 64, "groups": 1}),
            (70, 136, 1024, {**BLOCK, "parts": 4, "tile_t": 48, "tile_n": 128, "groups": 2}),
            (40, 328, 1024, {**BLOCK, "parts": 1, "tile_n": 128, "share": 2, "tile_t": 32}),
            (33, 520, 1024, {**BLOCK, "parts": 2, "tile_n": 64, "share": 4, "tile_t": 32}),
            (70, 200, 768, {**BLOCK, **TWO, "parts": 1, "tile_t": 48, "tile_n": 192}),
            (200, 136, 512, {**BLOCK, "parts": 1, "tile_t": 256, "tile_n": 128, "groups": 2}),
            (5, 72, 1024, {**CLUSTER, **TWO, "parts": 2, "tile_t": 8, "tile_n": 64}),
            (50, 136, 1024, {**CLUSTER, "parts": 4, "tile_t": 24, "groups": 2}),
            (3, 40, 1024, {**CLUSTER, "parts": 8, "tile_t": 8, "groups": 1}),
            (7, 136, 1024, {**LAST, "parts": 4, "tile_t": 8, "tile_n": 64}),
            (40, 200, 1024, {**LAST, "parts": 2, "tile_t": 32, "groups": 2}),
            (60, 264, 1024, {**LAST, "parts": 2, "tile_t": 64, "share": 2}),
        )
    )
    workload = {"T": 3, "N": 72, "K": 512}
    launches = (
        Launch(
            "gemm_invariant_fp8<8>",
            (2, 1, 1),
            (128, 1, 1),
            arguments=("y", "x", "w", "x_scale", "w_scale", "T", "N", "K"),
        ),
    )
