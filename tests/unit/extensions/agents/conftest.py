"""The kernels whose searches are told."""

from __future__ import annotations

import pytest
from feedback_samples import Project, Small, silu_project, small_space


@pytest.fixture(scope="session")
def silu() -> Project:
    return silu_project()


@pytest.fixture
def small() -> Small:
    return small_space()
