"""Pythons that import the engines' genuine functions, without a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_wheels import SGLANG, VLLM

SUPPORT = Path(__file__).parents[3] / "support"


@pytest.fixture
def sglang_python() -> Callable[[str], tuple[str, ...]]:
    """Start a Python with SGLang and a Triton that calls itself of some version."""
    pytest.importorskip("torch")
    path = os.pathsep.join(map(str, (SGLANG.packages(), SGLANG.wheel())))
    program = SUPPORT / "engine_python.py"
    return lambda triton="3.6.0": (
        "env",
        f"PYTHONPATH={path}",
        sys.executable,
        str(program),
        triton,
    )


@pytest.fixture
def vllm_python() -> tuple[str, ...]:
    """Start a Python with vLLM."""
    pytest.importorskip("torch")
    path = os.pathsep.join(map(str, (VLLM.packages(), VLLM.wheel())))
    return ("env", f"PYTHONPATH={path}", sys.executable)
