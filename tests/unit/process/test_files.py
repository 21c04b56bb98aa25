"""A file is there whole or as it was before; what is no file is read by nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.process.files import (
    atomic_write,
    atomic_write_all,
    open_log,
    read_regular,
    read_text,
)


def test_it_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / f"{'é' * 120}.txt"
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
        atomic_write_all({path: "after", folder / "none" / "c": "", folder: ""})
    with pytest.raises(OSError, match=r"[Dd]irectory"):
        atomic_write(folder, "text")
    assert path.read_text() == "before"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b.txt", "folder"]


@pytest.mark.parametrize("to", ["mine", "nothing", "."])
def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path, to: str) -> None:
    (tmp_path / "mine").write_text("mine")
    path = tmp_path / "report.html"
    path.symlink_to(to)
    atomic_write(path, "new")
    assert not path.is_symlink()
    assert path.read_text() == "new"
    assert (tmp_path / "mine").read_text() == "mine"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mine", "report.html"]


def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    for name in ("null", "pipe"):
        with pytest.raises(OSError, match="not a regular file"):
            atomic_write(tmp_path / name, "new")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["null", "pipe"]


@pytest.mark.timeout(10)
def test_only_a_regular_file_of_a_bounded_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\xef\xbb\xbfa\xff")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(path)
    assert read_text(path) == "a\ufffd"
    assert read_regular(tmp_path / "link", 5) == read_regular(path, 5) == path.read_bytes()
    for place, words, options in (
        (tmp_path / "pipe", "not a regular file", {}),
        (Path("/dev/zero"), "not a regular file", {}),
        (tmp_path, "Is a directory", {}),
        (tmp_path / "none", "No such file", {}),
        (tmp_path / "a\0b", "not a file's name", {}),
        (tmp_path / "link", "is a link", {"follow": False}),
        (path, "over 4 bytes", {"most": 4}),
    ):
        with pytest.raises(OSError, match=words):
            read_regular(place, **options)


def test_a_log_grows_and_no_link_is_followed(tmp_path: Path) -> None:
    log, link, pipe = (tmp_path / name for name in ("log", "link", "pipe"))
    for text in (b"one\n", b"two\n"):
        with open_log(log) as file:
            file.write(text)
    assert log.read_bytes() == b"one\ntwo\n"
    link.symlink_to(log)
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path):
        with pytest.raises(OSError, match=path.name):
            open_log(path)
