"""Golden files, and the kernels whose searches are told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from feedback_samples import Project, Small, silu_project, small_space

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare a text with its golden file; `UPDATE_GOLDEN=1` writes the files anew."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture(scope="session")
def silu() -> Project:
    return silu_project()


@pytest.fixture
def small() -> Small:
    return small_space()
