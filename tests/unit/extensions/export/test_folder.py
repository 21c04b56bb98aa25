"""An export's folder: what is there when one fails, and what another one leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.export.folder import with_table, write_folder
from tuner.model.errors import InputError


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_an_export_that_fails_leaves_none_of_its_folders(tmp_path: Path) -> None:
    out = tmp_path / "some" / "where"
    with pytest.raises(InputError, match="the export cannot be written"):
        write_folder(out, {"a/one": "1", "a/one/two": "2"})
    assert below(tmp_path) == []
    (out / "mine").mkdir(parents=True)
    (out / "file").write_text("mine")
    with pytest.raises(InputError, match="the export cannot be written"):
        write_folder(out, {"a/b/one": "1", "mine/c/two": "2", "file/three": "3"})
    assert below(out) == ["file", "mine"]


def test_another_export_leaves_none_of_the_first_ones_folders_unless_something_is_in_them(
    tmp_path: Path,
) -> None:
    first = {f"{folder}/one": "1" for folder in ("a/b", "a/c", "kept/b", "d")}
    write_folder(tmp_path, with_table(first, {}))
    (tmp_path / "kept" / "mine").write_text("mine")
    (tmp_path / "d" / "one").write_text("changed")
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path, with_table({"a/c/two": "2"}, {}))
    assert below(tmp_path) == [
        *("a", "a/c", "a/c/two", "d", "d/one", "dispatch.json", "empty", "kept", "kept/mine")
    ]
