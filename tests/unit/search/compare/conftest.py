"""Small recorded spaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.caches import cache, written
from tuner.search.compare.spaces import RecordedSpace, load_spaces
from tuner.space.load import Definition


def never(path: Path) -> Definition:
    """Stand in where no search space may be looked for."""
    raise AssertionError(path)


@pytest.fixture
def cached(tmp_path: Path) -> RecordedSpace:
    """The space of a Kernel Tuner cache of 20 configs, two of them failed."""
    (space,) = load_spaces(written(tmp_path / "a100.json.gz", cache()), never)
    return space
