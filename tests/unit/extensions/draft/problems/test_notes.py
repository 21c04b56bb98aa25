"""What is always true of a problem's buffers and inputs is told; what holds by chance is not."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tuner.device.problems import BenchProblem
from tuner.extensions.draft.drafting import draft
from tuner.extensions.draft.problems.notes import find_notes
from tuner.source import read_source

PROBLEM = """
import torch

rows = 24
width = 20


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(1, 1, width, width)))
        self.register_buffer("causal", torch.full((width, width), -float("inf")).triu(1))
        self.register_buffer("steps", torch.arange(128.0))
        self.register_buffer("scale", torch.full((1, 1), 2.5))
        self.register_buffer("twos", torch.full((8,), 2.0))
        self.register_buffer("table", torch.arange(16.0).repeat_interleave(8).view(16, 8))
        self.register_buffer("shared", torch.randn(1, 9).repeat(9, 1))
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x, sign, index):
        return x * sign


def get_inputs():
    sign = torch.randint(0, 2, (rows, width)).float() * 2 - 1
    return [torch.rand(rows, width), sign, torch.randint(0, 1000, (rows, width))]
"""


@pytest.fixture
def problem(tmp_path: Path) -> BenchProblem:
    (tmp_path / "notes.py").write_text(PROBLEM, "utf-8")
    return BenchProblem(tmp_path / "notes.py")


def test_facts_of_buffers_and_of_inputs_that_are_no_plain_draws(problem: BenchProblem) -> None:
    assert find_notes(problem, [{"rows": 24, "width": 20}]) == {
        "mask": "only 0, 1, 48% zeros, lower triangular",
        "causal": "only -inf, 0, 52% zeros, upper triangular",
        "steps": "ascending in each row",
        "twos": "all 2",
        "table": "one value a row",
        "shared": "the same for every first index",
        "sign": "only -1, 1",
    }


def test_a_draft_writes_them(problem: BenchProblem) -> None:
    kernel = problem.path.with_suffix(".cu")
    arrays = ["mask", "causal", "steps", "twos", "table", "shared", "weight"]
    inputs = ", ".join(f"const float* {name}" for name in ("x", "sign", *arrays))
    kernel.write_text(
        "#define N 256\n"
        f"__global__ void k({inputs}, const float* scale, const long long* index, float* out, "
        "int rows, int width) {\n  const int i = blockIdx.x * N + threadIdx.x;\n"
        "  if (i < rows * width) out[i] = x[i] * sign[i];\n}\n"
        f"void launch({inputs}, const float* scale, const long long* index, float* out, "
        "int rows, int width) {\n"
        f"  k<<<(rows * width + N - 1) / N, N>>>(x, sign, {', '.join(arrays)}, scale, index, out, "
        "rows, width);\n}\n",
        "utf-8",
    )
    text = draft(read_source(kernel), problem=problem.path).space_yaml
    assert 'role: input, constant: true, note: "all 2"}' in text
    assert 'role: input, note: "only -1, 1"}' in text


def test_the_largest_size_that_is_small_enough_is_looked_at(
    problem: BenchProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [{"rows": 10**9, "width": 20}, {"rows": 3, "width": 4}, {"rows": 24, "width": 20}]
    assert "sign" in find_notes(problem, sizes)
    assert find_notes(problem, sizes[:1]) == {}


def test_a_problem_whose_inputs_cannot_be_drawn_has_no_notes(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(PROBLEM.replace("return [torch", "raise OSError\n    return [torch"), "utf-8")
    assert find_notes(BenchProblem(path), [{"rows": 24, "width": 20}]) == {}
