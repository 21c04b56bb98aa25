"""Numbers of a kernel that its problem has too: they may say what is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
from posed_problem import TWICE

pytest.importorskip("torch")

from tuner.extensions.draft.drafting import draft
from tuner.source import read_source

KERNEL = """#define BLOCK_SIZE 96
#define STRIPE 8
#define ROWS_PER_BLOCK 8
#define USE_SHARED 1
__global__ void twice(const float* __restrict__ x, float* __restrict__ out, int rows, int width) {
  const int first = blockIdx.x * ROWS_PER_BLOCK;
  for (int row = first; row < min(first + ROWS_PER_BLOCK, rows); ++row)
    for (int i = threadIdx.x * STRIPE; i < width; i += BLOCK_SIZE * STRIPE)
      for (int k = i; k < min(i + STRIPE, width); ++k) {
        const float v = x[row * width + k];
        out[row * width + k] = USE_SHARED ? 2.0f * v + 0.5f * fmaxf(v, 0.0f) : 0.0f;
      }
}

void launch(const float* x, float* out, int rows, int width) {
  twice<<<(rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK, BLOCK_SIZE>>>(x, out, rows, width);
}
"""


def test_a_number_that_the_problem_has_too_is_no_parameter_unless_it_splits_work(
    tmp_path: Path,
) -> None:
    kernel, problem = tmp_path / "twice.cu", tmp_path / "twice.py"
    kernel.write_text(KERNEL, encoding="utf-8")
    problem.write_text(TWICE.replace("0.5 *", "torch.ones(1) * 1 / 2 *"), encoding="utf-8")
    alone, stated = (draft(read_source(kernel), problem=one) for one in (None, problem))
    assert {"stripe", "rows_per_block", "block_size", "use_shared"} <= {*alone.parameters}
    assert "stripe" not in stated.parameters, "8 are the problem's rows"
    assert {"rows_per_block", "block_size", "use_shared"} <= {*stated.parameters}
    assert "STRIPE = 8 (line 2) is left out: the problem has this number too" in stated.space_yaml
