"""Past searches, and stores of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from past_searches import past_search

from tuner.session.database import find_store
from tuner.session.knowledge import KnowledgeStore


@pytest.fixture
def store(tmp_path: Path) -> KnowledgeStore:
    return KnowledgeStore(find_store(str(tmp_path / "knowledge.sqlite"), {}))


@pytest.fixture
def make_search():
    """Make the past search of a kernel with blocks; a time of None is a wrong result."""
    return past_search
