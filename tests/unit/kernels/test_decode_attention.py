"""decode_attention: reference, batches of several lengths, kernels on the CPU, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.model.expressions import Value
from tuner.model.kernel import Launch

KERNEL = ShippedKernel("decode_attention")
AXES = {"B": 3, "L": 70, "S": 100, "H": 2, "G": 4, "D": 128, "P": 1, "W": 75}
WIDE: dict[str, Value] = {"streaming": True, "l2_promotion": 128, "pdl": True, "early": "lists"}
CHUNKS: dict[str, Value] = {**WIDE, "schedule": "chunks", "min_blocks": 1}
SHARES: dict[str, Value] = {**WIDE, "schedule": "shares"}


def test_config():
    pass


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    baselines = (
        AXES,
        {**AXES, "D": 64, "P": 16, "W": 5},
        {**AXES, "D": 256, "P": 64, "W": 2},
    )
    samples = (
        Sample(AXES, 1, {**CHUNKS, "splits": 1, "warps": 2, "tokens": 16, "stages": 2, "heads": 1}),
        Sample(AXES, 1, {**CHUNKS, "splits": 3, "warps": 1, "tokens": 16, "combine": "last", "heads": 2}),
        Sample(AXES, 1, {**CHUNKS, "splits": 3, "warps": 1, "tokens": 16, "combine": "cluster", "heads": 1}),
        Sample(AXES, 1, {**CHUNKS, "splits": 2, "warps": 2, "tokens": 16, "combine": "launch", "heads": 1}),
        Sample(AXES, 1, {**SHARES, "warps": 1, "tokens": 16, "min_blocks": 1, "heads": 1}),
        Sample(AXES, 1, {**SHARES, "schedule": "teams", "warps": 2, "tokens": 16, "min_blocks": 1, "heads": 1}),
        Sample({**AXES, "G": 16}, 1, {**CHUNKS, "splits": 2, "warps": 1, "tokens": 16, "combine": "last"}),
        Sample({**AXES, "D": 64, "P": 16, "W": 5, "G": 1}, 1, {**CHUNKS, "splits": 1, "warps": 2, "tokens": 32}),
        Sample({**AXES, "D": 256, "P": 64, "W": 2, "G": 7}, 1, {**CHUNKS, "splits": 1, "warps": 2, "tokens": 32}),
    )
    workload = AXES
    launches = (Launch("decode_attention<128>", (8, 3, 1), (256, 1, 1)),)
    test_a_near_miss_is_caught = None
