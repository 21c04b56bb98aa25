"""An export's folder: what is there when one fails, and what another one leaves."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tuner.extensions.export.folder import FORMAT, TABLE, with_table, write_folder
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


TABLES = {
    "nothing": "",
    "lists in lists": "[" * 100_000,
    "no object": "5",
    "no files": '{"format": "tune dispatch", "files": []}',
    "100,000 files": json.dumps(
        {"format": FORMAT, "files": {f"x{n}": "" for n in range(100_000)} | {"a/one": "1"}}
    ),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_that_no_export_wrote_vouches_for_no_file(tmp_path: Path, table: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_text("mine")
    (tmp_path / TABLE).write_text(table)
    with pytest.raises(InputError, match=r"a/one, dispatch.json: not written by tune"):
        write_folder(tmp_path, with_table({"a/one": "1"}, {}))
    assert (tmp_path / "a" / "one").read_text() == "mine"


NAMES = ("linked/mine", "../outside/mine", "{outside}/mine")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_outside_the_folder_is_written_or_removed(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    name = name.format(outside=outside)
    first = with_table({"one": "1"}, {})
    write_folder(folder, first)
    (folder / "linked").symlink_to(outside)
    table = json.loads(first[TABLE])
    table["files"][name] = hashlib.sha256(b"mine").hexdigest()
    (folder / TABLE).write_text(json.dumps(table))
    write_folder(folder, first)
    for file in ("linked/mine", "linked/new"):
        with pytest.raises(InputError, match=f"{file}: not written by tune"):
            write_folder(folder, with_table({file: "evil"}, {}))
    assert below(outside) == ["mine"]
    assert (outside / "mine").read_text() == "mine"
