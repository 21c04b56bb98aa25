"""The benchmarks that stand in for parts of a run still fit what they stand in for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_replayed_search_runs(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    # The smaller of the two: every config of it is compiled beforehand.
    words = ["--kernel", "topk_softmax", "--seeds", "1", "--trials", "4", "--out", str(out)]
    command = [sys.executable, str(ROOT / "benchmarks/recorded_search.py"), *words]
    subprocess.run(command, check=True, capture_output=True, timeout=250)
    assert "topk_softmax" in json.dumps(json.loads(out.read_text("utf-8")))
