"""docs/results.md says what the result files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_figure_of_the_page_comes_from_a_result_file() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "results_page.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run benchmarks/results_page.py"
