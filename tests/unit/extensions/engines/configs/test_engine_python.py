"""The Python that forks for each program, which none must take for the one before."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CHANGES = """
import os, sys, triton
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as configs
print(os.environ.pop("MINE", None), os.getcwd(), sys.stdin.read(), triton.__version__)
print(hasattr(configs, "mine"), file=sys.stderr)
triton.__version__ = configs.mine = "0"
raise ValueError("ended")
"""


@pytest.mark.slow
def test_what_a_program_changes_ends_with_it(
    sglang_python: tuple[str, ...], tmp_path: Path
) -> None:
    program = tmp_path / "changes.py"
    program.write_text(CHANGES, encoding="utf-8")
    for value in ("1", "2"):
        done = subprocess.run(
            [*sglang_python, str(program)],
            input=f"in {value}",
            env={"MINE": value},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert done.stdout == f"{value} {tmp_path} in {value} 3.6.0\n"
        first, *_, last = done.stderr.splitlines()
        assert (first, last) == ("False", "ValueError: ended")
