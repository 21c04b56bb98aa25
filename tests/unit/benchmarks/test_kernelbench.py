"""The benchmark over KernelBench's style: a few of its problems, and what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

from kernelbench import ASKED, PROBLEMS, row  # noqa: E402


@pytest.mark.parametrize("name", ["conv_2d", "cross_entropy"])
def test_a_problem_is_checked_and_its_kernel_verified(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    found = row(name, tmp_path)
    assert "reason" not in found, found["reason"]
    assert found["checked"]
    assert found["verified"]


def test_the_result_is_of_these_problems_and_meets_what_was_asked() -> None:
    written = json.loads((ROOT / "benchmarks/results/cpu/kernelbench.json").read_text())
    names = [one["problem"] for one in written["rows"]]
    assert names == sorted(path.stem for path in PROBLEMS.glob("*.py"))
    assert len(names) == 20
    assert written["checked"] >= ASKED
