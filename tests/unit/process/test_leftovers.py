"""What the tests of faults call left behind in shared memory."""

from __future__ import annotations

import mmap
import uuid
from pathlib import Path

import faults
import pytest

pytestmark = pytest.mark.skipif(not faults.SHARED_MEMORY.is_dir(), reason="needs Linux")


@pytest.fixture
def segment() -> Path:
    return faults.SHARED_MEMORY / f"tune-test-{uuid.uuid4().hex}"


def test_what_nobody_maps_is_left_and_what_a_living_process_maps_is_not(segment: Path) -> None:
    before = set(faults.SHARED_MEMORY.iterdir())
    segment.write_bytes(bytes(mmap.PAGESIZE))
    try:
        assert segment in faults.left_in_shared_memory(before)
        assert segment not in faults.left_in_shared_memory(before | {segment})
        with segment.open("r+b") as opened, mmap.mmap(opened.fileno(), mmap.PAGESIZE):
            assert segment not in faults.left_in_shared_memory(before)
        assert segment in faults.left_in_shared_memory(before)
    finally:
        segment.unlink()


def test_what_remains_is_named_when_the_time_is_over() -> None:
    with pytest.raises(AssertionError, match=r"processes left after 0.01 s: \['one'\]"):
        faults.wait_until_none(lambda: ["one"], "processes left", 0.01)
    faults.wait_until_none(list, "processes left", 0.01)
