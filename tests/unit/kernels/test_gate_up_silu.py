"""gate_up_silu: reference, kernels on the CPU, and near misses that its check has to catch."""

from __future__ import annotations

import numpy as np
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.model.kernel import Launch

KERNEL = ShippedKernel("gate_up_silu")


def test_the_first_half_of_the_columns_gates_the_other() -> None:
    x, w = np.array([[1.0, 2.0]]), np.array([[0.0, 0], [1, 0], [0, 1], [0, 1]])
    out = KERNEL.compute({"x": x, "w": w}, {"M": 1, "D": 2, "K": 2})["out"]
    np.testing.assert_allclose(out, [[0.0, 2.0 / (1.0 + np.exp(-1.0))]])


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    baselines = (
        {"M": 3, "D": 20, "K": 264},
        {"M": 9, "D": 36, "K": 128},
        {"M": 40, "D": 4, "K": 256},
    )
    samples = tuple(
        Sample({"M": having.get("tokens", 3), "D": 36, "K": 512}, 1, having)
        for having in (
            {"path": "registers", "split": 1, "tokens": 8},
            {"path": "dots", "reduction": "last", "tokens": 4},
            {"path": "copies", "reduction": "cluster", "split": 4, "tokens": 8, "tile_n": 32},
            {"path": "wgmma", "split": 2, "share": 2, "tokens": 32, "tile_n": 64},
            {"path": "token_rows", "tokens": 64, "tile_n": 40},
        )
    )
    # With fewer tokens sums that are rounded are within the tolerance in one run of 250.
    workload = {"M": 7, "D": 36, "K": 512}
    launches = (
        Launch(
            "gate_up_silu<8>", (2, 1, 1), (128, 1, 1), arguments=("out", "x", "w", "M", "D", "K")
        ),
    )
