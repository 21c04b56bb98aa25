"""A file is there whole or as it was before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.process.files import atomic_write


def test_it_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "b.txt"
    for content in ("one\n", b"two"):
        atomic_write(path, content)
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "b.txt"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(path, "\ud800")
    folder = tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    with pytest.raises(OSError, match=r"[Dd]irectory"):
        atomic_write(folder, "text")
    assert path.read_text() == "before"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b.txt", "folder"]
