"""The page's part on invariant products: who is free, who is not, and which figures are asked."""

from __future__ import annotations

from typing import Any

import invariant_section
import pytest

from tests.unit.benchmarks.test_gemm_section import result


def measured(*peers: dict[str, float]) -> list[dict[str, Any]]:
    content = result("gemm_invariant", *peers)
    for place, workload in enumerate(content["workloads"]):
        workload["axes"] = {"T": 2 ** (6 * place), "N": 4096, "K": 4096}
    return [content]


def test_the_faster_free_product_counts_and_what_is_missed_is_said() -> None:
    near, far = {"cublaslt": 0.9, "pytorch": 0.95}, {"cublaslt": 0.7, "sgl-triton": 4.0}
    text = "\n".join(invariant_section.section(measured(near, far), "h200"))
    assert "1 to 64 tokens: geometric mean; worst | 0.92x; 0.80x | 0.79x; 0.70x **missed**" in text
    assert "| over SGLang, Triton, 1 to 64 tokens | 2x | 4.00x |" in text
    assert "128 to 2,048 tokens: geometric mean; worst | 0.88x; 0.75x | not measured |" in text
    assert "Measured of 1 layer: N and K of 4,096 and 4,096." in text
    assert "| 10.0 | 9.0 0.90x | - | - | - | - |" in text
    assert "`gemm_invariant_fp8` is verified on the CPU alone." in text


@pytest.mark.parametrize(("free", "missed"), [(0.92, False), (0.91, True)])
def test_a_figure_is_met_where_mean_and_worst_are(free: float, missed: bool) -> None:
    text = "\n".join(invariant_section.section(measured({"pytorch": free}), "h200"))
    assert ("**missed**" in text) == missed
