"""linear_add_rmsnorm: reference, kernels on the CPU, near misses that its check has to catch."""

from __future__ import annotations

import numpy as np
from shipped_kernels import KernelChecks, Sample, ShippedKernel

from tuner.model.kernel import Launch

KERNEL = ShippedKernel("linear_add_rmsnorm")


def test_the_product_is_added_and_the_sum_normalized() -> None:
    arrays = {
        "x": np.array([[1.0, 2.0]]),
        "w": np.array([[1.0, 0], [0, 1]]),
        "residual": np.array([[2.0, 2.0]]),
        "g": np.array([1.0, 0.5]),
    }
    found = KERNEL.compute(arrays, {"M": 1, "N": 2, "K": 2})
    assert found["residual"].tolist() == [[3.0, 4.0]]
    np.testing.assert_allclose(found["out"], [[3 / 12.5**0.5, 2 / 12.5**0.5]], rtol=1e-6)


class TestOnTheCpu(KernelChecks):
    kernel = KERNEL
    baselines = (
        {"M": 3, "N": 40, "K": 264},
        {"M": 9, "N": 72, "K": 128},
        {"M": 40, "N": 8, "K": 256},
    )
    samples = (
        Sample({"M": 3, "N": 40, "K": 512}, 1, {"path": "registers", "split": 3}),
        Sample({"M": 3, "N": 4096, "K": 256}, 1, {"path": "dots", "split": 1, "norm_blocks": 2}),
        Sample({"M": 20, "N": 72, "K": 512}, 1, {"path": "wgmma", "split": 2, "share": 2}),
        Sample({"M": 70, "N": 72, "K": 512}, 1, {"path": "token_rows", "split": 2, "tile_n": 40}),
    )
    workload = {"M": 3, "N": 72, "K": 512}
    launches = (
        Launch(
            "linear_sums<8>", (2, 1, 1), (128, 1, 1), arguments=("sums", "x", "w", "M", "N", "K")
        ),
        Launch(
            "linear_add_rmsnorm",
            (3, 1, 1),
            (256, 1, 1),
            arguments=("out", "residual", "sums", "g", "eps", "M", "N"),
        ),
    )
